"""The cache of guests: what they hold, where they run, and what is still to be done for them."""

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

    ``allocation`` is what Placement last said (None: never heard), ``as_of`` when it was asked (monotonic
    seconds), ``migration`` through whom the guest holds that (None: by itself). ``assignment`` None: left
    where it is. ``refusal`` says why it has no place: it is then assigned what keeps it off the CPUs of
    others. ``stray`` says which CPUs it holds that the present CPU sets do not have. ``refused`` is what else
    it asks for and does not get, and why. ``limits`` are those of the watermarks. ``pending`` are the
    controllers that have yet to put all this into effect. ``cache_delay`` is how many seconds its process was
    there before its cache group was in force (None: not known). ``owner`` is whose its consumer is in
    Placement (None: not known).
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
    """What a consumer without a guest holds of this host's providers, and since when that is so.

    ``since`` is in monotonic seconds; at the earliest since this agent runs.
    """

    allocation: Allocation
    since: float


class GuestCache:
    """Guests by uuid. Used by the worker, under the pipeline's lock."""

    def __init__(self, controllers: frozenset[str]) -> None:
        """``controllers`` are the names of all controllers."""
        self.controllers = controllers
        self.synced = False
        """Whether nothing that concerns the guests together has changed since it was last put into effect."""
        self.unclaimed: dict[str, UnclaimedHolding] = {}
        """By consumer."""
        self.migrations: dict[str, str] = {}
        """Consumers that hold what a guest held here before it was moved, and that guest."""
        self.lost: dict[str, SavedGuest] = {}
        """Guests that may run and that the driver cannot look after, as they were: they keep their CPUs."""
        self._guests: dict[str, CachedGuest] = {}
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
        """Take a guest up, with something to do for every controller."""
        self._guests[entry.guest.uuid] = entry
        self._holdings = None
        self.unclaimed.pop(entry.guest.uuid, None)
        self.lost.pop(entry.guest.uuid, None)
        self.mark(entry)

    def remove(self, uuid: str) -> None:
        """Forget a guest."""
        del self._guests[uuid]
        self._holdings = None
        self.synced = False

    def lose(self, uuid: str, saved: SavedGuest) -> None:
        """Keep the CPUs of a guest that may run and that the driver cannot look after."""
        self.lost[uuid] = saved
        self._holdings = None

    def forget(self, uuid: str) -> None:
        """A lost guest is gone for good."""
        del self.lost[uuid]
        self._holdings = None

    def hold_for(self, allocations: Mapping[str, Allocation], now: float) -> None:
        """Replace what consumers without a guest hold. Who held the same before does so since then."""
        before, self.unclaimed = self.unclaimed, {}
        for consumer, allocation in allocations.items():
            if consumer not in self._guests and allocation:
                old = before.get(consumer)
                same = old is not None and old.allocation == allocation
                self.unclaimed[consumer] = old if old and same else UnclaimedHolding(allocation, now)
        self.migrations = {one: guest for one, guest in self.migrations.items() if one in self.unclaimed}

    def migration_of(self, uuid: str) -> str:
        """The consumer that holds what a guest held here before it was moved; empty if there is none."""
        return next((one for one, guest in self.migrations.items() if guest == uuid), "")

    def mark(self, entry: CachedGuest) -> None:
        """Have every controller look at a guest, unless it is to be left as it is."""
        entry.pending = set() if entry.guest.settings.preserve else set(self.controllers)
        self.synced = False

    def assign(self, entry: CachedGuest, assignment: CpuAssignment | None) -> None:
        """Give a guest an assignment, and every controller something to do if it is another one."""
        if assignment != entry.assignment:
            if _held(assignment) != _held(entry.assignment):
                self._holdings = None
            entry.assignment = assignment
            self.mark(entry)

    def pending(self, controller: str) -> Iterator[CachedGuest]:
        """The guests that a controller has something to do for."""
        return (entry for entry in self if controller in entry.pending)

    def holdings(self) -> Mapping[str, frozenset[int]]:
        """The dedicated CPUs that guests hold, by guest; another object whenever they have changed."""
        if self._holdings is None:
            held = {uuid: _held(entry.assignment) for uuid, entry in self.lost.items()}
            held |= {uuid: _held(entry.assignment) for uuid, entry in self._guests.items()}
            self._holdings = {uuid: cpus for uuid, cpus in held.items() if cpus}
        return self._holdings


def _held(assignment: CpuAssignment | None) -> frozenset[int]:
    return frozenset() if assignment is None else assignment.held_cpus


@dataclass(frozen=True, slots=True)
class GuestView:
    """A copy of a cached guest that the worker does not change any more.

    ``cpu_nodes`` are the NUMA nodes of its CPUs; those of its memory may be others.
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
        """The NUMA nodes that its memory comes from and none of its CPUs is on."""
        return frozenset() if self.assignment is None else self.assignment.mems - self.cpu_nodes


def view(entry: CachedGuest, topology: HostTopology | None = None) -> GuestView:
    """The guest as it is now. Of which nodes its CPUs are the ``topology`` tells."""
    cpus = frozenset[int]() if entry.assignment is None else entry.assignment.cpus
    nodes = frozenset[int]() if topology is None else topology.nodes_of(cpus)
    return GuestView(
        entry.guest,
        entry.allocation,
        entry.assignment,
        entry.refusal,
        entry.stray,
        entry.refused,
        dict(entry.limits),
        tuple(sorted(entry.pending)),
        entry.migration,
        nodes,
        entry.cache_delay,
    )
