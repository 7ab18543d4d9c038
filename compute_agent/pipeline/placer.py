"""From what guests hold to where they run: the policy, asked for one guest at a time."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from compute_agent.drivers.base import Guest
from compute_agent.host import cpuset
from compute_agent.inventory.tree import Allocation
from compute_agent.pipeline.cache import Cache, CachedGuest
from compute_agent.pipeline.world import World, request_for
from compute_agent.policy.base import Assignment, Refusal, refit
from compute_agent.policy.readback import read_back
from compute_agent.policy.rebalance import best_move

LOG = logging.getLogger(__name__)


class Placer:
    """Gives the guests of the cache their assignments in a world, which may be replaced. Used by the worker
    only.
    """

    def __init__(self, world: World, cache: Cache) -> None:
        self.world = world
        self._cache = cache
        self._balanced: object = None
        """What there was when the last look found nobody to move."""

    def decide(
        self, guest: Guest, allocation: Allocation, current: Assignment | None = None
    ) -> Assignment | Refusal | None:
        """Where a guest goes; where it is (``current``) if that still serves it. None: it is left alone."""
        world = self.world
        request = request_for(world, guest, allocation)
        if not world.places or not (request.demands or world.place_unallocated):
            LOG.debug("Guest %s is left alone", guest)
            return None
        supply = world.supply(self._cache.holdings())
        if current is not None and (kept := refit(supply, request, current)) is not None:
            LOG.debug("Guest %s stays where it is: that serves %s", guest, world.told(allocation))
            return kept
        decision = world.policy(supply, request)
        LOG.debug(
            "Guest %s, holding %s, thread policy %s, of %d CPUs free for it, gets %s",
            guest,
            world.told(allocation),
            request.thread_policy,
            len(world.cpu_sets.dedicated - supply.taken(request)),
            decision,
        )
        return decision

    def place(self, entry: CachedGuest) -> None:
        """Decide anew where a guest goes. Nothing as long as it is not known what it may use."""
        if entry.allocation is None:
            return
        decision = self.decide(entry.guest, entry.allocation, entry.assignment)
        if isinstance(decision, Refusal):
            if entry.refusal != decision.reason:
                LOG.warning("Guest %s stays where it is: %s", entry.guest, decision.reason)
            entry.refusal = decision.reason
            return
        entry.refusal = ""
        if decision != entry.assignment:
            self._cache.assign(entry, decision)
            LOG.info("Guest %s%s", entry.guest, where(entry))

    def place_unknown(self, entry: CachedGuest) -> None:
        """Keep a guest off the CPUs of others until it is known what it may use."""
        place = self.decide(entry.guest, {})
        self._cache.assign(entry, None if isinstance(place, Refusal) else place)

    def place_refused(self) -> None:
        """Somebody gave CPUs back: those who were refused may find a place now."""
        for entry in self._cache:
            if entry.refusal:
                self.place(entry)

    def place_all(self) -> None:
        """The world is another one: every guest may have another place, every controller another task."""
        for entry in self._cache:
            self._cache.mark(entry)
            self.place(entry)

    def rebalance(self) -> None:
        """Move one running guest, if it is configured that guests are moved and one gains enough."""
        world = self.world
        if world.rebalance_gain is None:
            return
        guests = [
            (request_for(world, entry.guest, entry.allocation), entry.assignment)
            for entry in self._cache
            if entry.allocation and entry.assignment and not entry.refusal and not entry.pending
        ]
        supply = world.supply(self._cache.holdings())
        present = (world, guests, supply.holdings)
        if present == self._balanced:
            return
        move = best_move(supply, world.policy, guests, world.rebalance_gain)
        entry = self._cache.get(move.guest) if move is not None else None
        if move is None or entry is None:
            self._balanced = present
            return
        self._cache.assign(entry, move.assignment)
        LOG.info("Guest %s is moved, gaining %.1f: it runs%s", entry.guest, move.gain, where(entry))

    def found(
        self, guest: Guest, observed: frozenset[int], vcpu_cpus: Mapping[int, frozenset[int]]
    ) -> Assignment | None:
        """The assignment of a guest that nobody remembers, from the CPUs that the kernel lets it, and each of
        its guest CPUs as far as they are known, use.
        """
        if not self.world.places:
            return None
        supply = self.world.supply(self._cache.holdings())
        return read_back(supply, request_for(self.world, guest, {}), observed, vcpu_cpus)


def where(entry: CachedGuest) -> str:
    """Where a guest runs, as the end of a sentence in the log."""
    if entry.assignment is None:
        return " where it likes, and it is left there"
    kind = "dedicated" if entry.assignment.dedicated else "shared"
    return f" on {kind} CPUs {cpuset.format(entry.assignment.cpus)}"
