"""Connections to PostgreSQL with two features that psycopg does not have: timeouts for answers, and batches.

A batch executes several statements in one round trip. psycopg's own pipeline mode makes a system call for
each statement, and this call takes longer than the statement. :func:`exchange_statements` first sends all
statements, and then reads all answers. See "Pipeline Mode" in the documentation of libpq.
"""

import select
import time
import uuid
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import psycopg
from psycopg import IsolationLevel, errors
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, TransactionStatus
from sqlalchemy.exc import ArgumentError

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

RV = TypeVar("RV")

_QUESTION: Final = b"placement.question"


class PostgresqlConnection(psycopg.Connection[Any]):
    """A connection that fails and closes if the server sends nothing in time."""

    answer_timeout: float | None = None
    """Seconds to wait for data of the server; None means no limit."""
    #: whether statements are prepared. With some poolers this is impossible, because they can use another
    #: connection to the server for each transaction.
    prepares = True
    _knows_question = False

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        """Wait for the server as psycopg does, but at most :attr:`answer_timeout` seconds for the next data.

        :raises psycopg.OperationalError: the server has sent nothing in time. The connection is then closed.
        """
        if self.answer_timeout is None:
            return super().wait(gen, *args, **kwargs)
        with self.closed_on_timeout():
            return super().wait(_limit_wait(gen, self.answer_timeout), *args, **kwargs)

    # batches send their own COMMIT, so after most writes there is no transaction to end. psycopg itself would
    # need more time to find this out.
    def commit(self) -> None:
        """Commit the transaction; without a transaction, do nothing."""
        if self.pgconn.transaction_status != TransactionStatus.IDLE:
            super().commit()

    def rollback(self) -> None:
        """Roll the transaction back; without a transaction, do nothing."""
        if self.pgconn.transaction_status != TransactionStatus.IDLE:
            super().rollback()

    @contextmanager
    def closed_on_timeout(self) -> Iterator[None]:
        """Close the connection if a timeout occurs in this context.

        :raises psycopg.OperationalError: a timeout has occurred. This error replaces the
            :class:`TimeoutError`.
        """
        try:
            yield
        except TimeoutError as error:
            self.close()
            raise psycopg.OperationalError(str(error)) from error

    def ask_question(self, question: bytes) -> list[bytes | None]:
        """Execute a statement outside of transactions, and return its row.

        This method takes half as long as a cursor of psycopg.

        All calls on one connection must pass the same statement, because the statement is prepared only once.

        :raises psycopg.Error: the statement failed, or the connection is lost.
        """
        with self.closed_on_timeout():
            if not self.prepares:
                self.pgconn.send_query_params(question, None)
            else:
                if not self._knows_question:
                    self.pgconn.send_prepare(_QUESTION, question)
                    self._only_result()
                    self._knows_question = True
                self.pgconn.send_query_prepared(_QUESTION, None)
            result = self._only_result()
            return [result.get_value(0, column) for column in range(result.nfields)]

    def _only_result(self) -> "PGresult":
        """Return the only result of a statement, or raise TimeoutError if none comes in time."""
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        self.pgconn.flush()  # a small statement is sent completely by one call
        while self.pgconn.is_busy():
            wait_for(poll, self.answer_timeout)
            self.pgconn.consume_input()
        result = self.pgconn.get_result()
        # libpq returns NULL after the last result of a statement. Only afterwards, another statement can be
        # sent.
        while self.pgconn.get_result() is not None:
            pass
        if result is None or result.status == ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result) if result else psycopg.OperationalError("no result")
        return result


def connect(
    answer_timeout: float | None, *args: Any, prepare_threshold: int | str | None = 5, **kwargs: Any
) -> PostgresqlConnection:
    """Connect with this timeout for answers. All other arguments are passed to :func:`psycopg.connect`.

    :param prepare_threshold: the argument of psycopg; in a URL it is a text. The value ``none`` turns
        prepared statements off, for poolers that use another connection to the server for each transaction
        (PgBouncer in transaction mode).
    :raises psycopg.OperationalError: no connection is possible. If it took too long to connect, the cause of
        this error is a :class:`TimeoutError`.
    """
    threshold = _parse_threshold(prepare_threshold)
    try:
        connection = PostgresqlConnection.connect(*args, prepare_threshold=threshold, **kwargs)
    except errors.ConnectionTimeout as error:
        raise psycopg.OperationalError(str(error)) from TimeoutError()
    connection.answer_timeout = answer_timeout
    connection.prepares = threshold is not None
    return connection


def _parse_threshold(given: int | str | None) -> int | None:
    if given is None or str(given).lower() == "none":
        return None
    try:
        return int(given)
    except ValueError as error:
        raise ArgumentError(f"prepare_threshold is a number or none, not {given!r}") from error


def wait_for(poll: select.poll, timeout: float | None) -> None:
    """Wait for the events of ``poll`` on the server's socket, or raise TimeoutError."""
    if not poll.poll(None if timeout is None else timeout * 1000):
        raise _no_answer(timeout)


def _no_answer(seconds: float | None) -> TimeoutError:
    return TimeoutError(f"the server has not answered for {seconds:g} seconds")


def _limit_wait(gen: PQGen[RV], seconds: float) -> PQGen[RV]:
    """Wrap a generator of psycopg, so that it raises TimeoutError after a time without events."""
    try:
        wanted = next(gen)
        deadline = time.monotonic() + seconds
        while True:
            # psycopg also resumes its generators at intervals without an event; the value 0 means "not ready"
            ready = yield wanted
            if ready:
                deadline = time.monotonic() + seconds
            elif time.monotonic() > deadline:
                gen.close()
                raise _no_answer(seconds)
            wanted = gen.send(ready)
    except StopIteration as end:
        value: RV = end.value
        return value


_BEGIN: Final = {level: f"BEGIN ISOLATION LEVEL {level.name.replace('_', ' ')}" for level in IsolationLevel}
_COMMIT: Final = "COMMIT"
_NAMES: Final = "placement.prepared"
# statements with more parameters rarely occur twice, so they are not prepared
_PREPARED_UP_TO: Final = 64
"""Maximum number of parameters of a statement that is prepared."""
_Names = dict[str, bytes]
"""The names of a connection's prepared statements, by the text of the statement."""
_Encoded = tuple[str, list[bytes | None]]
"""The text of a statement with its encoded values."""


class PipelineStep(NamedTuple):
    """A statement with parameters ``$1``, ``$2`` and so on, and the values of these parameters."""

    text: str
    values: Sequence[str | float | None]


def has_pipeline_mode() -> bool:
    """Return whether the libpq of psycopg has the pipeline mode."""
    return psycopg.Pipeline.is_supported()


def exchange_statements(
    connection: PostgresqlConnection,
    notes: MutableMapping[Any, Any],
    steps: Sequence[PipelineStep],
    *,
    commit: bool,
) -> list[list[tuple[Any, ...]]]:
    """Execute statements in a transaction, and return the rows of each statement.

    If no transaction has begun on the connection, begin one. If ``commit`` is set, commit it.

    :param notes: a dict in which data about the connection are stored until it is closed.
    :raises psycopg.Error: a statement failed, and no later statement was executed; or the connection is lost,
        or was closed after a timeout.
    """
    # BEGIN is sent together with the statements; psycopg itself would send it separately and wait for its
    # answer
    level = connection.isolation_level or IsolationLevel.READ_COMMITTED
    begin = [PipelineStep(_BEGIN[level], ())] * (connection.info.transaction_status == TransactionStatus.IDLE)
    end = [PipelineStep(_COMMIT, ())] * commit
    names: _Names | None = notes.get(_NAMES)
    if names is None:
        names = notes[_NAMES] = {}
        # psycopg's own prepared statements are turned off. With them, psycopg would deallocate all prepared
        # statements on the server at each rollback.
        connection.prepare_threshold = None
    exchanging = _PipelineExchange(connection, names)
    # values are encoded before the exchange, so that a value that cannot be encoded does not interrupt it
    encoded = [_encode_step(step) for step in (*begin, *steps, *end)]
    try:
        with connection.closed_on_timeout():
            exchanging.run(encoded)
    except BaseException:
        # after an interrupted exchange, the connection cannot be used any more
        connection.close()
        raise
    if exchanging.failure is not None:
        error = errors.error_from_result(exchanging.failure, connection.info.encoding)
        if isinstance(error, errors.InvalidSqlStatementName):
            names.clear()  # a prepared statement is missing; perhaps a pooler has reset the session
        raise error
    transformer = Transformer(connection)
    received = []
    # the answers to BEGIN and COMMIT, at both ends, have no rows
    for result in exchanging.results[len(begin) : len(begin) + len(steps)]:
        # most statements of a write return no rows, so the slow functions that load rows are often not needed
        if result.ntuples:
            transformer.set_pgresult(result)
            received.append(transformer.load_rows(0, result.ntuples, tuple))
        else:
            received.append([])
    return received


def _encode_step(step: PipelineStep) -> _Encoded:
    """Encode the values of a statement in PostgreSQL's text format; return them with the statement."""
    # with values in text format, the server derives the types of parameters from the statement
    values = [None if value is None else str(value).encode() for value in step.values]
    # in UTF-8, a zero byte occurs only in the character NUL, so one search in all values together is enough
    if values and b"\0" in b"".join(filter(None, values)):
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return step.text, values


class _PipelineExchange:
    """An exchange of statements and results with the server, while the connection is in pipeline mode.

    ``results`` has the results of the statements in order. ``failure`` is the result of the first failed
    statement.
    """

    def __init__(self, connection: PostgresqlConnection, names: _Names) -> None:
        self.results: list[PGresult] = []
        self.failure: PGresult | None = None
        self._pgconn = connection.pgconn
        self._prepares = connection.prepares
        self._timeout = connection.answer_timeout
        self._names = names
        # the names of statements that the server has not confirmed yet, because their preparation can fail or
        # be skipped
        self._new: _Names = {}
        #: for each expected result, the text of the statement that is prepared; None for an execution
        self._sent: list[str | None] = []
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)

    def run(self, steps: Iterable[_Encoded]) -> None:
        """Send all statements, then read all results.

        :raises psycopg.OperationalError: the connection is lost.
        :raises TimeoutError: no answer came in time.
        """
        self._pgconn.enter_pipeline_mode()
        for step in steps:
            self._send(step)
        # there is only one sync, at the end. So the server skips all statements after a failed one, also
        # COMMIT.
        self._pgconn.pipeline_sync()
        self._flush()
        for prepared in self._sent:
            result = self._read()
            # only the first failure has a reason, because all later results are PIPELINE_ABORTED
            if result.status == ExecStatus.FATAL_ERROR and self.failure is None:
                self.failure = result
            if prepared is None:
                self.results.append(result)
            elif result.status == ExecStatus.COMMAND_OK:
                self._names[prepared] = self._new[prepared]
        self._next_result()  # reads the result that marks the end of the pipeline
        self._pgconn.exit_pipeline_mode()

    def _send(self, step: _Encoded) -> None:
        """Add a statement to the data to be sent, after its preparation if the server does not know it."""
        text, values = step
        if len(values) > _PREPARED_UP_TO or not self._prepares:
            self._pgconn.send_query_params(text.encode(), values)
        else:
            name = self._names.get(text) or self._new.get(text)
            if name is None:
                # names are random, because a pooler can give this session to another worker, which chooses
                # its own names
                name = self._new[text] = uuid.uuid4().hex.encode()
                self._pgconn.send_prepare(name, text.encode())
                self._sent.append(text)
            self._pgconn.send_query_prepared(name, values)
        self._sent.append(None)

    def _flush(self) -> None:
        while self._pgconn.flush():
            self._poll.modify(self._pgconn.socket, select.POLLIN | select.POLLOUT)
            wait_for(self._poll, self._timeout)
            # sometimes the server reads no more until this client has read its output
            self._pgconn.consume_input()
            self._poll.modify(self._pgconn.socket, select.POLLIN)

    def _read(self) -> "PGresult":
        """Return the result of the next statement."""
        result = self._next_result()
        # after the results of each statement, libpq returns NULL, which has to be read before the results of
        # the next statement
        while self._next_or_none() is not None:
            pass
        return result

    def _next_result(self) -> "PGresult":
        result = self._next_or_none()
        if result is not None and self._pgconn.status != ConnStatus.BAD:
            return result
        if result is not None and result.error_field(DiagnosticField.SQLSTATE):
            self.failure = self.failure or result
        # the failure is raised first. It is, for example, the last message of a server that shuts down and
        # has rolled the transaction back.
        if self.failure is not None:
            raise errors.error_from_result(self.failure)
        raise psycopg.OperationalError(f"the connection is lost: {self._pgconn.get_error_message()}")

    def _next_or_none(self) -> "PGresult | None":
        while self._pgconn.is_busy():
            wait_for(self._poll, self._timeout)
            try:
                self._pgconn.consume_input()
            except psycopg.OperationalError:
                break  # the connection is lost; if the server sent a message before, it is the next result
        return self._pgconn.get_result()
