"""Seeing guests off: ask to stop, kill after the grace period, give the allocation back."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from compute_agent.threads import ONCE, ThreadSpec, run_aside

LOG = logging.getLogger(__name__)

_AT_A_TIME: Final = 8
"""Guests that are stopped together; the others wait."""

EVICTION_THREAD: Final = ThreadSpec(
    "evict",
    ONCE,
    "stops one guest, and gives its allocation back as soon as Placement takes it",
    f"a semaphore of {_AT_A_TIME}",
    "the driver or the operator's command; the worker; Placement",
)


class EvictionFailedError(Exception):
    """The guest is still there; the text says why."""


Stop = Callable[[str], None]
"""Makes a guest, named by its uuid, leave; it has left, or an exception tells why not. May be repeated."""


class GuestEvictor:
    """Evictions in progress, each in a thread of its own. begin() and finished() are for one thread.

    An agent that ends does not wait for them: the next one finds them in the state, and begins them anew.
    """

    def __init__(self, stop: Stop, give_back: Callable[[str], None]) -> None:
        """``give_back`` takes the guest's allocation on this host from it.

        Repeating it is no error, and it may take as long as Placement is away.
        """
        self._stop = stop
        self._give_back = give_back
        self._turn = threading.BoundedSemaphore(_AT_A_TIME)
        self._running: set[str] = set()
        self._over: queue.SimpleQueue[tuple[str, Exception | None]] = queue.SimpleQueue()

    def begin(self, guest: str, stop: Stop | None = None) -> None:
        """Have a guest leave, in a way of its own if ``stop`` is one; nothing if it is on its way already."""
        if guest not in self._running:
            self._running.add(guest)
            run_aside(EVICTION_THREAD, partial(self._see_off, guest, stop or self._stop), f"-{guest}")

    def finished(self) -> dict[str, Exception | None]:
        """The guests that have left since the last call (None), or that stay, and why."""
        over = {}
        while not self._over.empty():
            guest, error = self._over.get()
            self._running.discard(guest)
            over[guest] = error
        return over

    def _see_off(self, guest: str, stop: Stop) -> None:
        try:
            with self._turn:
                stop(guest)
            # Only now: an allocation given back earlier would let the next guest in beside this one.
            self._give_back(guest)
        except Exception as error:  # an operator's command or another package's code may do anything
            self._over.put((guest, error))
        else:
            self._over.put((guest, None))
