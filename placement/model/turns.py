"""Whose turn it is: requests look at the model one after the other, long ones in slices in between."""

import threading
import time
from types import TracebackType
from typing import Final

from placement.exceptions import Unavailable
from placement.model.snapshot import ModelSnapshot

_PAUSE: Final = 0.0002
"""Seconds in which whoever waits for the interpreter gets it."""
LONG_REQUESTS: Final = 2
"""Requests that may be long at the same time, where nobody says how many threads answer requests."""


class ReadGate:
    """The locks of a model.

    :param long_requests: so many requests at once may give way, others that would are refused.
    """

    def __init__(self, long_requests: int = LONG_REQUESTS) -> None:
        #: held in part by each request that gave way before, until it ends
        self.long_requests = threading.BoundedSemaphore(long_requests)
        #: held by the one request that may bring the model up to date
        self.first = threading.RLock()
        #: held by one of the requests that gave way before
        self.later = threading.Lock()
        #: held to count who keeps a snapshot
        self.counting = threading.Lock()
        #: how many keep one
        self.keepers = 0

    def keep(self, snapshot: ModelSnapshot) -> None:
        """From now on nobody changes this snapshot, until :meth:`let_go` is called as often.

        To be called within the turn: of several who look at it later none may bring its trees up to date.
        """
        snapshot.whole_trees()
        with self.counting:
            snapshot.keepers += 1
            self.keepers += 1

    def let_go(self, snapshot: ModelSnapshot) -> None:
        """Undo :meth:`keep`."""
        with self.counting:
            snapshot.keepers -= 1
            self.keepers -= 1


class ReadTurn:
    """The turn of one request: it begins when nobody else has the model, and ends with the context."""

    def __init__(self, turns: ReadGate) -> None:
        self._turns = turns
        self._kept: ModelSnapshot | None = None
        self._slice_held = False

    def __enter__(self) -> "ReadTurn":
        self._turns.first.acquire()
        return self

    def give_way(self, snapshot: ModelSnapshot) -> None:
        """Let others have their turn; nobody changes this snapshot meanwhile, nor until the turn ends.

        :raises Unavailable: too many others go on like this already.
        """
        if self._kept is None:
            if not self._turns.long_requests.acquire(blocking=False):
                raise Unavailable(
                    "This worker has as many long requests in hand as it may. "
                    "Please try again in a few seconds, or ask for less at once."
                )
            self._turns.keep(snapshot)
            self._kept = snapshot
            self._turns.first.release()
        else:
            self._slice_held = False
            self._turns.later.release()
        time.sleep(_PAUSE)
        self._turns.later.acquire()
        self._slice_held = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._kept is None:
            self._turns.first.release()
            return
        if self._slice_held:
            self._turns.later.release()
        self._turns.let_go(self._kept)
        self._turns.long_requests.release()
