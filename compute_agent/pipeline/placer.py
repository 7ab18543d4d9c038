"""The placer assigns CPUs to the guests in the cache, and calls the policy for one guest at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from compute_agent.events.event import EventKind, EventRecorder
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import UNCONSTRAINED, Allocation, CpuAssignment, Guest
from compute_agent.model.guest_settings import MemoryType
from compute_agent.model.messages import GuestGoneError, full_name
from compute_agent.pipeline.guest_cache import CachedGuest, GuestCache
from compute_agent.pipeline.host_state import HostState, memory_nodes, request_for
from compute_agent.policy import POLICIES
from compute_agent.policy.base import CpuSupply, GuestRequest, PlacementRefusal
from compute_agent.policy.constraints import refit_within
from compute_agent.policy.load_profiles import LoadProfile
from compute_agent.policy.policies import KernelPlacement, found_assignment
from compute_agent.policy.running_guests import best_move, confine_guest, keep_dedicated, may_stay, read_back
from compute_agent.policy.shared_cpus import admit_guest, refuse_outside

LOG = logging.getLogger(__name__)


class GuestPlacer:
    """Assigns CPUs to the guests of the cache. Only the worker of the pipeline uses this object."""

    def __init__(
        self, cache: GuestCache, observe: Callable[[Guest], KernelPlacement], recorder: EventRecorder
    ) -> None:
        """Place the guests of ``cache``.

        :param observe: reads the CPUs and memory nodes that the kernel lets a guest use; can raise
            GuestGoneError.
        """
        self._recorder = recorder
        self._cache = cache
        self._observe = observe
        self.use: Mapping[str, LoadProfile] = {}
        """The measured CPU use of guests in cores by hour of the week, by uuid."""
        self.recent_use: Mapping[str, LoadProfile] = {}
        """The mean CPU use of guests in the last minutes, in the same form as ``use``."""
        self._balanced: object = None
        """The inputs of the last search that found no guest to move. Equal inputs need no new search."""
        self._synced: tuple[HostState, Mapping[str, CpuSet]] | None = None
        """The host state and held CPUs before the last pass of sync(). If host state and held CPUs are
        unchanged, no further pass is needed.
        """
        self._contested: tuple[HostState, CpuSet] | None = None
        """The host state, and the held CPUs on which guests may also float, at the last _keep_apart()."""

    @property
    def host_state(self) -> HostState:
        """The present state of the host."""
        return self._cache.host_state

    def decide_place(
        self, guest: Guest, allocation: Allocation, current: CpuAssignment | None = None
    ) -> CpuAssignment | PlacementRefusal | None:
        """Decide on the CPUs of a guest: an assignment or a refusal.

        If the assignment ``current`` is enough for the guest, the result is based on ``current``. The result
        is None if the agent does not place the guest.
        """
        host_state = self.host_state
        request = request_for(host_state, guest, allocation)
        is_placed = host_state.places_guests and not guest.settings.preserve
        if not is_placed or not (request.demands or host_state.place_unallocated):
            LOG.debug(
                "The agent chooses no CPUs for guest %s: [policy] name or the guest's setting preserve"
                " excludes it, or the guest has no allocation",
                guest,
            )
            return None
        if (refusal := self._admit_to_pools(guest, request, current)) is not None:
            return refusal
        supply = host_state.cpu_supply(self._cache.held_cpus(), self.use)
        if current is not None and (kept := refit_within(supply, request, current)) is not None:
            LOG.debug(
                "Guest %s stays on its CPUs, which are enough for %s", guest, host_state.in_words(allocation)
            )
            return kept
        decision = host_state.policy(supply, request)
        LOG.debug(
            "Guest %s with allocation %s and thread policy %s, for which %d CPUs are free, gets %s",
            guest,
            host_state.in_words(allocation),
            request.thread_policy,
            len(host_state.cpu_sets.dedicated - supply.taken_cpus(request)),
            decision,
        )
        return decision

    def _admit_to_pools(
        self, guest: Guest, request: GuestRequest, current: CpuAssignment | None
    ) -> PlacementRefusal | None:
        """The refusal of a guest by a pool in its allocation; None if all pools admit the guest."""
        if self.host_state.pools_only and (outside := refuse_outside(request.demands)) is not None:
            return outside
        wanted = {demand.pool: demand.cpus for demand in request.demands if demand.pool}
        if not wanted:
            return None
        # A guest with CPUs of the pool is a member already. Other members are counted only for a new guest.
        members = 0
        if current is None or current.cpus.isdisjoint(frozenset().union(*wanted.values())):
            others = [
                entry.assignment.cpus
                for entry in self._cache
                if entry.assignment is not None and not entry.refusal and entry.guest.uuid != guest.uuid
            ]
            members = max(sum(not cpus.isdisjoint(other) for other in others) for cpus in wanted.values())
        return admit_guest(self.host_state.pools, wanted, guest.settings.qos_class, members)

    def place_guest(self, entry: CachedGuest) -> None:
        """Place a guest by its current request. A refused guest is confined to CPUs that no guest holds."""
        if self._is_followed(entry):
            self._follow_guest(entry)
            return
        if entry.allocation is None:
            self._place_unknown(entry)
            return
        before, was_refused = entry.assignment, bool(entry.refusal)
        self._place_as(entry, self.decide_place(entry.guest, entry.allocation, before))
        if was_refused and not entry.refusal:
            self._tell_place(entry, "Guest %s has CPUs now: it runs%s")
        elif entry.assignment != before and not entry.refusal:
            self._tell_place(entry, "Guest %s runs%s")

    def _place_as(self, entry: CachedGuest, decision: CpuAssignment | PlacementRefusal | None) -> None:
        if isinstance(decision, PlacementRefusal):
            if decision.leave:
                self._leave_in_place(entry, decision.reason)
            else:
                self._confine_guest(entry, decision.reason)
            return
        entry.refusal = ""
        self._cache.assign_cpus(entry, decision)

    def place_all(self) -> None:
        """Place all guests after a change of the host, and mark all controllers as pending."""
        for entry in self._cache:
            self._cache.mark_pending(entry)
            self.take_up(entry)

    def take_up(self, entry: CachedGuest) -> None:
        """Place a guest that runs already.

        A guest without a known allocation or assignment stays on its CPUs while no guest holds dedicated
        CPUs.
        """
        is_known = entry.allocation is not None or entry.assignment is not None
        if self._is_followed(entry) or is_known or self._cache.held_cpus():
            self.place_guest(entry)

    def follow_guests(self) -> None:
        """Read from the kernel the CPUs of the guests that another program places."""
        for entry in self._cache:
            if self._is_followed(entry):
                self._follow_guest(entry)

    def _is_followed(self, entry: CachedGuest) -> bool:
        """Whether the agent leaves a guest on its CPUs: by policy ``follow``, or by setting ``preserve``."""
        return self.host_state.follows_kernel or entry.guest.settings.preserve

    def _follow_guest(self, entry: CachedGuest) -> None:
        try:
            found = self._observe(entry.guest)
        except GuestGoneError:
            return  # The guest has ended; its stop event is in the queue.
        before, entry.refusal = entry.assignment, ""
        # The agent moves the memory of a followed guest to the wanted type, but not the memory of a preserved
        # guest.
        if self.host_state.follows_kernel and not entry.guest.settings.preserve:
            found = replace(found, mems=self._memory_of_kind(entry, found.mems))
        self._cache.assign_cpus(
            entry, found_assignment(self.host_state.cpu_sets, entry.guest.settings.vcpus, found)
        )
        if entry.assignment != before:
            self._tell_place(entry, "Guest %s is found%s")

    def _memory_of_kind(self, entry: CachedGuest, bound: frozenset[int]) -> frozenset[int]:
        """The NUMA nodes for the memory of a guest that another program has placed.

        The result contains the nodes with the memory type in the guest's settings. The result is ``bound`` if
        the guest has no memory type, or if the host has no node of that type.

        :param bound: the nodes to which the memory is bound now; empty if not bound.
        """
        wanted = entry.guest.settings.memory_type
        if wanted is MemoryType.ANY:
            return bound
        kinds = self.host_state.topology.memory_types
        nodes = memory_nodes(self.host_state, entry.guest, entry.allocation or {})
        of_kind = frozenset(node for node in nodes if kinds.get(node) is wanted)
        return of_kind if of_kind and bound <= of_kind else bound

    def sync(self) -> None:
        """Adapt the assignments of all guests to the CPUs that guests now hold.

        The worker calls this method at the end of each event.

        Refused guests can get CPUs that have become free. Floating guests leave CPUs that a guest holds now,
        and return to CPUs that are free again. A guest keeps its dedicated CPUs.
        """
        if not self.host_state.places_guests:
            # The last state is dropped. If a later policy places guests, its first pass then looks at all
            # guests.
            self._synced = None
            for entry in self._cache:
                if self._is_followed(entry) and entry.assignment is None:
                    self._follow_guest(entry)
            self._log_strays()
            return
        # A guest that gets CPUs can leave other CPUs that a refused guest can use, so passes are repeated.
        # Each pass places at least one refused guest, so there are at most as many passes as guests.
        for _ in range(len(self._cache) + 1):
            present = self.host_state, self._cache.held_cpus()
            if present == self._synced:
                return
            for entry in self._cache:
                if entry.refusal:
                    self.place_guest(entry)
            self._keep_apart()
            self._log_strays()
            # ``present`` has the held CPUs from before this pass. If the pass has changed them, another pass
            # follows.
            self._synced = present

    def plan_move(self, entry: CachedGuest) -> CpuAssignment | PlacementRefusal | None:
        """The new assignment or the refusal of a guest on CPUs outside of the CPU sets.

        The result is None for a guest inside of the sets.
        """
        if not entry.stray:
            return None
        supply, request = self._supply_and_request(entry)
        return self.host_state.policy(supply, request)

    def _log_strays(self) -> None:
        """Log a warning about each guest that newly holds CPUs outside of the current CPU sets."""
        sets, reachable = self.host_state.cpu_sets, self.host_state.reachable_cpus
        # With policy none the agent does not know the CPUs of guests.
        is_known = self.host_state.places_guests or self.host_state.follows_kernel
        for entry in self._cache:
            guest = entry.guest
            stray = ""
            if entry.assignment is not None and is_known and not guest.settings.preserve:
                stray = sets.describe_strays(
                    entry.assignment.held_cpus, reachable, self._cpus_in_reach(entry)
                )
            if stray and stray != entry.stray:
                LOG.warning(
                    "CPUs outside of the current CPU sets are in use: %s",
                    stray_warning(guest.uuid, stray, guest.name),
                )
            elif entry.stray and not stray:
                LOG.info("The CPUs of guest %s no longer count as outside of the current CPU sets", guest)
            entry.stray = stray

    def _cpus_in_reach(self, entry: CachedGuest) -> CpuSet | None:
        """The CPUs of the zones and pools in a guest's allocation; None without allocation or pools."""
        if not entry.allocation or not self.host_state.has_pools:
            return None
        demands = request_for(self.host_state, entry.guest, entry.allocation).demands
        return frozenset().union(*(demand.cpus for demand in demands))

    def _keep_apart(self) -> None:
        """Move floating guest CPUs away from dedicated CPUs that other guests hold now."""
        sets, reachable = self.host_state.cpu_sets, self.host_state.reachable_cpus
        held = frozenset[int]().union(*self._cache.held_cpus().values())
        floated_on = (
            sets.shared | sets.emulator | (sets.dedicated if self.host_state.lends_cpus else frozenset())
        )
        before, self._contested = self._contested, (self.host_state, held & floated_on)
        # Usually no guest holds a CPU on which other guests float, neither before nor after the event. Then
        # all guests keep their CPUs, and are not placed again.
        idle = self._contested == before and not self._contested[1]
        for entry in self._cache:
            assignment = entry.assignment
            if entry.guest.settings.preserve:
                continue  # A preserved guest keeps its CPUs, even those that another guest holds.
            if assignment is not None and reachable.isdisjoint(assignment.cpus):
                # All CPUs of the guest are offline. The guest runs on spare CPUs, which another guest perhaps
                # holds by now.
                self._cache.mark_pending(entry)
            if entry.allocation is None:
                self.take_up(entry)
            elif assignment is None or entry.refusal or idle:
                continue
            elif entry.guest.constraints != UNCONSTRAINED:
                self._place_as(entry, self.decide_place(entry.guest, entry.allocation, assignment))
            elif assignment.held_cpus:
                self._cache.assign_cpus(
                    entry, keep_dedicated(*self._supply_and_request(entry), assignment) or assignment
                )
            else:
                self._place_as(entry, self.decide_place(entry.guest, entry.allocation, assignment))

    def _place_unknown(self, entry: CachedGuest) -> None:
        """Keep a guest with an unknown allocation off the CPUs that other guests hold."""
        supply, request = self._supply_and_request(entry)
        current = entry.assignment
        if request.constraints != UNCONSTRAINED:
            return  # The definition of the guest names CPUs or nodes, which a confinement could contradict.
        if current is not None and may_stay(
            current, supply.taken_cpus(request), self.host_state.reachable_cpus
        ):
            return
        place = keep_dedicated(supply, request, current) if current is not None else None
        decision = place or self.decide_place(entry.guest, {})
        # With [guests] unallocated = ignore, guests with an empty allocation are left alone. The allocation
        # of this guest is perhaps not empty, so the guest is confined if others hold CPUs.
        unsure = decision is None and self.host_state.places_guests and bool(supply.taken_cpus(request))
        if unsure or isinstance(decision, PlacementRefusal):
            decision = confine_guest(supply, request)
        if decision is not None and current is not None:
            # The memory stays on its nodes, because the nodes of the allocation are also unknown.
            decision = replace(decision, mems=current.mems)
        self._cache.assign_cpus(entry, decision)

    def _confine_guest(self, entry: CachedGuest, reason: str) -> None:
        """Confine a refused guest to CPUs that no guest holds, and record the reason of the refusal."""
        supply, request = self._supply_and_request(entry)
        # A guest with PCPU in its allocation keeps the dedicated CPUs that it has.
        current = entry.assignment if request.pcpu else None
        place = keep_dedicated(supply, request, current) if current is not None else None
        # If the host has no shared CPUs, and no guest holds CPUs, a guest that was never placed keeps the
        # pins of another program. A reshape at the start of the agent reads the zones of guests from these
        # pins.
        undisturbed = entry.assignment is None and not supply.cpu_sets.shared and not self._cache.held_cpus()
        place = place or (None if undisturbed else confine_guest(supply, request))
        self._cache.assign_cpus(entry, place)
        if undisturbed:
            reason += "; it is left where it is as long as no guest holds any CPU"
        elif place is None:
            reason += "; it is left where it is, as other guests hold all CPUs"
        # The words depend on the refusal.
        before, entry.refusal = entry.refusal, reason
        self._record_refusal(entry, before, f"{reason}; it runs{entry.place_words}")

    def _leave_in_place(self, entry: CachedGuest, reason: str) -> None:
        """Leave a guest where it is, and record why the demands of its definition cannot be met."""
        before, entry.refusal = entry.refusal, f"{reason}; it is left where it is"
        self._record_refusal(entry, before, entry.refusal)

    def _record_refusal(self, entry: CachedGuest, before: str, words: str) -> None:
        # A refused guest is placed again at many events. Only a new reason is recorded.
        if entry.refusal != before:
            self._recorder.record_done(
                LOG.warning,
                EventKind.REFUSE,
                entry.guest,
                "Guest %s does not get the CPUs that it needs: %s",
                words,
            )

    def _supply_and_request(self, entry: CachedGuest) -> tuple[CpuSupply, GuestRequest]:
        request = request_for(self.host_state, entry.guest, entry.allocation or {})
        return self.host_state.cpu_supply(self._cache.held_cpus(), self.use), request

    def rebalance_guests(self) -> None:
        """Move the running guest with the largest gain, if moves are configured and the gain is enough."""
        host_state = self.host_state
        if host_state.rebalance_gain is None:
            return
        guests = [
            (request_for(host_state, entry.guest, entry.allocation), entry.assignment)
            for entry in self._cache
            # Only guests without pending changes are moved: the move of another guest could undo a change
            # that is under way.
            if entry.allocation
            and entry.assignment
            and not (entry.refusal or entry.pending or entry.migration or entry.guest.settings.preserve)
        ]
        supply = host_state.cpu_supply(self._cache.held_cpus(), self.use)
        present = (host_state, guests, supply.holdings, self.use, self.recent_use)
        if present == self._balanced:
            return
        recent = host_state.cpu_supply(supply.holdings, self.recent_use)
        move = best_move(supply, host_state.policy, guests, host_state.rebalance_gain, recent)
        entry = self._cache.get(move.guest) if move is not None else None
        if move is None or entry is None:
            self._balanced = present
            return
        self._cache.assign_cpus(entry, move.assignment)
        message = "Guest %s is moved to better CPUs (gain %.1f): it now runs%s"
        self._tell_place(entry, message, move.gain, kind=EventKind.MOVE)

    def place_reason(self, allocation: Allocation | None) -> str:
        """The reason for a guest's assignment as text: its allocation, the policy, and the free CPUs."""
        host_state = self.host_state
        if host_state.follows_kernel:
            return "another program pinned it, which policy follow accepts"
        if allocation is None:
            return "its allocation is not known yet"
        held = frozenset[int]().union(*self._cache.held_cpus().values())
        dedicated = host_state.cpu_sets.dedicated
        free = f"{len(dedicated - held)} of {len(dedicated)} dedicated CPUs free"
        name = next((name for name, policy in POLICIES.items() if policy is host_state.policy), "")
        return f"it holds {host_state.in_words(allocation)}; policy {name} left {free}"

    def _tell_place(
        self, entry: CachedGuest, message: str, *values: object, kind: EventKind = EventKind.PLACE
    ) -> None:
        reason = self.place_reason(entry.allocation)
        self._recorder.record_done(
            LOG.info, kind, entry.guest, message, *values, entry.place_words, reason=reason
        )

    def read_back(self, guest: Guest, found: KernelPlacement) -> CpuAssignment | None:
        """Derive an assignment that was not saved from the guest's CPUs in the kernel.

        The result is None if the agent cannot have made such an assignment.
        """
        if not self.host_state.places_guests:
            return None
        supply = self.host_state.cpu_supply(self._cache.held_cpus(), self.use)
        request = request_for(self.host_state, guest, {})
        return read_back(supply, request, found.cpus, found.vcpu_cpus, found.mems)


def stray_warning(uuid: str, stray: str, name: str = "") -> str:
    """The warning about a guest with CPUs outside of the current CPU sets, which ``stray`` describes."""
    return (
        f"Guest {full_name(name, uuid)} stays where it is, and no other guest gets its CPUs, but {stray}:"
        f" compute-agent guest move {uuid} moves it into the current CPU sets"
    )
