"""While a database does not answer at all, one request of a worker tries, and the others are told at once."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from placement.db import errors
from placement.exceptions import Unavailable

LOG = logging.getLogger(__name__)


class Outage:
    """Keeps requests from all waiting for a database that swallows what it is sent.

    A worker has a few threads. If each of them waited until its limit, none would be left for requests
    that need no database, such as health checks.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._trying = threading.Lock()

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Ask the database in this context; errors leave it as they are.

        :raises Unavailable: it did not answer the last time, and another request is waiting for it.
        """
        alone = self._since is not None
        if alone and not self._trying.acquire(blocking=False):
            raise Unavailable("The database does not answer. Please try again later.")
        try:
            yield
        except Exception as error:
            self._note(timeout=errors.is_timeout(error))
            raise
        else:
            self._note(timeout=False)
        finally:
            if alone:
                self._trying.release()

    def _note(self, *, timeout: bool) -> None:
        if timeout and self._since is None:
            self._since = time.monotonic()
            LOG.error(
                "the database does not answer: until it does, one request at a time waits for it, and others "
                "are answered 503; see the limits in [placement_database], and the network between"
            )
        elif not timeout and self._since is not None:
            LOG.warning("the database answers again, after %.0f seconds", time.monotonic() - self._since)
            self._since = None
