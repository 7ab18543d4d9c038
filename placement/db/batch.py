"""Statements that are compiled once and sent together, if possible in a single round trip.

To execute most of our statements, SQLAlchemy needs more time than the database. The wait for the answer to a
statement also takes longer than the statement itself. So frequent statements are :class:`PreparedStatement`
objects, which are compiled once. A transaction collects statements in a :class:`StatementBatch`, which calls
the driver (PEP 249) directly. On PostgreSQL the batch sends all its statements together
(:mod:`placement.db.postgresql`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa

from placement.db import errors
from placement.exceptions import InvalidRequest

T = TypeVar("T")
Rows = Sequence[Any]
"""The rows of an answer, each a sequence of values."""
Values = Mapping[str, Any]
Statement = sa.Select[Any] | sa.sql.dml.UpdateBase

# a statement is compiled once for each number of values, and requests have only a few different numbers
KEPT_SIZES: Final = 64
"""Maximum number of compiled statements in the cache for each kind of statement."""

_MAX_KEPT_VALUES: Final = 4096
"""A :class:`StatementFamily` caches statements with up to this number of values, which is a power of two."""
# SQLite allows 32,766 values in a statement
MAX_ROWS: Final = 500
"""Maximum number of rows that one statement inserts."""
# PostgreSQL's protocol counts the values of a statement with 16 bits
_MAX_PARAMETERS: Final = 65_000
"""Maximum number of parameters in one statement."""


class PreparedStatement:
    """A statement with its compiled text for each kind of database. No parameter is ``expanding``."""

    def __init__(self, statement: Statement) -> None:
        self._statement = statement
        self._compiled: dict[str, _CompiledStatement] = {}
        self.returns_rows = isinstance(statement, sa.Select)

    def text_and_values(self, dialect: sa.Dialect, values: Values) -> tuple[str, Any]:
        """Return the text and the values for the driver: a list, or a dict if the driver uses names."""
        # the key contains the driver, because drivers of PostgreSQL need parameters in different forms
        kind = f"{dialect.name}+{dialect.driver}"
        compiled = self._compiled.get(kind)
        if compiled is None:
            compiled = self._compiled[kind] = _CompiledStatement.compile(self._statement, dialect)
        # the constants are the values of literals in the statement, which SQLAlchemy makes parameters, too
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
            # libpq needs numbered parameters ($1, $2 and so on), but the engine's dialect writes them in the
            # format of psycopg. The type of dialects does not have this argument, but all dialects accept it
            dialect = type(dialect)(paramstyle="numeric_dollar")  # type: ignore[call-arg]
        compiled = statement.compile(dialect=dialect)
        # the compiled statement has this attribute only if its parameters are positional
        return cls(str(compiled), compiled.params, getattr(compiled, "positiontup", None))


def _supports_pipelines(dialect: sa.Dialect) -> bool:
    return dialect.driver == "psycopg" and _pipeline_is_supported()


# the result is cached, because each batch needs it, and because it does not change while a process runs
@cache
def _pipeline_is_supported() -> bool:
    # the module is imported here because it needs psycopg, which is installed only for PostgreSQL
    from placement.db import postgresql

    return postgresql.has_pipeline_mode()


class StatementAnswer:
    """The answer to a statement of a batch. Perhaps the statement was not sent yet."""

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
        # the type checker does not know that send() has received the rows, or has raised an error
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
        """Whether :meth:`send` with ``commit`` also commits the transaction."""
        return bool(self.waiting) and self.sends_at_once

    @property
    def sends_at_once(self) -> bool:
        """Whether the batch sends all its queued statements together, without waiting for each answer."""
        return _supports_pipelines(self._conn.dialect)

    def send(self, *, commit: bool = False) -> None:
        """Execute the queued statements. If ``commit`` is set, also commit if this saves a round trip.

        :raises sqlalchemy.exc.DBAPIError: a statement failed, and no later statement was executed.
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
                # a lost connection is dropped here, because a rollback on it would fail, and its error would
                # hide this one
                self._conn.invalidate(error)
            raise known from error

    def _exchange_all(self, waiting: Sequence[StatementAnswer], *, commit: bool) -> None:
        # the module is imported here because it needs psycopg
        from placement.db import postgresql

        dialect = self._conn.dialect
        steps = [
            postgresql.PipelineStep(*answer.statement.text_and_values(dialect, answer.values))
            for answer in waiting
        ]
        connection: Any = self._conn.connection.driver_connection
        received = postgresql.exchange_statements(
            connection, self._conn.connection.info, steps, commit=commit
        )
        for answer, rows in zip(waiting, received, strict=True):
            answer.received = rows

    def _execute(self, waiting: Sequence[StatementAnswer]) -> None:
        connection: Any = self._conn.connection.driver_connection
        for answer in waiting:
            # The cursor is also closed after an error. Otherwise a garbage collection in another thread would
            # close it later, and wait for the thread that then uses the connection. If this thread waited for
            # a lock of the other thread, the two would wait for ever.
            with closing(connection.cursor()) as cursor:
                cursor.execute(*answer.statement.text_and_values(self._conn.dialect, answer.values))
                answer.received = cursor.fetchall() if answer.statement.returns_rows else ()


def bind_parameters(name: str, count: int, type_: Any = sa.String) -> list[sa.BindParameter[Any]]:
    """Return ``count`` bind parameters of one type. The function :func:`bind_values` returns their values.

    :raises InvalidRequest: ``count`` is larger than the number of parameters that a database accepts.
    """
    if count > _MAX_PARAMETERS:
        raise InvalidRequest("The request names more objects than can be handled at once.")
    # each value has a parameter of its own. With one expanding parameter for all values, SQLAlchemy would
    # make the text of the statement again for each execution.
    return [sa.bindparam(f"{name}_{index}", type_=type_) for index in range(count)]


def bind_values(name: str, values: Iterable[Any]) -> dict[str, Any]:
    """Return the values for the bind parameters of :func:`bind_parameters`."""
    return {f"{name}_{index}": value for index, value in enumerate(values)}


def pad_values(values: Sequence[T]) -> list[T]:
    """Repeat the first value until the number is a power of two, so that few statements differ."""
    missing = (1 << (len(values) - 1).bit_length()) - len(values)
    return [*values, *list(values[:1]) * missing]


class StatementFamily:
    """Statements with the condition ``column IN (...)`` that differ only in the number of values.

    Values are repeated until their number is a power of two, so that few statements are compiled.

    :param complete: a function that returns the statement for a condition, such as ``select(...).where``.
    """

    def __init__(
        self, column: sa.ColumnElement[Any], complete: Callable[[sa.ColumnElement[bool]], Statement]
    ) -> None:
        self._column = column
        self._complete = complete
        self._kept: dict[int, PreparedStatement] = {}

    def bind_list(self, values: Iterable[Any], **others: Any) -> tuple[PreparedStatement, Values]:
        """Return the statement for these values (at least one), and the values of all its parameters.

        :param others: the values of further parameters of the statement.
        :raises InvalidRequest: there are more values than a database accepts.
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
    table: sa.Table, rows: Sequence[Values], keys: tuple[str, ...], shared: Values
) -> Iterator[tuple[PreparedStatement, Values]]:
    """Yield statements with their values that together insert the rows. All rows have the same columns.

    :param keys: the columns for which the rows have uuids or names instead of ids, because the ids are
        possibly not known yet.
    :param shared: further columns, with the value that all rows have.
    """
    every = {f"every_{name}": value for name, value in shared.items()}
    for chunk in split_rows(rows):
        statement = _insertion_statement(table, tuple(chunk[0]), keys, tuple(shared), len(chunk))
        yield statement, {**bind_rows(chunk), **every}


def split_rows(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split rows into parts, so that each part fits into one statement."""
    return (rows[start : start + MAX_ROWS] for start in range(0, len(rows), MAX_ROWS))


def bind_rows(rows: Iterable[Values]) -> dict[str, Any]:
    """Return the values of rows for bind parameters: ``used_0`` is the value ``used`` of the first row."""
    return {f"{name}_{index}": value for index, row in enumerate(rows) for name, value in row.items()}


@lru_cache(4 * KEPT_SIZES)
def _insertion_statement(
    table: sa.Table, columns: tuple[str, ...], keys: tuple[str, ...], shared: tuple[str, ...], count: int
) -> PreparedStatement:
    values: list[list[sa.ColumnElement[Any]]] = [
        [id_of_key(table.c[name], key) for key in bind_parameters(name, count)]
        if name in keys
        else [*bind_parameters(name, count, table.c[name].type)]
        for name in columns
    ]
    every = {name: sa.bindparam(f"every_{name}", type_=table.c[name].type) for name in shared}
    rows = [{**dict(zip(columns, row, strict=True)), **every} for row in zip(*values, strict=True)]
    return PreparedStatement(sa.insert(table).values(rows))


def id_of_key(column: sa.Column[Any], key: sa.ColumnElement[str]) -> sa.ScalarSelect[Any]:
    """Return a query for the id that a foreign key refers to, by the uuid or the name of its row."""
    (reference,) = column.foreign_keys
    others = reference.column.table.c
    return (
        sa.select(others.id)
        .where((others.uuid if "uuid" in others else others.name) == key)
        .scalar_subquery()
    )
