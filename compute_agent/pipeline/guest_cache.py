"""The cache of guests: their allocations, their assignments, and the changes that are still pending."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from compute_agent.host.topology import HostTopology
from compute_agent.model.guest import Allocation, CpuAssignment, Guest, GuestMigration
from compute_agent.model.resource import ThrottleControl
from compute_agent.pipeline.state import SavedGuest
from compute_agent.report.history import ConsumerOwner


@dataclass(slots=True)
class CachedGuest:
    """One guest.

    :ivar allocation: the last answer of Placement; None: there was none yet.
    :ivar assignment: None: the agent does not place the guest.
    :ivar refusal: the reason why the guest has no CPUs. Its assignment then keeps the guest off the CPUs of
        others.
    :ivar stray: the CPUs that the guest holds outside the current CPU sets, in words.
    :ivar refused: other requests of the guest that were refused, with reasons.
    :ivar limits: the temporary limits of throttling.
    :ivar pending: the controllers that have yet to put all this into effect.
    :ivar as_of: the monotonic second at which Placement was asked.
    :ivar migration: the migration that holds the guest's allocation; None: the guest's own consumer holds it.
    :ivar cache_delay: the age of the guest's process, in seconds, when its cache group took effect; None:
        unknown.
    :ivar owner: project, user and type of the guest's consumer in Placement; None: unknown.
    """

    guest: Guest
    allocation: Allocation | None = None
    assignment: CpuAssignment | None = None
    refusal: str = ""
    stray: str = ""
    refused: tuple[str, ...] = ()
    limits: dict[ThrottleControl, float] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    as_of: float = 0.0
    migration: GuestMigration | None = None
    cache_delay: float | None = None
    owner: ConsumerOwner | None = None


@dataclass(frozen=True, slots=True)
class UnclaimedHolding:
    """The allocation of a consumer without a guest here.

    :ivar since: the monotonic second at which the agent first saw the guest.
    """

    allocation: Allocation
    since: float


class GuestCache:
    """Guests by uuid. Used by the worker, under the pipeline's lock."""

    def __init__(self, controllers: frozenset[str]) -> None:
        """:param controllers: the names of all controllers."""
        self.controllers = controllers
        self.synced = False
        """Whether the last sync() of all controllers is still current."""
        self.unclaimed: dict[str, UnclaimedHolding] = {}
        """By consumer."""
        self.migrations: dict[str, str] = {}
        """Guests by the consumer of their migration, which holds their allocation here meanwhile."""
        self.lost: dict[str, SavedGuest] = {}
        """Guests that may run and that the driver cannot manage, as last known. These guests keep their
        CPUs."""
        self._guests: dict[str, CachedGuest] = {}
        # Made again after a change only: the placer compares it by identity and value at each event.
        self._holdings: Mapping[str, frozenset[int]] | None = None

    def __iter__(self) -> Iterator[CachedGuest]:
        """All guests, as a copy: guests may come and go meanwhile."""
        return iter(list(self._guests.values()))

    def __len__(self) -> int:
        return len(self._guests)

    def get(self, uuid: str) -> CachedGuest | None:
        """The guest of that uuid, if it is known."""
        return self._guests.get(uuid)

    def add(self, entry: CachedGuest) -> None:
        """Add a guest, pending for every controller."""
        self._guests[entry.guest.uuid] = entry
        self._holdings = None
        # From here on the guest itself holds this allocation and these CPUs.
        self.unclaimed.pop(entry.guest.uuid, None)
        self.lost.pop(entry.guest.uuid, None)
        self.mark_pending(entry)

    def remove(self, uuid: str) -> None:
        """Forget a guest."""
        del self._guests[uuid]
        self._holdings = None
        # Controllers notice an end by sync() alone, for example to remove its cache group.
        self.synced = False

    def discard(self, uuid: str) -> None:
        """Forget a guest if it is here."""
        if uuid in self._guests:
            self.remove(uuid)

    def lose_guest(self, uuid: str, saved: SavedGuest) -> None:
        """Keep the CPUs of a guest that may still run, but that the driver cannot manage."""
        self.lost[uuid] = saved
        self._holdings = None

    def forget_lost(self, uuid: str) -> None:
        """Free the CPUs of a lost guest that does not run any more."""
        del self.lost[uuid]
        self._holdings = None

    def hold_for(self, allocations: Mapping[str, Allocation], now: float) -> None:
        """Replace the allocations of consumers without a guest.

        :param now: monotonic seconds, the start of allocations that are new or have changed.
        """
        before, self.unclaimed = self.unclaimed, {}
        for consumer, allocation in allocations.items():
            if consumer not in self._guests and allocation:
                old = before.get(consumer)
                same = old is not None and old.allocation == allocation
                self.unclaimed[consumer] = old if old and same else UnclaimedHolding(allocation, now)
        # A migration that holds nothing here has ended.
        self.migrations = {one: guest for one, guest in self.migrations.items() if one in self.unclaimed}

    def migration_of(self, uuid: str) -> str:
        """The consumer of the migration that holds the allocation of a guest here; empty if there is none."""
        return next((one for one, guest in self.migrations.items() if guest == uuid), "")

    def mark_pending(self, entry: CachedGuest) -> None:
        """Mark a guest as pending for every controller, unless its setting ``preserve`` excludes them."""
        entry.pending = set() if entry.guest.settings.preserve else set(self.controllers)
        self.synced = False

    def assign_cpus(self, entry: CachedGuest, assignment: CpuAssignment | None) -> None:
        """Give a guest an assignment. A new one is pending for every controller."""
        # Most events compute the same assignment for all guests, which must cost no write to the kernel.
        if assignment != entry.assignment:
            if _held_cpus(assignment) != _held_cpus(entry.assignment):
                self._holdings = None
            entry.assignment = assignment
            self.mark_pending(entry)

    def pending_for(self, controller: str) -> Iterator[CachedGuest]:
        """The guests with a pending change of a controller."""
        return (entry for entry in self if controller in entry.pending)

    def held_cpus(self) -> Mapping[str, frozenset[int]]:
        """The dedicated CPUs that guests hold, by guest; a new object after each change."""
        if self._holdings is None:
            # Guests come second: a lost one that runs again holds its new CPUs.
            held = {uuid: _held_cpus(entry.assignment) for uuid, entry in self.lost.items()}
            held |= {uuid: _held_cpus(entry.assignment) for uuid, entry in self._guests.items()}
            self._holdings = {uuid: cpus for uuid, cpus in held.items() if cpus}
        return self._holdings


def _held_cpus(assignment: CpuAssignment | None) -> frozenset[int]:
    return frozenset() if assignment is None else assignment.held_cpus


@dataclass(frozen=True, slots=True)
class GuestView:
    """A copy of a cached guest for other threads, with the fields of :class:`CachedGuest`.

    :ivar cpu_nodes: the NUMA nodes of the guest's CPUs; the memory of the guest may be on other nodes.
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

    @property
    def remote_memory(self) -> frozenset[int]:
        """The NUMA nodes of its memory that have none of its CPUs."""
        return frozenset() if self.assignment is None else self.assignment.mems - self.cpu_nodes


def view_guest(entry: CachedGuest, topology: HostTopology | None = None) -> GuestView:
    """A copy of the guest.

    :param topology: has the NUMA nodes of the guest's CPUs; None: the nodes are left out.
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
        # A copy, since the worker changes the limits while other threads read the view.
        dict(entry.limits),
        tuple(sorted(entry.pending)),
        entry.migration,
        nodes,
        entry.cache_delay,
    )
