"""Connections to PostgreSQL with a timeout for answers, which psycopg does not have."""

import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.pq import ExecStatus, TransactionStatus
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
