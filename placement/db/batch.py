"""Statements that are compiled once and sent together, in a single round trip if the driver can.

SQLAlchemy's work for each execution takes longer than most of our statements take in the database. Waiting
for each answer before the next statement takes longer, too. Frequent statements are therefore
:class:`PreparedStatement` objects. A transaction gathers statements in a :class:`StatementBatch`, which calls
the driver (PEP 249) itself, and sends them together on PostgreSQL (:mod:`placement.db.pipeline`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa

from placement.db import errors
from placement.exceptions import InvalidRequest

T = TypeVar("T")
Rows = Sequence[Sequence[Any]]
Values = Mapping[str, Any]
Statement = sa.Select[Any] | sa.sql.dml.UpdateBase

# a statement is compiled once for each number of its values, and most requests have few different numbers
KEPT_SIZES: Final = 64
"""Number of statements of each kind that are kept compiled."""

# SQLite takes 32,766 values
MAX_ROWS: Final = 500
"""Maximum rows in one insertion."""
# PostgreSQL's protocol counts the values of a statement with 16 bits
_MAX_PARAMETERS: Final = 65_000
"""Maximum parameters in one statement."""


class PreparedStatement:
    """A statement, with its text for each kind of database.

    Values are given by the names of the bind parameters. No parameter may be ``expanding``.
    """

    def __init__(self, statement: Statement) -> None:
        self._statement = statement
        self._compiled: dict[str, _CompiledStatement] = {}
        self.returns_rows = isinstance(statement, sa.Select)

    def text_and_values(self, dialect: sa.Dialect, values: Values) -> tuple[str, Any]:
        """Return the text and the values for the driver: in order, or by name if the driver takes names."""
        # the driver is part of the key, because two drivers of PostgreSQL write parameters differently
        kind = f"{dialect.name}+{dialect.driver}"
        compiled = self._compiled.get(kind)
        if compiled is None:
            compiled = self._compiled[kind] = _CompiledStatement.compile(self._statement, dialect)
        # SQLAlchemy also turns literals of a statement into parameters, which have values of their own
        every = {**compiled.constants, **values}
        return compiled.text, every if compiled.order is None else [every[name] for name in compiled.order]


class _CompiledStatement(NamedTuple):
    """A statement compiled for one kind of database; ``order`` is the order of parameters without names."""

    text: str
    constants: Values
    order: Sequence[str] | None

    @classmethod
    def compile(cls, statement: Statement, dialect: sa.Dialect) -> "_CompiledStatement":
        if _supports_pipelines(dialect):
            # libpq numbers parameters ($1, $2 and so on), while the engine's dialect writes psycopg's format;
            # the common interface of dialects lacks the argument, which every dialect takes
            dialect = type(dialect)(paramstyle="numeric_dollar")  # type: ignore[call-arg]
        compiled = statement.compile(dialect=dialect)
        # only compilations with positional parameters have this attribute
        return cls(str(compiled), compiled.params, getattr(compiled, "positiontup", None))


def _supports_pipelines(dialect: sa.Dialect) -> bool:
    return dialect.driver == "psycopg" and _pipeline_is_supported()


# cached because each batch asks, and the installed libpq does not change while a process runs
@cache
def _pipeline_is_supported() -> bool:
    # imported here because it needs psycopg, which is installed only for PostgreSQL
    from placement.db import pipeline

    return pipeline.is_supported()


class StatementAnswer:
    """The future answer of a statement in a batch."""

    def __init__(self, batch: "StatementBatch", statement: PreparedStatement, values: Values) -> None:
        self.statement = statement
        self.values = values
        self.received: Rows | None = None
        self._batch = batch

    @property
    def rows(self) -> Rows:
        """The rows of the answer; reading them first sends all statements that wait in the batch.

        :raises sqlalchemy.exc.DBAPIError: a statement of the batch failed.
        """
        if self.received is None:
            self._batch.send()
        # for the type checker: send() has received it, or raised an error
        assert self.received is not None
        return self.received

    @property
    def scalars(self) -> list[Any]:
        """The first column of the :attr:`rows`."""
        return [row[0] for row in self.rows]


class StatementBatch:
    """Statements of one transaction that wait to be sent together, in order."""

    def __init__(self, conn: sa.Connection) -> None:
        self._conn = conn
        self.waiting: list[StatementAnswer] = []

    def add(self, statement: PreparedStatement, values: Values) -> StatementAnswer:
        """Append a statement to the waiting ones."""
        answer = StatementAnswer(self, statement, values)
        self.waiting.append(answer)
        return answer

    @property
    def carries_commit(self) -> bool:
        """Return whether :meth:`send` with ``commit`` also ends the transaction."""
        return bool(self.waiting) and self.sends_at_once

    @property
    def sends_at_once(self) -> bool:
        """Whether all waiting statements are sent together, without waiting for each answer."""
        return _supports_pipelines(self._conn.dialect)

    def send(self, *, commit: bool = False) -> None:
        """Execute the waiting statements; with ``commit``, also commit if that saves a round trip.

        :raises sqlalchemy.exc.DBAPIError: a statement failed; none after it was executed.
        """
        # removed first, so that a later answer does not send a batch again that has failed
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        dialect = self._conn.dialect
        connection: Any = self._conn.connection.driver_connection
        try:
            if _supports_pipelines(dialect):
                self._exchange_all(waiting, commit=commit)
            else:
                self._execute(waiting)
        except dialect.loaded_dbapi.Error as error:
            known = errors.of_driver(dialect, error, connection)
            if known.connection_invalidated:
                # without this, the rollback would fail, too, and hide the error
                self._conn.invalidate(error)
            raise known from error

    def _exchange_all(self, waiting: Sequence[StatementAnswer], *, commit: bool) -> None:
        # imported here because it needs psycopg
        from placement.db import pipeline

        dialect = self._conn.dialect
        steps = [
            pipeline.PipelineStep(*answer.statement.text_and_values(dialect, answer.values))
            for answer in waiting
        ]
        connection: Any = self._conn.connection.driver_connection
        received = pipeline.exchange_statements(connection, self._conn.connection.info, steps, commit=commit)
        for answer, rows in zip(waiting, received, strict=True):
            answer.received = rows

    def _execute(self, waiting: Sequence[StatementAnswer]) -> None:
        connection: Any = self._conn.connection.driver_connection
        for answer in waiting:
            # If an error leaves a cursor of SQLite open, the next thread that collects garbage closes it.
            # This thread then waits for the thread that uses the connection, which may wait for a lock of the
            # first.
            with closing(connection.cursor()) as cursor:
                cursor.execute(*answer.statement.text_and_values(self._conn.dialect, answer.values))
                answer.received = cursor.fetchall() if answer.statement.returns_rows else ()


def bind_parameters(name: str, count: int, type_: Any = sa.String) -> list[sa.BindParameter[Any]]:
    """Return bind parameters for ``count`` values of one kind; :func:`bind_values` returns their values.

    :raises InvalidRequest: a request has more values than a database accepts.
    """
    if count > _MAX_PARAMETERS:
        raise InvalidRequest("The request names more objects than can be handled at once.")
    # not one expanding parameter, because SQLAlchemy would make the text of the statement again for each
    # execution
    return [sa.bindparam(f"{name}_{index}", type_=type_) for index in range(count)]


def bind_values(name: str, values: Iterable[Any]) -> dict[str, Any]:
    """Return the values for the bind parameters of :func:`bind_parameters`."""
    return {f"{name}_{index}": value for index, value in enumerate(values)}


def insertion_statements(
    table: sa.Table, rows: Sequence[Values]
) -> Iterator[tuple[PreparedStatement, Values]]:
    """Yield statements, with their values, that together insert the rows; all rows have the same columns."""
    for chunk in split_rows(rows):
        yield _insertion_statement(table, tuple(chunk[0]), len(chunk)), bind_rows(chunk)


def split_rows(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split rows into parts of which each fits into one statement."""
    return (rows[start : start + MAX_ROWS] for start in range(0, len(rows), MAX_ROWS))


def bind_rows(rows: Iterable[Values]) -> dict[str, Any]:
    """Return the values of rows for bind parameters: ``used_0`` is ``used`` in the first row, and so on."""
    return {f"{name}_{index}": value for index, row in enumerate(rows) for name, value in row.items()}


@lru_cache(KEPT_SIZES)
def _insertion_statement(table: sa.Table, columns: tuple[str, ...], count: int) -> PreparedStatement:
    parameters = [bind_parameters(name, count, table.c[name].type) for name in columns]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*parameters, strict=True)]
    return PreparedStatement(sa.insert(table).values(rows))
