"""Statements that are compiled once and sent together, if possible in a single round trip.

For most of our statements, SQLAlchemy needs more time for an execution than the database does. A wait for the
answer to each statement also takes longer than the statement itself. Therefore frequent statements are
:class:`PreparedStatement` objects. A transaction collects statements in a :class:`StatementBatch`, which
calls the driver (PEP 249) directly. On PostgreSQL the batch sends all its statements together
(:mod:`placement.db.pipeline`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

# a statement is compiled once for each number of values, and requests have only a few different numbers
KEPT_SIZES: Final = 64
"""Maximum number of compiled statements of each kind that a cache keeps."""

_MAX_KEPT_VALUES: Final = 4096
"""Maximum number of values with which a :class:`StatementFamily` keeps a statement; a power of two."""
# SQLite allows 32,766 values in a statement
MAX_ROWS: Final = 500
"""Maximum number of rows that one statement inserts."""
# PostgreSQL's protocol counts the values of a statement with 16 bits
_MAX_PARAMETERS: Final = 65_000
"""Maximum number of parameters in one statement."""


class PreparedStatement:
    """A statement with its compiled text for each kind of database; no parameter may be ``expanding``."""

    def __init__(self, statement: Statement) -> None:
        self._statement = statement
        self._compiled: dict[str, _CompiledStatement] = {}
        self.returns_rows = isinstance(statement, sa.Select)

    def text_and_values(self, dialect: sa.Dialect, values: Values) -> tuple[str, Any]:
        """Return the text and the values for the driver: a list, or a dict if the driver uses names."""
        # the key has the driver, because two drivers of PostgreSQL write parameters differently
        kind = f"{dialect.name}+{dialect.driver}"
        compiled = self._compiled.get(kind)
        if compiled is None:
            compiled = self._compiled[kind] = _CompiledStatement.compile(self._statement, dialect)
        # adds the values of literals in the statement, which SQLAlchemy also turns into parameters
        every = {**compiled.constants, **values}
        return compiled.text, every if compiled.order is None else [every[name] for name in compiled.order]


class _CompiledStatement(NamedTuple):
    """A statement compiled for one kind of database; ``order`` has the names of positional parameters."""

    text: str
    constants: Values
    order: Sequence[str] | None

    @classmethod
    def compile(cls, statement: Statement, dialect: sa.Dialect) -> "_CompiledStatement":
        if _supports_pipelines(dialect):
            # libpq needs numbered parameters ($1, $2 and so on), while the engine's dialect writes psycopg's
            # format. The type of dialects lacks this argument, which every dialect accepts
            dialect = type(dialect)(paramstyle="numeric_dollar")  # type: ignore[call-arg]
        compiled = statement.compile(dialect=dialect)
        # The attribute is None for statements with named parameters, which lack this attribute
        return cls(str(compiled), compiled.params, getattr(compiled, "positiontup", None))


def _supports_pipelines(dialect: sa.Dialect) -> bool:
    return dialect.driver == "psycopg" and _pipeline_is_supported()


# the answer is cached, because each batch needs it, and it does not change while a process runs
@cache
def _pipeline_is_supported() -> bool:
    # the module is imported here because it needs psycopg, which is installed only for PostgreSQL
    from placement.db import pipeline

    return pipeline.is_supported()


class StatementAnswer:
    """The answer to a statement of a batch, which may not have been sent yet."""

    def __init__(self, batch: "StatementBatch", statement: PreparedStatement, values: Values) -> None:
        self.statement = statement
        self.values = values
        self.received: Rows | None = None
        self._batch = batch

    @property
    def rows(self) -> Rows:
        """The rows of the answer; the first access sends all queued statements of the batch."""
        if self.received is None:
            self._batch.send()
        # this line is for the type checker: send() has received it, or raised an error
        assert self.received is not None
        return self.received

    @property
    def scalars(self) -> list[Any]:
        """The first column of the answer's :attr:`rows`."""
        return [row[0] for row in self.rows]


class StatementBatch:
    """The queued statements of one transaction, in order."""

    def __init__(self, conn: sa.Connection) -> None:
        self._conn = conn
        self.waiting: list[StatementAnswer] = []

    def add(self, statement: PreparedStatement, values: Values) -> StatementAnswer:
        """Add a statement to the queue of the batch."""
        answer = StatementAnswer(self, statement, values)
        self.waiting.append(answer)
        return answer

    @property
    def carries_commit(self) -> bool:
        """Return whether :meth:`send` with ``commit`` also ends the transaction."""
        return bool(self.waiting) and self.sends_at_once

    @property
    def sends_at_once(self) -> bool:
        """Whether the batch sends all its queued statements together, without waiting for each answer."""
        return _supports_pipelines(self._conn.dialect)

    def send(self, *, commit: bool = False) -> None:
        """Execute the queued statements; with ``commit``, also commit if that saves a round trip.

        :raises sqlalchemy.exc.DBAPIError: a statement failed; no later statement was executed.
        """
        # the list is emptied first, so that no statement is sent twice after a failure
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
                # the connection is dropped, because a rollback on a lost connection would fail and hide this
                # error
                self._conn.invalidate(error)
            raise known from error

    def _exchange_all(self, waiting: Sequence[StatementAnswer], *, commit: bool) -> None:
        # the module is imported here because it needs psycopg
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
            # The cursor is closed here even after an error. Otherwise a garbage collection in any other
            # thread would close it, and wait for the thread that uses the connection. That thread may wait
            # for a lock of the other one: a deadlock.
            with closing(connection.cursor()) as cursor:
                cursor.execute(*answer.statement.text_and_values(self._conn.dialect, answer.values))
                answer.received = cursor.fetchall() if answer.statement.returns_rows else ()


def bind_parameters(name: str, count: int, type_: Any = sa.String) -> list[sa.BindParameter[Any]]:
    """Return ``count`` bind parameters of one type. The function :func:`bind_values` returns their values.

    :raises InvalidRequest: a request needs more values than a database accepts.
    """
    if count > _MAX_PARAMETERS:
        raise InvalidRequest("The request names more objects than can be handled at once.")
    # the code uses one parameter for each value, because SQLAlchemy makes the text of a statement with an
    # expanding parameter again for each execution
    return [sa.bindparam(f"{name}_{index}", type_=type_) for index in range(count)]


def bind_values(name: str, values: Iterable[Any]) -> dict[str, Any]:
    """Return the values for the bind parameters of :func:`bind_parameters`."""
    return {f"{name}_{index}": value for index, value in enumerate(values)}


def pad_values(values: Sequence[T]) -> list[T]:
    """Repeat the first value until the number of values is a power of two, so that few statements differ."""
    missing = (1 << (len(values) - 1).bit_length()) - len(values)
    return [*values, *list(values[:1]) * missing]


class StatementFamily:
    """Statements with the condition ``column IN (...)`` that differ only in the number of values.

    Values are repeated until their number is a power of two, so that few statements are compiled.

    :param complete: a function that returns the statement with the condition, such as ``select(...).where``.
    """

    def __init__(
        self, column: sa.ColumnElement[Any], complete: Callable[[sa.ColumnElement[bool]], Statement]
    ) -> None:
        self._column = column
        self._complete = complete
        self._kept: dict[int, PreparedStatement] = {}

    def bind_list(self, values: Iterable[Any], **others: Any) -> tuple[PreparedStatement, Values]:
        """Return the statement for these values, of which there is at least one, and all its parameters.

        :param others: further parameters of the statement.
        :raises InvalidRequest: a request needs more values than a database accepts.
        """
        chosen = list(values)
        is_kept = len(chosen) <= _MAX_KEPT_VALUES
        padded = pad_values(chosen) if is_kept else chosen
        found = self._kept.get(len(padded))
        if found is None:
            parameters = bind_parameters("value", len(padded), self._column.type)
            found = PreparedStatement(self._complete(self._column.in_(parameters)))
            if is_kept:
                self._kept[len(padded)] = found
        return found, {**bind_values("value", padded), **others}


def insertion_statements(
    table: sa.Table, rows: Sequence[Values]
) -> Iterator[tuple[PreparedStatement, Values]]:
    """Yield statements with their values, which together insert the rows; all rows need the same columns."""
    for chunk in split_rows(rows):
        yield _insertion_statement(table, tuple(chunk[0]), len(chunk)), bind_rows(chunk)


def split_rows(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split rows into parts, so that each part fits into one statement."""
    return (rows[start : start + MAX_ROWS] for start in range(0, len(rows), MAX_ROWS))


def bind_rows(rows: Iterable[Values]) -> dict[str, Any]:
    """Return the values of rows for bind parameters: ``used_0`` is ``used`` in the first row, and so on."""
    return {f"{name}_{index}": value for index, row in enumerate(rows) for name, value in row.items()}


@lru_cache(KEPT_SIZES)
def _insertion_statement(table: sa.Table, columns: tuple[str, ...], count: int) -> PreparedStatement:
    parameters = [bind_parameters(name, count, table.c[name].type) for name in columns]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*parameters, strict=True)]
    return PreparedStatement(sa.insert(table).values(rows))
