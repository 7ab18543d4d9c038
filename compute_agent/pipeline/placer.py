"""Placement of guests on CPUs: the policy, called for one guest at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from compute_agent.events.event import EventKind, EventRecorder
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import UNCONSTRAINED, Allocation, CpuAssignment, Guest
from compute_agent.model.guest_settings import MemoryType
from compute_agent.model.messages import GuestGoneError, full_name
from compute_agent.pipeline.guest_cache import CachedGuest, GuestCache
from compute_agent.pipeline.host_state import HostState, memory_nodes, request_for
from compute_agent.policy import POLICIES
from compute_agent.policy.base import CpuSupply, GuestRequest, PlacementRefusal
from compute_agent.policy.constraints import refit_within
from compute_agent.policy.policies import KernelPlacement, found_assignment
from compute_agent.policy.running_guests import best_move, confine_guest, keep_dedicated, may_stay, read_back
from compute_agent.policy.shared_cpus import admit_guest, refuse_outside

LOG = logging.getLogger(__name__)


class GuestPlacer:
    """Gives the guests of the cache their assignments in a world, which may be replaced.

    Used by the worker only.
    """

    def __init__(
        self,
        world: HostState,
        cache: GuestCache,
        observe: Callable[[Guest], KernelPlacement],
        recorder: EventRecorder,
    ) -> None:
        """``observe`` tells where the kernel has a guest now; it may raise GuestGoneError."""
        self.world = world
        self._recorder = recorder
        self._cache = cache
        self._observe = observe
        self.use: Mapping[str, float] = {}
        """What guests use of CPUs, in cores, as far as it has been measured."""
        self._balanced: object = None
        """What there was when the last look found nobody to move."""
        self._synced: tuple[HostState, Mapping[str, CpuSet]] | None = None
        """What there was when all guests were last brought in line with it: the world, and who held what."""
        self._contested: tuple[HostState, CpuSet] | None = None
        """What of the CPUs that guests float on was held then."""

    def decide(
        self, guest: Guest, allocation: Allocation, current: CpuAssignment | None = None
    ) -> CpuAssignment | PlacementRefusal | None:
        """Where a guest goes; where it is (``current``) if that still serves it. None: it is left alone."""
        world = self.world
        request = request_for(world, guest, allocation)
        is_placed = world.pins and not guest.settings.preserve
        if not is_placed or not (request.demands or world.place_unallocated):
            LOG.debug("Guest %s is left alone", guest)
            return None
        if (refusal := self._admit(guest, request, current)) is not None:
            return refusal
        supply = world.supply(self._cache.holdings(), self.use)
        if current is not None and (kept := refit_within(supply, request, current)) is not None:
            LOG.debug("Guest %s stays where it is: that serves %s", guest, world.in_words(allocation))
            return kept
        decision = world.policy(supply, request)
        LOG.debug(
            "Guest %s, holding %s, thread policy %s, of %d CPUs free for it, gets %s",
            guest,
            world.in_words(allocation),
            request.thread_policy,
            len(world.cpu_sets.dedicated - supply.taken_cpus(request)),
            decision,
        )
        return decision

    def _admit(
        self, guest: Guest, request: GuestRequest, current: CpuAssignment | None
    ) -> PlacementRefusal | None:
        """Why a guest cannot be in the pools that it holds CPUs of; None if it can."""
        if self.world.pools_only and (outside := refuse_outside(request.demands)) is not None:
            return outside
        wanted = {demand.pool: demand.cpus for demand in request.demands if demand.pool}
        if not wanted:
            return None
        members = 0
        if current is None or current.cpus.isdisjoint(frozenset().union(*wanted.values())):
            others = [
                entry.assignment.cpus
                for entry in self._cache
                if entry.assignment is not None and not entry.refusal and entry.guest.uuid != guest.uuid
            ]
            members = max(sum(not cpus.isdisjoint(other) for other in others) for cpus in wanted.values())
        return admit_guest(self.world.pools, wanted, guest.settings.qos_class, members)

    def place(self, entry: CachedGuest) -> None:
        """Decide anew where a guest goes. One without a place is kept off the CPUs of others."""
        if self._is_followed(entry):
            self._follow(entry)
            return
        if entry.allocation is None:
            self._place_unknown(entry)
            return
        before, was_refused = entry.assignment, bool(entry.refusal)
        self._place_as(entry, self.decide(entry.guest, entry.allocation, before))
        if was_refused and not entry.refusal:
            self._tell_place(entry, "Guest %s has a place now: it runs%s")
        elif entry.assignment != before and not entry.refusal:
            self._tell_place(entry, "Guest %s%s")

    def _place_as(self, entry: CachedGuest, decision: CpuAssignment | PlacementRefusal | None) -> None:
        if isinstance(decision, PlacementRefusal):
            if decision.leave:
                self._leave(entry, decision.reason)
            else:
                self._confine(entry, decision.reason)
            return
        entry.refusal = ""
        self._cache.assign(entry, decision)

    def place_all(self) -> None:
        """The world is another one: every guest may have another place, every controller another task."""
        for entry in self._cache:
            self._cache.mark(entry)
            self.take_up(entry)

    def take_up(self, entry: CachedGuest) -> None:
        """Place a guest that runs already.

        One of which nothing is known stays where it is as long as nobody holds any CPU.
        """
        is_known = entry.allocation is not None or entry.assignment is not None
        if self._is_followed(entry) or is_known or self._cache.holdings():
            self.place(entry)

    def follow(self) -> None:
        """Read where those guests run that the agent does not place."""
        for entry in self._cache:
            if self._is_followed(entry):
                self._follow(entry)

    def _is_followed(self, entry: CachedGuest) -> bool:
        """Whether the agent accepts the CPUs that a guest has: the policy does, or the guest is preserved."""
        return self.world.follows or entry.guest.settings.preserve

    def _follow(self, entry: CachedGuest) -> None:
        try:
            found = self._observe(entry.guest)
        except GuestGoneError:
            return  # its stop event is on its way
        before, entry.refusal = entry.assignment, ""
        if self.world.follows and not entry.guest.settings.preserve:
            found = replace(found, mems=self._memory_of_kind(entry, found.mems))
        self._cache.assign(entry, found_assignment(self.world.cpu_sets, entry.guest.settings.vcpus, found))
        if entry.assignment != before:
            self._tell_place(entry, "Guest %s is found%s")

    def _memory_of_kind(self, entry: CachedGuest, bound: frozenset[int]) -> frozenset[int]:
        """The NUMA nodes with the memory type of a guest that another program has placed.

        ``bound`` are the nodes that its memory is bound to now, empty if it is not bound. These are the
        result for a guest without a memory type, on a host without that type, and where another program
        bound the memory to other nodes.
        """
        wanted = entry.guest.settings.memory_type
        if wanted is MemoryType.ANY:
            return bound
        kinds = self.world.topology.memory_types
        nodes = memory_nodes(self.world, entry.guest, entry.allocation or {})
        of_kind = frozenset(node for node in nodes if kinds.get(node) is wanted)
        return of_kind if of_kind and bound <= of_kind else bound

    def sync(self) -> None:
        """Bring all guests in line with what is held by now; for the end of every event.

        Those that were refused may find a place where CPUs were given back. Those that float leave the CPUs
        that are held, and come back to others. Nobody who has a place gets other dedicated CPUs by that.
        """
        if not self.world.pins:
            self._synced = None
            for entry in self._cache:
                if self._is_followed(entry) and entry.assignment is None:
                    self._follow(entry)
            self._log_strays()
            return
        for _ in range(len(self._cache) + 1):  # whoever finds a place may give another one back
            present = self.world, self._cache.holdings()
            if present == self._synced:
                return
            for entry in self._cache:
                if entry.refusal:
                    self.place(entry)
            self._keep_apart()
            self._log_strays()
            self._synced = present

    def move(self, entry: CachedGuest) -> CpuAssignment | PlacementRefusal | None:
        """Where a guest would go within the present CPU sets; None if it has no CPUs outside them."""
        if not entry.stray:
            return None
        supply, request = self._case(entry)
        return self.world.policy(supply, request)

    def _log_strays(self) -> None:
        """Warn, once, of guests that hold CPUs which the present sets do not have."""
        sets, reachable = self.world.cpu_sets, self.world.reachable
        is_known = self.world.pins or self.world.follows  # with policy none nothing is known of CPUs
        for entry in self._cache:
            guest = entry.guest
            stray = ""
            if entry.assignment is not None and is_known and not guest.settings.preserve:
                stray = sets.describe_strays(entry.assignment.held_cpus, reachable, self._reach(entry))
            if stray and stray != entry.stray:
                LOG.warning("%s", stray_warning(guest.uuid, stray, guest.name))
            elif entry.stray and not stray:
                LOG.info("Guest %s holds no CPUs outside the present sets any more", guest)
            entry.stray = stray

    def _reach(self, entry: CachedGuest) -> CpuSet | None:
        """The CPUs of a guest's pools, or of no pool; None where there are no pools, or that is not known."""
        if not entry.allocation or not self.world.has_pools:
            return None
        demands = request_for(self.world, entry.guest, entry.allocation).demands
        return frozenset().union(*(demand.cpus for demand in demands))

    def _keep_apart(self) -> None:
        """Have everybody float on what nobody holds."""
        sets, reachable = self.world.cpu_sets, self.world.reachable
        held = frozenset[int]().union(*self._cache.holdings().values())
        floated_on = sets.shared | sets.emulator | (sets.dedicated if self.world.lends else frozenset())
        before, self._contested = self._contested, (self.world, held & floated_on)
        # Mostly nobody holds a CPU that others float on: then nobody who has a place has to look for another.
        idle = self._contested == before and not self._contested[1]
        for entry in self._cache:
            assignment = entry.assignment
            if entry.guest.settings.preserve:
                continue  # it keeps the CPUs that it has, whose they are
            if assignment is not None and reachable.isdisjoint(assignment.cpus):
                self._cache.mark(entry)  # it is on spare CPUs, and these may be held by now
            if entry.allocation is None:
                self.take_up(entry)
            elif assignment is None or entry.refusal or idle:
                continue
            elif entry.guest.constraints != UNCONSTRAINED:
                self._place_as(entry, self.decide(entry.guest, entry.allocation, assignment))
            elif assignment.held_cpus:
                self._cache.assign(entry, keep_dedicated(*self._case(entry), assignment) or assignment)
            else:
                self._place_as(entry, self.decide(entry.guest, entry.allocation, assignment))

    def _place_unknown(self, entry: CachedGuest) -> None:
        """Keep a guest off the CPUs of others until it is known what it may use."""
        supply, request = self._case(entry)
        current = entry.assignment
        if request.constraints != UNCONSTRAINED:
            return  # what keeps it off the CPUs of others might be what its definition forbids
        if current is not None and may_stay(current, supply.taken_cpus(request), self.world.reachable):
            return
        place = keep_dedicated(supply, request, current) if current is not None else None
        decision = place or self.decide(entry.guest, {})
        # A guest that holds nothing may be left alone, where that is configured: once it is known to.
        unsure = decision is None and self.world.pins and bool(supply.taken_cpus(request))
        if unsure or isinstance(decision, PlacementRefusal):
            decision = confine_guest(supply, request)
        if decision is not None and current is not None:
            decision = replace(decision, mems=current.mems)  # which it may have is not known either
        self._cache.assign(entry, decision)

    def _confine(self, entry: CachedGuest, reason: str) -> None:
        """Put a guest that has no place where it is in nobody's way.

        It keeps what it has if it may hold any dedicated CPUs at all.
        """
        supply, request = self._case(entry)
        current = entry.assignment if request.pcpu else None
        place = keep_dedicated(supply, request, current) if current is not None else None
        # One that was never placed may be pinned by somebody else: a reshape at start goes by that.
        undisturbed = entry.assignment is None and not supply.cpu_sets.shared and not self._cache.holdings()
        place = place or (None if undisturbed else confine_guest(supply, request))
        self._cache.assign(entry, place)
        if undisturbed:
            reason += "; it is left where it is as long as nobody holds any CPU"
        elif place is None:
            reason += "; it is left where it is, as other guests hold all CPUs"
        before, entry.refusal = entry.refusal, reason
        if before != reason:
            self._recorder.record_done(
                LOG.warning,
                EventKind.REFUSE,
                entry.guest,
                "Guest %s has no place: %s; it runs%s",
                reason,
                where(entry),
            )

    def _leave(self, entry: CachedGuest, reason: str) -> None:
        """Let a guest be whose definition cannot be met: whoever wrote that knows why it says so."""
        reason += "; it is left where it is"
        before, entry.refusal = entry.refusal, reason
        if before != reason:
            self._recorder.record_done(
                LOG.warning, EventKind.REFUSE, entry.guest, "Guest %s has no place: %s", reason
            )

    def _case(self, entry: CachedGuest) -> tuple[CpuSupply, GuestRequest]:
        request = request_for(self.world, entry.guest, entry.allocation or {})
        return self.world.supply(self._cache.holdings(), self.use), request

    def rebalance(self) -> None:
        """Move one running guest, if it is configured that guests are moved and one gains enough."""
        world = self.world
        if world.rebalance_gain is None:
            return
        guests = [
            (request_for(world, entry.guest, entry.allocation), entry.assignment)
            for entry in self._cache
            if entry.allocation
            and entry.assignment
            and not (entry.refusal or entry.pending or entry.migration or entry.guest.settings.preserve)
        ]
        supply = world.supply(self._cache.holdings(), self.use)
        present = (world, guests, supply.holdings, self.use)
        if present == self._balanced:
            return
        move = best_move(supply, world.policy, guests, world.rebalance_gain)
        entry = self._cache.get(move.guest) if move is not None else None
        if move is None or entry is None:
            self._balanced = present
            return
        self._cache.assign(entry, move.assignment)
        told, reason = "Guest %s is moved, gaining %.1f: it runs%s", self.because(entry.allocation)
        self._recorder.record_done(
            LOG.info, EventKind.MOVE, entry.guest, told, move.gain, where(entry), reason=reason
        )

    def because(self, allocation: Allocation | None) -> str:
        """Why a guest is where it is, in words: what it holds, and of what there was to choose."""
        world = self.world
        if world.follows:
            return "somebody else has it there, which policy follow goes by"
        if allocation is None:
            return "what it holds is not known yet"
        held = frozenset[int]().union(*self._cache.holdings().values())
        dedicated = world.cpu_sets.dedicated
        free = f"{len(dedicated - held)} of {len(dedicated)} dedicated CPUs free"
        name = next((name for name, policy in POLICIES.items() if policy is world.policy), "")
        return f"it holds {world.in_words(allocation)}; policy {name} left {free}"

    def _tell_place(self, entry: CachedGuest, message: str) -> None:
        reason = self.because(entry.allocation)
        self._recorder.record_done(
            LOG.info, EventKind.PLACE, entry.guest, message, where(entry), reason=reason
        )

    def read_back(self, guest: Guest, found: KernelPlacement) -> CpuAssignment | None:
        """The assignment of a guest that nobody remembers, from where the kernel lets it run."""
        if not self.world.pins:
            return None
        supply = self.world.supply(self._cache.holdings(), self.use)
        request = request_for(self.world, guest, {})
        return read_back(supply, request, found.cpus, found.vcpu_cpus, found.mems)


def stray_warning(uuid: str, stray: str, name: str = "") -> str:
    """The warning of a guest that holds CPUs which the present sets do not have."""
    return (
        f"Guest {full_name(name, uuid)} stays where it is, and nobody else gets its CPUs, but {stray}:"
        f" compute-agent guest move {uuid} moves it into the present sets"
    )


def where(entry: CachedGuest) -> str:
    """Where a guest runs, as the end of a sentence in the log."""
    if entry.assignment is None:
        return " where it likes, and it is left there"
    if entry.assignment.dedicated:
        kind = "dedicated CPUs"
    else:
        kind = "CPUs that nobody holds," if entry.refusal else "shared CPUs"
    return f" on {kind} {cpuset.format(entry.assignment.cpus)}"
