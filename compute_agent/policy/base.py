"""The nouns of placement, the host in pieces with free cores, and the common part of all policies.

A piece has the CPUs of one NUMA node, one L3 domain and one package. CPUs are logical CPU numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, NamedTuple

from compute_agent.host.topology import HostTopology
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet, CpuSets
from compute_agent.model.guest import UNCONSTRAINED, CpuAssignment, PlacementConstraints
from compute_agent.model.guest_settings import EmulatorPolicy, ThreadPolicy


@dataclass(frozen=True, slots=True, eq=False)
class CpuPiece:
    """CPUs of the same NUMA node, L3 domain and package. Each of the three is None where it is unknown."""

    id: int
    cpus: CpuSet
    node: int | None
    l3: int | None
    package: int | None
    cores: tuple[tuple[CpuSet, tuple[int, ...]], ...]
    """The online threads of each core in the piece, as a set and in order; the lowest core first."""


class CoreKind(NamedTuple):
    """The kind of a free core: the number of free threads, and whether these are all its threads."""

    free: int
    whole: bool


Amounts = tuple[tuple[CoreKind, int], ...]
"""The number of cores of each kind: most threads first, and broken cores before whole ones."""


@dataclass(frozen=True, slots=True, eq=False)
class FreeCores:
    """The free CPUs of a piece: the free threads of each core, by kind of core, the lowest first."""

    piece: CpuPiece
    cpus: CpuSet
    cores: Mapping[CoreKind, tuple[tuple[int, ...], ...]]
    amounts: Amounts


class CpuLayout(NamedTuple):
    """The piece and the memory node of each usable CPU."""

    piece_of: Mapping[int, CpuPiece]
    memory_node_of: Mapping[int, int]
    """The NUMA node of each CPU, where the node has memory."""


def free_cores(topology: HostTopology, free: CpuSet) -> list[FreeCores]:
    """The free CPUs by piece, in the order of the pieces."""
    pieces = set(map(_known_layout(topology).piece_of.__getitem__, free))
    if len(pieces) == 1:  # the common case, without another set: a guest's zone is often one piece
        return [_free_cores(pieces.pop(), free)]
    return [_free_cores(piece, piece.cpus & free) for piece in sorted(pieces, key=lambda piece: piece.id)]


def memory_nodes(topology: HostTopology, cpus: CpuSet) -> CpuSet:
    """The NUMA nodes of CPUs that have memory."""
    node_of = _known_layout(topology).memory_node_of
    return frozenset({node_of[cpu] for cpu in cpus if cpu in node_of})


# Most pieces do not change between two guests.
@lru_cache(maxsize=1024)
def _free_cores(piece: CpuPiece, free: CpuSet) -> FreeCores:
    whole: dict[int, list[tuple[int, ...]]] = {}
    broken: dict[int, list[tuple[int, ...]]] = {}
    for core, threads in piece.cores:
        if core <= free:
            whole.setdefault(len(threads), []).append(threads)
        elif inside := core & free:
            broken.setdefault(len(inside), []).append(tuple(sorted(inside)))
    cores = {CoreKind(threads, True): tuple(members) for threads, members in whole.items()}
    cores |= {CoreKind(threads, False): tuple(members) for threads, members in broken.items()}
    return FreeCores(piece, free, cores, in_order({kind: len(members) for kind, members in cores.items()}))


def in_order(totals: Mapping[CoreKind, int]) -> Amounts:
    """Numbers of cores by kind, in the order of :data:`Amounts`."""
    return tuple(sorted(totals.items(), key=lambda item: (-item[0].free, item[0].whole)))


_LAYOUTS: Final[dict[int, tuple[HostTopology, CpuLayout]]] = {}
"""Layouts by the identity of the topology. A comparison of topologies takes longer than a placement."""

# The agent has one topology, and a new one when CPUs go on or off line. Kept topologies keep their id().
_HOSTS: Final = 4


def _known_layout(topology: HostTopology) -> CpuLayout:
    # By identity: a topology has all CPUs of the host, and would be hashed for each guest.
    known = _LAYOUTS.get(id(topology))
    if known is None:
        if len(_LAYOUTS) >= _HOSTS:
            _LAYOUTS.clear()
        known = _LAYOUTS[id(topology)] = topology, _lay_out(topology)
    return known[1]


def _lay_out(topology: HostTopology) -> CpuLayout:
    l3_of = {cpu: cache.id for cache in topology.l3_domains for cpu in cache.cpus}
    members: dict[tuple[int | None, int | None, int | None], list[int]] = {}
    for cpu in sorted(topology.usable):
        core = topology.core_of(cpu)
        zone = topology.node_of(cpu), l3_of.get(cpu), None if core is None else core.package
        members.setdefault(zone, []).append(cpu)
    pieces = [
        CpuPiece(piece_id, frozenset(cpus), *zone, _core_threads(topology, cpus))
        for piece_id, (zone, cpus) in enumerate(members.items())
    ]
    return CpuLayout(
        {cpu: piece for piece in pieces for cpu in piece.cpus},
        # Backwards, so that the first of several nodes with a CPU counts, as in node_of.
        {cpu: node.id for node in reversed(topology.numa_nodes) if node.memory_kib for cpu in node.cpus},
    )


def _core_threads(topology: HostTopology, cpus: Sequence[int]) -> tuple[tuple[CpuSet, tuple[int, ...]], ...]:
    cores = dict.fromkeys(topology.threads_of(cpu) for cpu in cpus)
    return tuple((core, tuple(sorted(core))) for core in cores)


@dataclass(frozen=True, slots=True)
class ProviderDemand:
    """The part of an allocation that one provider serves.

    :ivar cpus: the online CPUs of the provider's zone; with pools, those of ``pool``, or those of no pool.
    :ivar pcpu: the amount of PCPU.
    :ivar vcpu: the amount of VCPU.
    :ivar around: with pools, all CPUs of the zone. Dedicated CPUs that a guest already has there serve it.
    """

    zone: str
    cpus: CpuSet
    pcpu: int = 0
    vcpu: int = 0
    pool: str = ""
    around: CpuSet = frozenset()


@dataclass(frozen=True, slots=True)
class GuestRequest:
    """The needs of one guest. Without a demand it has no allocation and floats over all shared CPUs.

    :ivar dedicated: the number of guest CPUs that the flavor wants dedicated; 0 if unknown.
    :ivar mems: NUMA nodes of the memory that the guest holds; empty where the allocation has no nodes of
        memory.
    :ivar near: the NUMA nodes of the guest's PCI devices, from which it gets CPUs if they have enough.
    :ivar near_only: whether the guest is refused if these nodes have too few CPUs.
    """

    guest: str
    vcpus: int
    demands: tuple[ProviderDemand, ...] = ()
    thread_policy: ThreadPolicy = ThreadPolicy.PREFER
    emulator_policy: EmulatorPolicy = EmulatorPolicy.SHARE
    dedicated: int = 0
    constraints: PlacementConstraints = UNCONSTRAINED
    mems: CpuSet = frozenset()
    dedicated_vcpus: CpuSet = frozenset()
    """The numbers of the guest CPUs that should be dedicated, if the order names them."""
    alone: bool = False
    """Whether its level of isolation is ``alone``, for which the kernel may have CPUs set apart at boot."""
    near: CpuSet = frozenset()
    near_only: bool = False

    def narrowed_to(self, cpus: CpuSet) -> GuestRequest:
        """The request, restricted to these CPUs."""
        demands = (replace(demand, cpus=demand.cpus & cpus) for demand in self.demands)
        return replace(self, demands=tuple(demands))

    @property
    def pcpu(self) -> int:
        """The number of dedicated CPUs of all demands."""
        return sum([demand.pcpu for demand in self.demands])

    @property
    def has_emulator_cpu(self) -> bool:
        """Whether one of the dedicated CPUs is for emulator threads only."""
        return self.emulator_policy is EmulatorPolicy.ISOLATE and self.pcpu > 0

    @property
    def used_pcpu(self) -> int:
        """The number of dedicated CPUs that threads of the guest run on.

        The number is one for each guest CPU that does not float, and one for the emulator threads. Siblings
        that thread policy isolate keeps empty are not counted.
        """
        on_shared = sum([demand.vcpu for demand in self.demands])
        emulator = int(self.has_emulator_cpu)
        return max(1, min(self.vcpus - on_shared, self.pcpu - emulator)) + emulator


@dataclass(frozen=True, slots=True)
class PlacementRefusal:
    """The reason why a guest cannot be placed. With ``leave`` it stays, even on CPUs of others."""

    reason: str
    leave: bool = False


_UNSUITED: Final = 1000.0
"""Above the load of all siblings of any core."""


@dataclass(frozen=True, slots=True)
class CpuSupply:
    """The CPUs of the host, with their purposes and their holders.

    :ivar holdings: dedicated CPUs by guest.
    """

    topology: HostTopology
    cpu_sets: CpuSets
    holdings: Mapping[str, CpuSet] = field(default_factory=dict)
    lent: Mapping[str, CpuSet] = field(default_factory=dict)
    """Free dedicated CPUs on which guests may float, by pool. The empty name has those of no pool."""
    busy: Mapping[int, float] = field(default_factory=dict)
    """The part of the time in which a dedicated CPU is busy, where it was measured."""
    woken: CpuSet = frozenset()
    """Parked CPUs that the policy may give, as the agent then brings them online. Nova wakes its own."""

    set_apart: CpuSet = frozenset()
    """CPUs of boot options (``isolcpus``, ``nohz_full``), which are for guests that are alone."""

    def core_order(self, request: GuestRequest) -> Callable[[int], float] | None:
        """The order among equal cores by one of their CPUs, the lowest first; None without a preference.

        Cores that suit the level of isolation come first, then those with idle siblings.
        """
        if not (self.busy or self.set_apart):
            return None
        return lambda cpu: self.is_unsuited(request, cpu) * _UNSUITED + self.sibling_load(request, cpu)

    def is_unsuited(self, request: GuestRequest, cpu: int) -> bool:
        """Whether a CPU is set apart for a guest that is not alone, or not set apart for one that is."""
        return bool(self.set_apart) and (cpu in self.set_apart) != request.alone

    def sibling_load(self, request: GuestRequest, cpu: int) -> float:
        """The load that others put on the siblings of a CPU; 0 where nothing was measured."""
        if not self.busy:
            return 0.0
        own = self.holdings.get(request.guest, frozenset())
        siblings = self.topology.threads_of(cpu) - own - {cpu}
        return sum([self.busy.get(sibling, 0.0) for sibling in siblings])

    def taken_cpus(self, request: GuestRequest) -> CpuSet:
        """The CPUs that other guests hold."""
        held = self.holdings
        # Copied only for a guest that holds something already: a new one does not.
        if request.guest in held:
            held = {guest: cpus for guest, cpus in held.items() if guest != request.guest}
        return frozenset().union(*held.values())

    def free(self, request: GuestRequest, demand: ProviderDemand) -> CpuSet:
        """The dedicated CPUs of a demand's zone that the guest may have."""
        there = self.topology.online | self.woken
        return self.cpu_sets.dedicated.intersection(demand.cpus, there) - self.taken_cpus(request)


Policy = Callable[[CpuSupply, GuestRequest], CpuAssignment | PlacementRefusal | None]
"""A policy. A policy returns None to leave the guest as it is."""

Chooser = Callable[[CpuSupply, GuestRequest, ProviderDemand, CpuSet], tuple[int, ...] | PlacementRefusal]
"""Chooses exactly ``demand.pcpu`` of the free CPUs, in the order of the guest CPUs, or refuses."""


def place_guest(
    supply: CpuSupply, request: GuestRequest, choose: Chooser
) -> CpuAssignment | PlacementRefusal:
    """Place a guest: the common part of all policies, with zones, shared CPUs, emulator threads and memory.

    :param choose: chooses the dedicated CPUs of each zone.
    """
    if request.has_emulator_cpu and request.pcpu < 2:
        return PlacementRefusal(
            "emulator policy isolate needs one PCPU more than guest CPUs; the allocation has 1"
        )
    if _was_allocated_shared(request):
        return PlacementRefusal(
            f"the flavor wants {request.dedicated} dedicated CPUs, but the allocation has VCPU and no PCPU,"
            " as after nova-scheduler's fall-back query: resize or migrate it, and set [workarounds]"
            " disable_fallback_pcpu_query = true in nova.conf"
        )
    chosen: tuple[int, ...] = ()
    for demand in request.demands:
        if demand.pcpu == 0:
            continue
        free = supply.free(request, demand).difference(chosen)
        if len(free) < demand.pcpu:
            parked = demand.cpus & supply.cpu_sets.dedicated & supply.topology.parked - supply.woken
            waits = f", and CPUs {cpuset.format(parked)} are offline" if parked else ""
            return PlacementRefusal(
                f"{demand.zone} has {len(free)} free dedicated CPUs ({cpuset.format(free) or 'none'}),"
                f" but {demand.pcpu} are needed{waits}"
            )
        cpus = _choose_near(supply, request, demand, free, choose)
        if isinstance(cpus, PlacementRefusal):
            return cpus
        chosen += cpus
    # The choosers see one zone each; the sum over all zones can still be too small.
    if not _is_isolated(supply, request, chosen):
        return PlacementRefusal(
            f"thread policy isolate takes whole cores: {request.pcpu} PCPU are too few for"
            f" {request.used_pcpu} cores"
        )
    return build_assignment(supply, request, chosen)


def _choose_near(
    supply: CpuSupply, request: GuestRequest, demand: ProviderDemand, free: CpuSet, choose: Chooser
) -> tuple[int, ...] | PlacementRefusal:
    """Choose from the CPUs near the guest's devices, or else from all free ones unless the order forbids."""
    near = near_cpus(supply, request, demand.cpus)
    # A zone on one side of the border was chosen with the devices: its CPUs are what the allocation names.
    if not near or near == demand.cpus:
        return choose(supply, request, demand, free)
    found: tuple[int, ...] | PlacementRefusal = PlacementRefusal(
        f"NUMA nodes {cpuset.format(request.near)} of its PCI devices have {len(free & near)} free dedicated"
        f" CPUs of {demand.zone}, but {demand.pcpu} are needed"
    )
    if len(free & near) >= demand.pcpu:
        found = choose(supply, request, demand, free & near)
    if isinstance(found, PlacementRefusal) and not request.near_only:
        return choose(supply, request, demand, free)
    return found


def near_cpus(supply: CpuSupply, request: GuestRequest, cpus: CpuSet) -> CpuSet:
    """The part of these CPUs that is on the NUMA nodes of the guest's devices."""
    return cpus & supply.topology.cpus_of(request.near)


def build_assignment(
    supply: CpuSupply,
    request: GuestRequest,
    dedicated: tuple[int, ...],
    floating: CpuSet | None = None,
    withheld: CpuSet = frozenset(),
) -> CpuAssignment | PlacementRefusal:
    """The assignment that follows from a guest's dedicated CPUs.

    :param floating: shared CPUs for the guest's ``VCPU``; by default those of its zones.
    :param withheld: dedicated CPUs that are already kept empty.
    """
    # CPUs that a guest holds may have become shared ones by a change of the options.
    held = supply.taken_cpus(request).union(dedicated)
    if floating is None:
        floating = floating_cpus(supply, request)
    floating -= held
    if not dedicated and not floating:
        return PlacementRefusal(_why_not_shared(supply, request))
    pinned = used = _used_cpus(supply, request, dedicated, withheld)
    # The last used CPU is the emulator's; _is_isolated() and read_back() go by that order.
    if request.emulator_policy is EmulatorPolicy.ISOLATE and len(used) > 1:
        pinned, emulator = used[:-1], frozenset(used[-1:])
    else:
        own = frozenset(used) or floating
        emulator = shared_emulator_cpus(supply, request, held, own) or own
    per_vcpu = _spread_over_vcpus(pinned, floating, request)
    empty = frozenset(dedicated).difference(used) if len(used) < len(dedicated) else frozenset()
    mems = memory_of(supply, request, frozenset().union(*per_vcpu), bool(dedicated))
    return CpuAssignment(per_vcpu, emulator, dedicated, empty, mems)


def memory_of(supply: CpuSupply, request: GuestRequest, cpus: CpuSet, pinned: bool) -> CpuSet:
    """The NUMA nodes for the memory of a guest on ``cpus``; empty for any node.

    The definition of the guest comes first, then its allocation. Without either, the memory of a ``pinned``
    guest, and of one that has to be near its devices, comes from the nodes of its CPUs.
    """
    told = request.constraints.memory_nodes or request.mems
    follows = pinned or (request.near_only and bool(request.near))
    return told or (memory_nodes(supply.topology, cpus) if follows else frozenset())


def refit_assignment(
    supply: CpuSupply, request: GuestRequest, current: CpuAssignment
) -> CpuAssignment | None:
    """The assignment with the guest's present dedicated CPUs, if they serve the request; None otherwise.

    The CPUs do not serve the request if their number or zones differ from the allocation, if another
    guest holds one, or if siblings that ``isolate`` keeps empty are missing. CPUs that have left
    ``cpu_dedicated_set`` or gone offline still serve the request: a running guest is not moved for that.
    """
    if _was_allocated_shared(request):
        return None
    taken = supply.taken_cpus(request)
    for dedicated in _what_may_be_its_own(supply, request, current):
        own = frozenset(dedicated)
        if taken & own or not _amounts_match(supply, request, own):
            continue
        if _is_isolated(supply, request, dedicated, current.withheld):
            again = build_assignment(supply, request, dedicated, withheld=current.withheld)
            return in_place(again, current, request) if isinstance(again, CpuAssignment) else None
    return None


def _was_allocated_shared(request: GuestRequest) -> bool:
    """Whether the flavor wants dedicated CPUs, and the allocation has only shared ones."""
    return bool(request.dedicated and request.demands and not request.pcpu)


def _what_may_be_its_own(
    supply: CpuSupply, request: GuestRequest, current: CpuAssignment
) -> Iterator[tuple[int, ...]]:
    """Two choices of a guest's dedicated CPUs: with the siblings of its emulator CPU, and without them."""
    yield current.dedicated
    used = _used_cpus(supply, request, current.dedicated, current.withheld)
    if request.thread_policy is ThreadPolicy.ISOLATE and request.has_emulator_cpu and used:
        beside = supply.topology.threads_of(used[-1]) - {used[-1]}
        # The kernel does not show whether the allocation includes these siblings.
        yield tuple(cpu for cpu in current.dedicated if cpu not in beside)


def in_place(fresh: CpuAssignment, current: CpuAssignment, request: GuestRequest) -> CpuAssignment:
    """The fresh assignment with the guest CPUs in their present places, if the dedicated CPUs are equal.

    Guest CPUs that are of the other kind than the order says leave their places.
    """
    own = frozenset(fresh.dedicated)
    named = request.dedicated_vcpus
    if named and named == _own_positions(fresh, own) != _own_positions(current, own):
        return fresh
    pinned, were_pinned = (
        [cpus for cpus in assignment.vcpu_cpus if cpus <= own] for assignment in (fresh, current)
    )
    if len(pinned) != len(were_pinned) or len(fresh.vcpu_cpus) != len(current.vcpu_cpus):
        return fresh
    if frozenset().union(*pinned) != frozenset().union(*were_pinned):
        return fresh
    floating = [cpus for cpus in fresh.vcpu_cpus if not cpus <= own]
    # All floating guest CPUs have the same CPUs.
    vcpu_cpus = tuple(cpus if cpus <= own else floating[0] for cpus in current.vcpu_cpus)
    return replace(fresh, vcpu_cpus=vcpu_cpus)


def _own_positions(assignment: CpuAssignment, own: CpuSet) -> CpuSet:
    """The numbers of the guest CPUs that run within ``own``."""
    return frozenset(number for number, cpus in enumerate(assignment.vcpu_cpus) if cpus <= own)


def _is_isolated(
    supply: CpuSupply, request: GuestRequest, dedicated: tuple[int, ...], withheld: CpuSet = frozenset()
) -> bool:
    """Whether each guest CPU has a whole core, where thread policy isolate asks for it."""
    if request.thread_policy is not ThreadPolicy.ISOLATE or not dedicated:
        return True
    used = _used_cpus(supply, request, dedicated, withheld)
    # An emulator CPU may share its core with others.
    alone = used[:-1] if request.has_emulator_cpu else used
    return len(used) >= request.used_pcpu and all(
        supply.topology.threads_of(cpu) <= frozenset(dedicated) for cpu in alone
    )


def _amounts_match(supply: CpuSupply, request: GuestRequest, dedicated: CpuSet) -> bool:
    """Whether the number of CPUs in each zone equals the allocation."""
    remaining = dedicated
    missing: list[CpuSet] = []
    for demand in request.demands:
        inside = remaining & demand.cpus
        if len(inside) > demand.pcpu and not demand.around:
            return False
        inside = frozenset(sorted(inside)[: demand.pcpu])
        # Offline CPUs count where some are missing, since zones have only usable CPUs.
        missing += [demand.around] * (demand.pcpu - len(inside))
        remaining -= inside
    for cpu in sorted(remaining & supply.topology.usable):  # the options have moved these to another pool
        around = next((cpus for cpus in missing if cpu in cpus), None)
        if around is None:
            return False
        missing.remove(around)
    return len(remaining - supply.topology.usable) == len(missing)


def floating_cpus(supply: CpuSupply, request: GuestRequest) -> CpuSet:
    """The shared CPUs for the VCPU part: those of its zones, or without an allocation all of no pool.

    Lent CPUs are included, unless there are no shared CPUs to begin with. A guest that has to be near its
    devices floats on their nodes, if these have shared CPUs.
    """
    found = _floating_anywhere(supply, request)
    return (near_cpus(supply, request, found) if request.near_only else found) or found


def _floating_anywhere(supply: CpuSupply, request: GuestRequest) -> CpuSet:
    online = supply.topology.online
    if not request.demands:
        shared, lent = supply.cpu_sets.open_shared & online, supply.lent.get("", frozenset())
        # Lent CPUs may be taken back at any time, so they are never all that a guest has.
        return shared | lent if shared else shared
    found: CpuSet = frozenset()
    for demand in request.demands:
        shared = supply.cpu_sets.shared & online & demand.cpus
        if demand.vcpu and shared:
            lent = supply.lent.get(demand.pool, frozenset()) & (demand.around or demand.cpus)
            found |= shared | lent
    return found


def _why_not_shared(supply: CpuSupply, request: GuestRequest) -> str:
    """The reason why a guest without PCPU gets no shared CPUs."""
    if not supply.cpu_sets.shared & supply.topology.online:
        return "the host has no shared CPUs, and the guest holds no PCPU"
    zones = ", ".join([demand.zone for demand in request.demands]) or "the host"
    return f"{zones} has no shared CPUs that no other guest holds, and the guest holds no PCPU"


def shared_emulator_cpus(supply: CpuSupply, request: GuestRequest, held: CpuSet, own: CpuSet) -> CpuSet:
    """The shared CPUs for emulator threads: in the guest's zones, or else anywhere outside of pools.

    Of these CPUs, only those in the NUMA nodes of the guest's CPUs count, if there are any.

    :param own: the CPUs of the guest's own CPUs.
    """
    everywhere = supply.cpu_sets.emulator & supply.topology.online - held
    if not everywhere:
        return everywhere
    zones: CpuSet = frozenset().union(*(demand.cpus for demand in request.demands))
    usable = (everywhere & zones) or everywhere - supply.cpu_sets.pooled
    nodes = supply.topology.nodes_of(own)
    near = frozenset(cpu for cpu in usable if supply.topology.node_of(cpu) in nodes)
    return near or usable


def _used_cpus(
    supply: CpuSupply, request: GuestRequest, dedicated: tuple[int, ...], withheld: CpuSet
) -> tuple[int, ...]:
    """The CPUs for threads: all CPUs, or with thread policy isolate the first of each core."""
    if request.thread_policy is not ThreadPolicy.ISOLATE:
        return dedicated
    used: list[int] = []
    # ``withheld`` CPUs stay empty, also where the topology no longer shows them as siblings.
    covered = set(withheld)
    for cpu in dedicated:
        if cpu not in covered:
            used.append(cpu)
            covered |= supply.topology.threads_of(cpu)
    return tuple(used)


def _spread_over_vcpus(
    pinned: tuple[int, ...], floating: CpuSet, request: GuestRequest
) -> tuple[CpuSet, ...]:
    """The CPUs of each guest CPU: a dedicated CPU for those that the order names, else for the first ones.

    Where amounts and the number of guest CPUs differ, guest CPUs share the dedicated CPUs of the guest.
    """
    if not pinned:
        return (floating,) * request.vcpus
    if floating:
        named = request.dedicated_vcpus
        if len(named) == len(pinned) and max(named) < request.vcpus:
            given = dict(zip(sorted(named), pinned, strict=True))
            return tuple(
                frozenset({given[number]}) if number in given else floating for number in range(request.vcpus)
            )
        alone = tuple(frozenset({cpu}) for cpu in pinned[: request.vcpus])
        return alone + (floating,) * (request.vcpus - len(alone))
    if request.vcpus <= len(pinned):
        return tuple([frozenset(pinned[index :: request.vcpus]) for index in range(request.vcpus)])
    return tuple(frozenset({pinned[index % len(pinned)]}) for index in range(request.vcpus))
