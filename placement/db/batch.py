"""Statements that are compiled once and sent together, in one round trip where the driver can.

What SQLAlchemy does for each execution of a statement costs more than the
database takes for most of ours, and so does waiting for one answer after the
other. Statements that requests run all the time are therefore
:class:`Prepared`, and a transaction gathers them in a :class:`Batch`, which
talks to the driver (PEP 249) itself, and on PostgreSQL sends them together
(:mod:`placement.db.pipeline`).
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

KEPT_SIZES: Final = 64  # statements that differ in nothing but how many things they name

MAX_ROWS: Final = 500  # in one insertion; SQLite takes 32,766 values
_MAX_PARAMETERS: Final = 65_000  # PostgreSQL's protocol counts the values of a statement with 16 bits


class PreparedStatement:
    """A statement, and its text for each kind of database.

    Values are given by the names of its bind parameters, none of which may be ``expanding``.
    """

    def __init__(self, statement: Statement) -> None:
        self._statement = statement
        self._compiled: dict[str, _CompiledStatement] = {}
        self.returns_rows = isinstance(statement, sa.Select)

    def text_and_values(self, dialect: sa.Dialect, values: Values) -> tuple[str, Any]:
        """What the driver takes: the values in their order, or by name if that is its style."""
        kind = f"{dialect.name}+{dialect.driver}"
        compiled = self._compiled.get(kind)
        if compiled is None:
            compiled = self._compiled[kind] = _CompiledStatement.of(self._statement, dialect)
        every = {**compiled.constants, **values}
        return compiled.text, every if compiled.order is None else [every[name] for name in compiled.order]


class _CompiledStatement(NamedTuple):
    """A statement for one kind of database; ``order`` is of the parameters, where they have no names."""

    text: str
    constants: Values
    order: Sequence[str] | None

    @classmethod
    def of(cls, statement: Statement, dialect: sa.Dialect) -> "_CompiledStatement":
        if _pipelines(dialect):
            # Every dialect takes it; the interface that they share does not say so.
            dialect = type(dialect)(paramstyle="numeric_dollar")  # type: ignore[call-arg]
        compiled = statement.compile(dialect=dialect)
        return cls(str(compiled), compiled.params, getattr(compiled, "positiontup", None))


def _pipelines(dialect: sa.Dialect) -> bool:
    return dialect.driver == "psycopg" and _pipeline_is_supported()


@cache
def _pipeline_is_supported() -> bool:
    from placement.db import pipeline  # needs psycopg, which only those have who use PostgreSQL

    return pipeline.is_supported()


class StatementAnswer:
    """What a statement of a batch will have returned."""

    def __init__(self, batch: "StatementBatch", statement: PreparedStatement, values: Values) -> None:
        self.statement = statement
        self.values = values
        self.received: Rows | None = None
        self._batch = batch

    @property
    def rows(self) -> Rows:
        """The rows, for which everything that waits in the batch is sent.

        :raises sqlalchemy.exc.DBAPIError: one of its statements failed.
        """
        if self.received is None:
            self._batch.send()
        assert self.received is not None
        return self.received

    @property
    def scalars(self) -> list[Any]:
        """The first column of the :attr:`rows`."""
        return [row[0] for row in self.rows]


class StatementBatch:
    """Statements of the transaction of a connection that wait to be sent, in their order."""

    def __init__(self, conn: sa.Connection) -> None:
        self._conn = conn
        self.waiting: list[StatementAnswer] = []

    def add(self, statement: PreparedStatement, values: Values) -> StatementAnswer:
        """Have the statement executed after those that wait already."""
        answer = StatementAnswer(self, statement, values)
        self.waiting.append(answer)
        return answer

    @property
    def carries_commit(self) -> bool:
        """Whether it ends the transaction when it is sent with ``commit``."""
        return bool(self.waiting) and self.sends_at_once

    @property
    def sends_at_once(self) -> bool:
        """Whether all that waits is sent together, rather than each statement after the answer to another."""
        return _pipelines(self._conn.dialect)

    def send(self, *, commit: bool = False) -> None:
        """Execute what waits; with ``commit``, also end the transaction if that saves a round trip.

        :raises sqlalchemy.exc.DBAPIError: a statement failed; none after it was executed.
        """
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        dialect = self._conn.dialect
        connection: Any = self._conn.connection.driver_connection
        try:
            if _pipelines(dialect):
                self._exchange(waiting, commit=commit)
            else:
                self._execute(waiting)
        except dialect.loaded_dbapi.Error as error:
            known = errors.of_driver(dialect, error, connection)
            if known.connection_invalidated:
                self._conn.invalidate(error)  # or the attempt to roll back would fail, and hide this error
            raise known from error

    def _exchange(self, waiting: Sequence[StatementAnswer], *, commit: bool) -> None:
        from placement.db import pipeline

        dialect = self._conn.dialect
        steps = [
            pipeline.PipelineStep(*answer.statement.text_and_values(dialect, answer.values))
            for answer in waiting
        ]
        connection: Any = self._conn.connection.driver_connection
        received = pipeline.exchange(connection, self._conn.connection.info, steps, commit=commit)
        for answer, rows in zip(waiting, received, strict=True):
            answer.received = rows

    def _execute(self, waiting: Sequence[StatementAnswer]) -> None:
        connection: Any = self._conn.connection.driver_connection
        for answer in waiting:
            # A cursor of SQLite that is left open by an error is closed by whichever thread collects garbage
            # next: that one then waits for the thread that uses the connection, which may wait for its lock.
            with closing(connection.cursor()) as cursor:
                cursor.execute(*answer.statement.text_and_values(self._conn.dialect, answer.values))
                answer.received = cursor.fetchall() if answer.statement.returns_rows else ()


def bind_parameters(name: str, count: int, type_: Any = sa.String) -> list[sa.BindParameter[Any]]:
    """Bind parameters for ``count`` values of a kind; :func:`bind_values` gives the values to them.

    :raises InvalidRequest: no database takes so many in all cases; only what a client names gets so long.
    """
    if count > _MAX_PARAMETERS:
        raise InvalidRequest("The request names more things than can be handled at once.")
    return [sa.bindparam(f"{name}_{index}", type_=type_) for index in range(count)]


def bind_values(name: str, values: Iterable[Any]) -> dict[str, Any]:
    """The values for the bind parameters that :func:`bind_parameters` made for so many."""
    return {f"{name}_{index}": value for index, value in enumerate(values)}


def insertions(table: sa.Table, rows: Sequence[Values]) -> Iterator[tuple[PreparedStatement, Values]]:
    """The statements that insert rows, all with the same columns; and the values of each."""
    for chunk in chunks(rows):
        yield _insertion(table, tuple(chunk[0]), len(chunk)), bind_rows(chunk)


def chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """The rows in parts of which each fits into one statement."""
    return (rows[start : start + MAX_ROWS] for start in range(0, len(rows), MAX_ROWS))


def bind_rows(rows: Iterable[Values]) -> dict[str, Any]:
    """As :func:`bind_values`, for each name in a row."""
    return {f"{name}_{index}": value for index, row in enumerate(rows) for name, value in row.items()}


@lru_cache(KEPT_SIZES)
def _insertion(table: sa.Table, columns: tuple[str, ...], count: int) -> PreparedStatement:
    parameters = [bind_parameters(name, count, table.c[name].type) for name in columns]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*parameters, strict=True)]
    return PreparedStatement(sa.insert(table).values(rows))
