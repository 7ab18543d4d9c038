"""Outages of a peer, such as the database. During an outage, only one request at a time tries the peer."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from placement.exceptions import Unavailable


class PeerOutage:
    """Prevents requests from waiting for a peer that accepts connections, but does not answer.

    During an outage, one request at a time tries the peer, and all other requests are refused at once. A
    worker has few threads. If each request waited for the peer until a time limit, no thread would be free
    for requests that do not need the peer, such as health checks.

    :param is_unanswered: a function that returns whether an error means that the peer did not answer at all.
    :param refusal: the text of the error for refused requests.
    :param log_begin: a function that logs the begin of an outage, with the error.
    :param log_end: a function that logs the end of an outage, with its length in seconds.
    """

    def __init__(
        self,
        is_unanswered: Callable[[Exception], bool],
        refusal: str,
        log_begin: Callable[[Exception], None],
        log_end: Callable[[float], None],
    ) -> None:
        self._is_unanswered = is_unanswered
        self._refusal = refusal
        self._log_begin = log_begin
        self._log_end = log_end
        self._since: float | None = None
        self._trying = threading.Lock()

    @contextmanager
    def attempt_request(self) -> Iterator[None]:
        """Return a context in which the caller queries the peer. Errors of the peer pass through unchanged.

        :raises Unavailable: the peer did not answer the last request, and another request is testing the peer
            at this moment.
        """
        # the attribute is read only once, because another thread can begin or end the outage meanwhile. This
        # thread must release the lock only if it has acquired the lock.
        alone = self._since is not None
        if alone and not self._trying.acquire(blocking=False):
            raise Unavailable(self._refusal)
        try:
            yield
        except Exception as error:
            if self._is_unanswered(error):
                self._begin_outage(error)
            else:
                self._end_outage()
            raise
        else:
            self._end_outage()
        finally:
            if alone:
                self._trying.release()

    def _begin_outage(self, error: Exception) -> None:
        if self._since is None:
            self._since = time.monotonic()
            self._log_begin(error)

    def _end_outage(self) -> None:
        since = self._since
        if since is not None:
            self._since = None
            self._log_end(time.monotonic() - since)
