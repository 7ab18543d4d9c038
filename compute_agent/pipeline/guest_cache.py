"""The cache of guests: their allocations and assignments, and the changes still to make in the kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from compute_agent.host.topology import HostTopology
from compute_agent.model import cpuset
from compute_agent.model.guest import Allocation, CpuAssignment, Guest, GuestMigration
from compute_agent.model.resource import ThrottleControl
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.state import SavedGuest
from compute_agent.report.history import ConsumerOwner


@dataclass(frozen=True, slots=True)
class ConsumerFacts:
    """The answers of Placement about the consumer of one guest.

    :ivar allocation: the allocation on this host; None if there was no answer yet.
    :ivar owner: project, user and type of the consumer; None if unknown.
    :ivar without_room: whether Placement has last refused the agent's claim for the guest for lack of room.
    """

    allocation: Allocation | None
    owner: ConsumerOwner | None
    without_room: bool = False


@dataclass(slots=True)
class CachedGuest:
    """One guest, with the last answers of Placement (:class:`ConsumerFacts`), and its pending changes.

    :ivar assignment: the CPUs of the guest; None means that the agent does not place the guest.
    :ivar refusal: the reason why the policy refused the guest; empty if the policy did not refuse the guest.
        A refused guest is assigned only CPUs that no other guest holds.
    :ivar stray: a text about CPUs that the guest holds outside of the current CPU sets; empty if there are
        no such CPUs.
    :ivar refused: messages about requests of the guest that controllers have refused.
    :ivar limits: the limits that throttling has set, by control, in the unit of the control.
    :ivar pending: the names of the controllers that have not applied the present state of the guest yet.
    :ivar not_compared: the reasons why the guest could not be compared with the settings of controllers, by
        name of the controller.
    :ivar as_of: the time, in monotonic seconds, of the request that read the allocation from Placement.
    :ivar migration: the consumer of the migration that holds the guest's allocation; None if the guest's own
        consumer holds it.
    :ivar cache_delay: the age of the guest's process, in seconds, when it was put into its cache group; None
        if unknown.
    """

    guest: Guest
    allocation: Allocation | None = None
    assignment: CpuAssignment | None = None
    refusal: str = ""
    stray: str = ""
    refused: tuple[str, ...] = ()
    limits: dict[ThrottleControl, float] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    not_compared: dict[str, str] = field(default_factory=dict)
    as_of: float = 0.0
    migration: GuestMigration | None = None
    cache_delay: float | None = None
    owner: ConsumerOwner | None = None
    without_room: bool = False

    @property
    def consumer_facts(self) -> ConsumerFacts:
        """The answers of Placement about the guest."""
        return ConsumerFacts(self.allocation, self.owner, self.without_room)

    @property
    def place_words(self) -> str:
        """The last words of a message about the guest, with its CPUs, such as `` on dedicated CPUs 2-3``."""
        if self.assignment is None:
            return " on any CPU, and the agent leaves it there"
        if self.assignment.dedicated:
            kind = "dedicated CPUs"
        else:
            kind = "CPUs that no guest holds," if self.refusal else "shared CPUs"
        return f" on {kind} {cpuset.format(self.assignment.cpus)}"

    @property
    def saved_guest(self) -> SavedGuest:
        """The data of the guest for the state file."""
        return SavedGuest(self.allocation, self.assignment, self.guest.driver, self.without_room)


@dataclass(frozen=True, slots=True)
class UnclaimedHolding:
    """An allocation on this host of a consumer that has no guest on this host.

    :ivar since: the time, in monotonic seconds, at which the agent first saw this allocation without a guest.
    """

    allocation: Allocation
    since: float


class GuestCache:
    """The guests of the host by uuid. Only the worker changes this object, under the lock of the pipeline."""

    def __init__(self, controllers: frozenset[str], host_state: HostState) -> None:
        """:param controllers: the names of all controllers."""
        self.controllers = controllers
        self.host_state = host_state
        """The present state of the host, which the worker replaces."""
        self.synced = False
        """Whether no guest has changed since the last successful sync() of all controllers."""
        self.unclaimed: dict[str, UnclaimedHolding] = {}
        """The allocations of consumers without a guest on this host, by uuid of the consumer."""
        self.migrations: dict[str, str] = {}
        """Uuids of migrating guests, by the consumer of the migration, which holds the guest's allocation."""
        self.lost: dict[str, SavedGuest] = {}
        """The last known state of guests that perhaps run, but that the driver cannot manage. These guests
        keep their CPUs."""
        self._guests: dict[str, CachedGuest] = {}
        # The mapping is computed only after a change: the placer compares the mapping at each event, and
        # comparing an object with itself is fast.
        self._holdings: Mapping[str, frozenset[int]] | None = None

    def __iter__(self) -> Iterator[CachedGuest]:
        """Iterate over a copy of the guests, so that guests can be added and removed during the loop."""
        return iter(list(self._guests.values()))

    def __len__(self) -> int:
        return len(self._guests)

    def get(self, uuid: str) -> CachedGuest | None:
        """The guest with this uuid; None if it is not in the cache."""
        return self._guests.get(uuid)

    def add(self, entry: CachedGuest) -> None:
        """Add a guest, and mark all controllers as pending for it."""
        self._guests[entry.guest.uuid] = entry
        self._holdings = None
        # From now on, the cache entry has the allocation and the CPUs of the guest.
        self.unclaimed.pop(entry.guest.uuid, None)
        self.lost.pop(entry.guest.uuid, None)
        self.mark_pending(entry)

    def remove(self, uuid: str) -> None:
        """Remove a guest from the cache; a missing guest is not an error."""
        self._guests.pop(uuid, None)
        self._holdings = None
        # sync() has to run again: only there controllers notice the end, and remove the guest's cache group.
        self.synced = False

    def lose_guest(self, uuid: str, saved: SavedGuest) -> None:
        """Keep the CPUs of a lost guest: one that perhaps still runs, but that the driver cannot manage."""
        self.lost[uuid] = saved
        self._holdings = None

    def forget_lost(self, uuid: str) -> None:
        """Free the CPUs of a lost guest that does not run any more."""
        del self.lost[uuid]
        self._holdings = None

    def hold_for(self, allocations: Mapping[str, Allocation], now: float) -> None:
        """Replace the allocations of consumers without a guest, and drop migrations without an allocation.

        :param allocations: the allocations of all consumers on this host, by consumer.
        :param now: the present time in monotonic seconds, from which new and changed allocations count as
            unclaimed.
        """
        before, self.unclaimed = self.unclaimed, {}
        for consumer, allocation in allocations.items():
            if consumer not in self._guests and allocation:
                old = before.get(consumer)
                same = old is not None and old.allocation == allocation
                self.unclaimed[consumer] = old if old and same else UnclaimedHolding(allocation, now)
        # A migration has ended when its consumer holds nothing on this host any more.
        self.migrations = {one: guest for one, guest in self.migrations.items() if one in self.unclaimed}

    def migration_of(self, uuid: str) -> str:
        """The migration's consumer that holds a guest's allocation here; empty without a migration."""
        return next((one for one, guest in self.migrations.items() if guest == uuid), "")

    def mark_pending(self, entry: CachedGuest) -> None:
        """Mark all controllers as pending for a guest. If the guest is preserved, mark no controller."""
        entry.pending = set() if entry.guest.settings.preserve else set(self.controllers)
        self.synced = False

    def assign_cpus(self, entry: CachedGuest, assignment: CpuAssignment | None) -> None:
        """Set the assignment of a guest; if it has changed, mark all controllers as pending."""
        # Most events compute an equal assignment for all guests, which must not cause writes to the kernel.
        if assignment != entry.assignment:
            if _held_cpus(assignment) != _held_cpus(entry.assignment):
                self._holdings = None
            entry.assignment = assignment
            self.mark_pending(entry)

    def held_cpus(self) -> Mapping[str, frozenset[int]]:
        """The dedicated CPUs that guests hold, by uuid. The result is a new object only after a change."""
        if self._holdings is None:
            # A guest in the cache replaces a lost guest with the same uuid.
            held = {uuid: _held_cpus(entry.assignment) for uuid, entry in self.lost.items()}
            held |= {uuid: _held_cpus(entry.assignment) for uuid, entry in self._guests.items()}
            self._holdings = {uuid: cpus for uuid, cpus in held.items() if cpus}
        return self._holdings


def _held_cpus(assignment: CpuAssignment | None) -> frozenset[int]:
    return frozenset() if assignment is None else assignment.held_cpus


@dataclass(frozen=True, slots=True)
class GuestView:
    """A frozen copy of a :class:`CachedGuest` for other threads, with the same fields.

    :ivar cpu_nodes: the NUMA nodes of the guest's CPUs. The guest's memory can be on other nodes.
    """

    guest: Guest
    allocation: Allocation | None
    assignment: CpuAssignment | None
    refusal: str
    stray: str
    refused: tuple[str, ...]
    limits: Mapping[ThrottleControl, float]
    pending: tuple[str, ...]
    migration: GuestMigration | None = None
    cpu_nodes: frozenset[int] = frozenset()
    cache_delay: float | None = None

    def is_current(self, entry: CachedGuest) -> bool:
        """Whether this is still a copy of ``entry``, if the topology is the same."""
        # Objects that only the worker replaces as a whole are compared by identity, which takes a tenth of
        # the time of a new copy.
        return (
            self.guest is entry.guest
            and self.allocation is entry.allocation
            and self.assignment is entry.assignment
            and self.migration is entry.migration
            and self.refusal == entry.refusal
            and self.stray == entry.stray
            and self.refused == entry.refused
            and self.cache_delay == entry.cache_delay
            and self.limits == entry.limits
            and len(self.pending) == len(entry.pending)
            and entry.pending.issuperset(self.pending)
        )

    @property
    def remote_memory(self) -> frozenset[int]:
        """The NUMA nodes that have memory of the guest, but none of its CPUs."""
        return frozenset() if self.assignment is None else self.assignment.mems - self.cpu_nodes


def view_guest(entry: CachedGuest, topology: HostTopology | None = None) -> GuestView:
    """Copy a cached guest for other threads.

    :param topology: the topology with the NUMA nodes of the guest's CPUs; None leaves ``cpu_nodes`` empty.
    """
    cpus = frozenset[int]() if entry.assignment is None else entry.assignment.cpus
    nodes = frozenset[int]() if topology is None else topology.nodes_of(cpus)
    return GuestView(
        entry.guest,
        entry.allocation,
        entry.assignment,
        entry.refusal,
        entry.stray,
        entry.refused,
        # This is a copy, because the worker changes the limits while other threads read the view.
        dict(entry.limits),
        tuple(sorted(entry.pending)),
        entry.migration,
        nodes,
        entry.cache_delay,
    )


def renew_view(view: GuestView | None, entry: CachedGuest, topology: HostTopology) -> GuestView:
    """A copy of a cached guest: ``view``, or a new copy if the guest has changed since ``view`` was made.

    :param view: an earlier copy of the guest with the same topology; None if there is none.
    """
    return view if view is not None and view.is_current(entry) else view_guest(entry, topology)
