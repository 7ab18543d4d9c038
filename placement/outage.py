"""While somebody does not answer at all, one request of a worker tries, and the others are told at once."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from placement.exceptions import Unavailable


class PeerOutage(ABC):
    """Keeps requests from all waiting for somebody who swallows what he is sent.

    A worker has a few threads. If each of them waited until its limit, none would be left for requests
    that need nobody else, such as health checks.
    """

    #: what the others are told
    refusal: ClassVar[str]

    def __init__(self) -> None:
        self._since: float | None = None
        self._trying = threading.Lock()

    @abstractmethod
    def is_unanswered(self, error: Exception) -> bool:
        """Whether the error means that there was no answer, not even a bad one."""

    @abstractmethod
    def log_begin(self, error: Exception) -> None:
        """For the log: nobody answers any more."""

    @abstractmethod
    def log_end(self, seconds: float) -> None:
        """For the log: there are answers again, after so long."""

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Ask in this context; errors leave it as they are.

        :raises Unavailable: there was no answer the last time, and another request is waiting for one.
        """
        alone = self._since is not None
        if alone and not self._trying.acquire(blocking=False):
            raise Unavailable(self.refusal)
        try:
            yield
        except Exception as error:
            if self.is_unanswered(error):
                self._begin(error)
            else:
                self._end()
            raise
        else:
            self._end()
        finally:
            if alone:
                self._trying.release()

    def _begin(self, error: Exception) -> None:
        if self._since is None:
            self._since = time.monotonic()
            self.log_begin(error)

    def _end(self) -> None:
        since = self._since
        if since is not None:
            self._since = None
            self.log_end(time.monotonic() - since)
