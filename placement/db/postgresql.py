"""Connections to PostgreSQL that do not wait for ever: psycopg itself has no timeout for an answer."""

import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.pq import ExecStatus
from sqlalchemy.exc import ArgumentError

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

RV = TypeVar("RV")

_QUESTION: Final = b"placement.question"


class PostgresqlConnection(psycopg.Connection[Any]):
    """A connection that fails, and is closed, when nothing came from the server for too long."""

    answer_timeout: float | None = None
    """How long that is, in seconds; None for ever."""
    #: whether the server may be given statements to keep; a pooler may use another connection each time
    prepares = True
    _knows_question = False

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        """As psycopg's own, which all that it sends goes through.

        :raises psycopg.OperationalError: nothing came, and the connection is closed.
        """
        if self.answer_timeout is None:
            return super().wait(gen, *args, **kwargs)
        with self.closed_on_timeout():
            return super().wait(_limited(gen, self.answer_timeout), *args, **kwargs)

    @contextmanager
    def closed_on_timeout(self) -> Iterator[None]:
        """Closes the connection if the server lets us wait too long in this context.

        :raises psycopg.OperationalError: for a :class:`TimeoutError`.
        """
        try:
            yield
        except TimeoutError as error:
            self.close()
            raise psycopg.OperationalError(str(error)) from error

    def ask(self, question: bytes) -> list[bytes | None]:
        """The one row that a statement returns, outside of transactions; a cursor takes twice as long.

        A connection is always asked the same.

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
        """The one result of what was sent.

        :raises TimeoutError: nothing came for too long.
        """
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        self.pgconn.flush()  # it is small: it goes out as a whole
        while self.pgconn.is_busy():
            wait_for(poll, self.answer_timeout)
            self.pgconn.consume_input()
        result = self.pgconn.get_result()
        while self.pgconn.get_result() is not None:
            pass
        if result is None or result.status == ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result) if result else psycopg.OperationalError("no result")
        return result


def connect(
    answer_timeout: float | None, *args: Any, prepare_threshold: int | str | None = 5, **kwargs: Any
) -> PostgresqlConnection:
    """A connection with this timeout; the other arguments are those of :func:`psycopg.connect`.

    :param prepare_threshold: as psycopg has it. URLs are texts: there it is ``none`` where a pooler
        (PgBouncer, by transactions) uses another connection each time, so that nothing can be prepared.
    :raises psycopg.OperationalError: none can be made; from a :class:`TimeoutError` if it took too long.
    """
    threshold = _threshold(prepare_threshold)
    try:
        connection = PostgresqlConnection.connect(*args, prepare_threshold=threshold, **kwargs)
    except errors.ConnectionTimeout as error:
        raise psycopg.OperationalError(str(error)) from TimeoutError()
    connection.answer_timeout = answer_timeout
    connection.prepares = threshold is not None
    return connection


def _threshold(given: int | str | None) -> int | None:
    if given is None or str(given).lower() == "none":
        return None
    try:
        return int(given)
    except ValueError as error:
        raise ArgumentError(f"prepare_threshold is a number or none, not {given!r}") from error


def wait_for(poll: select.poll, timeout: float | None) -> None:
    """Wait until the server's socket is ready for what ``poll`` looks for.

    :raises TimeoutError: it is not within so many seconds.
    """
    if not poll.poll(None if timeout is None else timeout * 1000):
        raise _no_answer(timeout)


def _no_answer(seconds: float | None) -> TimeoutError:
    return TimeoutError(f"the server has not answered for {seconds:g} seconds")


def _limited(gen: PQGen[RV], seconds: float) -> PQGen[RV]:
    """The generator, which is woken up now and then, until nothing has happened for so long."""
    try:
        wanted = next(gen)
        deadline = time.monotonic() + seconds
        while True:
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
