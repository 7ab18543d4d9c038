"""The guests as the agent has them in mind: what they hold, where they are, and what is still to be done for
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from compute_agent.drivers.base import Guest
from compute_agent.pipeline.world import Allocation
from compute_agent.policy.base import Assignment


@dataclass(slots=True)
class CachedGuest:
    """One guest.

    ``allocation`` is what Placement last said (None: never heard), ``as_of`` when it was asked (monotonic
    seconds). ``assignment`` None: left where it is, and ``refusal`` says why if that is for want of a place.
    ``pending`` are the controllers that have yet to put the assignment into effect.
    """

    guest: Guest
    allocation: Allocation | None = None
    assignment: Assignment | None = None
    refusal: str = ""
    pending: set[str] = field(default_factory=set)
    as_of: float = 0.0


class Cache:
    """Guests by uuid. Used by the worker, under the pipeline's lock."""

    def __init__(self, domains: frozenset[str]) -> None:
        """``domains`` are the names of all controllers."""
        self._domains = domains
        self.guests: dict[str, CachedGuest] = {}

    def assign(self, entry: CachedGuest, assignment: Assignment | None) -> None:
        """Give a guest an assignment, and every controller something to do if it is another one."""
        if assignment != entry.assignment:
            entry.pending = set(self._domains) if assignment is not None else set()
        entry.assignment = assignment

    def mark_all(self, entry: CachedGuest) -> None:
        """Have every controller look at a guest."""
        if entry.assignment is not None:
            entry.pending = set(self._domains)

    def pending(self, domain: str) -> Iterator[CachedGuest]:
        """The guests that a controller has something to do for."""
        return (entry for entry in list(self.guests.values()) if domain in entry.pending)

    def holdings(self) -> dict[str, frozenset[int]]:
        """The dedicated CPUs that guests hold, by guest."""
        return {
            uuid: entry.assignment.held
            for uuid, entry in self.guests.items()
            if entry.assignment is not None and entry.assignment.held
        }
