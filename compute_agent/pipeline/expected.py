"""Guests that are about to start: their cache groups are made, and filled, before the driver can see them.

All else of a guest waits until it has started: whoever starts it still sets its CPUs and its memory himself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from compute_agent.drivers import procfs
from compute_agent.model.guest import Allocation, Guest
from compute_agent.pipeline.cache import GuestCache

KEPT_SECONDS: Final = 60.0
"""How long a guest is expected without a process: who has none by then will not start."""

STARTING_SECONDS: Final = 600.0
"""How long one with a process is: gigabytes of huge pages take their time."""


@dataclass(frozen=True, slots=True)
class ExpectedGuest:
    """``guest`` has pid 0 until its process is there; ``delay`` is how old that was when it had its group."""

    guest: Guest
    allocation: Allocation | None
    until: float
    delay: float | None = None


class ExpectedGuests:
    """The guests that are expected. Used by the worker, under the pipeline's lock."""

    def __init__(self, cache: GuestCache, now: Callable[[], float] = time.monotonic) -> None:
        self._cache = cache
        self._now = now
        self._expected: dict[str, ExpectedGuest] = {}

    def add(self, guest: Guest, allocation: Allocation | None) -> None:
        """Expect a guest."""
        self._expected[guest.uuid] = ExpectedGuest(guest, allocation, self._now() + KEPT_SECONDS)
        self._cache.synced = False

    def found(self, guest: Guest) -> ExpectedGuest | None:
        """Know of the process of a guest; None if it is not expected."""
        one = self._expected.get(guest.uuid)
        if one is None:
            return None
        found = replace(one, guest=guest, until=self._now() + STARTING_SECONDS)
        self._expected[guest.uuid] = found
        return found

    def waiting(self) -> list[ExpectedGuest]:
        """Those that are not among the guests yet; who did not come in time, or ended, is forgotten."""
        now = self._now()
        self._expected = {
            uuid: one
            for uuid, one in self._expected.items()
            if one.until > now and (not one.guest.pid or procfs.age(one.guest.pid) is not None)
        }
        return [one for uuid, one in self._expected.items() if self._cache.get(uuid) is None]

    def note_delay(self, guest: Guest) -> None:
        """The process of an expected guest has its group as of now."""
        if (one := self._expected.get(guest.uuid)) is not None:
            self._expected[guest.uuid] = replace(one, delay=procfs.age(guest.pid))

    def delay_of(self, guest: Guest) -> float | None:
        """How old the process of a guest was when it had its cache group: so far, if it was not expected.

        None if it is gone. The guest is not expected any more.
        """
        one = self._expected.pop(guest.uuid, None)
        known = None if one is None or one.guest.pid != guest.pid else one.delay
        return procfs.age(guest.pid) if known is None else known
