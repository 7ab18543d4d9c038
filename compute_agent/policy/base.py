"""The host in pieces: CPUs of one NUMA node, one L3 domain and one package, and the free cores in them.

The nouns of placement: supply, request, assignment, refusal; and what all policies do alike.

CPUs are logical CPU numbers. *Dedicated* CPUs back PCPU: one guest each. *Shared* CPUs back VCPU.
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
    """CPUs that nothing on the host parts but their cores. Node, L3 and package are None where not known."""

    id: int
    cpus: CpuSet
    node: int | None
    l3: int | None
    package: int | None
    cores: tuple[tuple[CpuSet, tuple[int, ...]], ...]
    """The online threads of each core that has any in the piece, as a set and in order; the lowest first."""


class CoreKind(NamedTuple):
    """What tells free cores apart: how many threads are free, and whether these are all its threads."""

    free: int
    whole: bool


Amounts = tuple[tuple[CoreKind, int], ...]
"""How many cores there are of each kind: those with most threads first, and broken ones before whole ones."""


@dataclass(frozen=True, slots=True, eq=False)
class FreeCores:
    """What is free in a piece: the free threads of each core, by kind of core, lowest first."""

    piece: CpuPiece
    cpus: CpuSet
    cores: Mapping[CoreKind, tuple[tuple[int, ...], ...]]
    amounts: Amounts


class CpuLayout(NamedTuple):
    """What placing looks up of each usable CPU."""

    piece_of: Mapping[int, CpuPiece]
    memory_node_of: Mapping[int, int]
    """The NUMA node, of CPUs whose node has memory."""


def free_cores(topology: HostTopology, free: CpuSet) -> list[FreeCores]:
    """The free CPUs by piece, in the order of the pieces."""
    pieces = set(map(_layout(topology).piece_of.__getitem__, free))
    if len(pieces) == 1:
        return [_free_cores(pieces.pop(), free)]
    return [_free_cores(piece, piece.cpus & free) for piece in sorted(pieces, key=lambda piece: piece.id)]


def memory_nodes(topology: HostTopology, cpus: CpuSet) -> CpuSet:
    """The NUMA nodes of CPUs that have memory."""
    node_of = _layout(topology).memory_node_of
    return frozenset({node_of[cpu] for cpu in cpus if cpu in node_of})


@lru_cache(maxsize=1024)
def _free_cores(piece: CpuPiece, free: CpuSet) -> FreeCores:
    """Kept, as most pieces are as they were when the last guest was placed."""
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
    """Numbers of cores by kind, in their order."""
    return tuple(sorted(totals.items(), key=lambda item: (-item[0].free, item[0].whole)))


_LAYOUTS: Final[dict[int, tuple[HostTopology, CpuLayout]]] = {}
"""By the identity of the topology, which is kept with it: comparing topologies takes longer than placing."""

_HOSTS: Final = 4


def _layout(topology: HostTopology) -> CpuLayout:
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
        CpuPiece(piece_id, frozenset(cpus), *zone, _cores(topology, cpus))
        for piece_id, (zone, cpus) in enumerate(members.items())
    ]
    return CpuLayout(
        {cpu: piece for piece in pieces for cpu in piece.cpus},
        {cpu: node.id for node in reversed(topology.numa_nodes) if node.memory_kib for cpu in node.cpus},
    )


def _cores(topology: HostTopology, cpus: Sequence[int]) -> tuple[tuple[CpuSet, tuple[int, ...]], ...]:
    cores = dict.fromkeys(topology.threads_of(cpu) for cpu in cpus)
    return tuple((core, tuple(sorted(core))) for core in cores)


@dataclass(frozen=True, slots=True)
class ProviderDemand:
    """The part of an allocation that one provider serves.

    Amounts, and the online CPUs of the provider's zone. Where there are pools of CPUs these are those of the
    ``pool``, or of the zone without its pools, and ``around`` are all of the zone: dedicated CPUs that a
    guest has there already serve it.
    """

    zone: str
    cpus: CpuSet
    pcpu: int = 0
    vcpu: int = 0
    pool: str = ""
    around: CpuSet = frozenset()


@dataclass(frozen=True, slots=True)
class GuestRequest:
    """What one guest needs. Without any demand it has no allocation and floats over all shared CPUs.

    ``dedicated`` is how many guest CPUs were ordered to be dedicated, as far as that was said. ``mems`` are
    the NUMA nodes that it holds memory of; empty: that is not told by node.
    """

    guest: str
    vcpus: int
    demands: tuple[ProviderDemand, ...] = ()
    thread_policy: ThreadPolicy = ThreadPolicy.PREFER
    emulator_policy: EmulatorPolicy = EmulatorPolicy.SHARE
    dedicated: int = 0
    constraints: PlacementConstraints = UNCONSTRAINED
    mems: CpuSet = frozenset()

    def narrowed(self, cpus: CpuSet) -> GuestRequest:
        """The same when only these CPUs may be used."""
        demands = (replace(demand, cpus=demand.cpus & cpus) for demand in self.demands)
        return replace(self, demands=tuple(demands))

    @property
    def pcpu(self) -> int:
        """Dedicated CPUs altogether."""
        return sum([demand.pcpu for demand in self.demands])

    @property
    def has_emulator_cpu(self) -> bool:
        """Whether one of the dedicated CPUs is for emulator threads only."""
        return self.emulator_policy is EmulatorPolicy.ISOLATE and self.pcpu > 0

    @property
    def used_pcpu(self) -> int:
        """How many dedicated CPUs threads of the guest run on.

        One for each guest CPU that is not on shared ones, and that of the emulator threads. With thread
        policy isolate there are siblings besides.
        """
        on_shared = sum([demand.vcpu for demand in self.demands])
        emulator = int(self.has_emulator_cpu)
        return max(1, min(self.vcpus - on_shared, self.pcpu - emulator)) + emulator


@dataclass(frozen=True, slots=True)
class PlacementRefusal:
    """Why a guest cannot be placed. With ``leave`` it stays where it is, in whoever's way that may be."""

    reason: str
    leave: bool = False


@dataclass(frozen=True, slots=True)
class CpuSupply:
    """What there is to give: the host, what its CPUs are for, and who holds dedicated ones."""

    topology: HostTopology
    cpu_sets: CpuSets
    holdings: Mapping[str, CpuSet] = field(default_factory=dict)
    lent: Mapping[str, CpuSet] = field(default_factory=dict)
    """Dedicated CPUs that guests may float on until somebody holds them: by pool, those of no pool by ""."""
    busy: Mapping[int, float] = field(default_factory=dict)
    """How much of the time the guest that holds a dedicated CPU keeps it busy, as far as was measured."""
    wakes: bool = False
    """Whether parked CPUs may be given: the agent brings them online. Those that Nova parked stay Nova's."""

    def beside(self, request: GuestRequest, cpu: int) -> float:
        """How busy others keep the other threads of the core of a CPU; 0 where nothing was measured."""
        if not self.busy:
            return 0.0
        own = self.holdings.get(request.guest, frozenset())
        siblings = self.topology.threads_of(cpu) - own - {cpu}
        return sum([self.busy.get(sibling, 0.0) for sibling in siblings])

    def taken(self, request: GuestRequest) -> CpuSet:
        """The CPUs that are held by others than the request's guest."""
        held = self.holdings
        if request.guest in held:
            held = {guest: cpus for guest, cpus in held.items() if guest != request.guest}
        return frozenset().union(*held.values())

    def free(self, request: GuestRequest, demand: ProviderDemand) -> CpuSet:
        """The dedicated CPUs of a demand's zone that the request's guest may have."""
        there = self.topology.usable if self.wakes else self.topology.online
        return self.cpu_sets.dedicated.intersection(demand.cpus, there) - self.taken(request)


Policy = Callable[[CpuSupply, GuestRequest], CpuAssignment | PlacementRefusal | None]
"""None means: leave the guest as it is."""

Chooser = Callable[[CpuSupply, GuestRequest, ProviderDemand, CpuSet], tuple[int, ...] | PlacementRefusal]
"""Picks exactly ``demand.pcpu`` of the free CPUs, in the order of the guest CPUs, or says why it cannot."""


def place(supply: CpuSupply, request: GuestRequest, choose: Chooser) -> CpuAssignment | PlacementRefusal:
    """What all placing policies have in common: zones, shared parts, emulator threads and memory.

    The dedicated CPUs of each zone come from ``choose``.
    """
    if request.has_emulator_cpu and request.pcpu < 2:
        return PlacementRefusal(
            "emulator policy isolate needs one PCPU more than guest CPUs; the allocation has 1"
        )
    if _was_allocated_shared(request):
        return PlacementRefusal(
            f"{request.dedicated} of its CPUs are to be dedicated, and it was allocated VCPU and no PCPU, as"
            " by nova-scheduler's fall-back query: resize or migrate it, and set [workarounds]"
            " disable_fallback_pcpu_query = true in nova.conf"
        )
    chosen: tuple[int, ...] = ()
    for demand in request.demands:
        if demand.pcpu == 0:
            continue
        free = supply.free(request, demand).difference(chosen)
        if len(free) < demand.pcpu:
            parked = demand.cpus & supply.cpu_sets.dedicated & supply.topology.parked
            waits = f", and CPUs {cpuset.format(parked)} are offline" if parked and not supply.wakes else ""
            return PlacementRefusal(
                f"{demand.zone} has {len(free)} free dedicated CPUs ({cpuset.format(free) or 'none'}),"
                f" {demand.pcpu} are needed{waits}"
            )
        cpus = choose(supply, request, demand, free)
        if isinstance(cpus, PlacementRefusal):
            return cpus
        chosen += cpus
    if not _is_isolated(supply, request, chosen):
        return PlacementRefusal(
            f"thread policy isolate keeps cores whole: {request.pcpu} PCPU do not pay for"
            f" {request.used_pcpu} cores"
        )
    return assemble(supply, request, chosen)


def assemble(
    supply: CpuSupply,
    request: GuestRequest,
    dedicated: tuple[int, ...],
    floating: CpuSet | None = None,
    withheld: CpuSet = frozenset(),
) -> CpuAssignment | PlacementRefusal:
    """The assignment that follows from a guest's dedicated CPUs.

    ``floating`` are the shared CPUs of its VCPU part, those of its zones unless given; never any that a guest
    holds, as CPUs that were dedicated before may be shared ones by now. ``withheld`` are those that are known
    to be kept empty already.
    """
    held = supply.taken(request).union(dedicated)
    if floating is None:
        floating = floating_cpus(supply, request)
    floating -= held
    if not dedicated and not floating:
        return PlacementRefusal(_why_not_shared(supply, request))
    pinned = used = _used(supply, request, dedicated, withheld)
    if request.emulator_policy is EmulatorPolicy.ISOLATE and len(used) > 1:
        pinned, emulator = used[:-1], frozenset(used[-1:])
    else:
        emulator = shared_emulator_cpus(supply, request, held) or frozenset(used) or floating
    per_vcpu = _spread_over_vcpus(pinned, floating, request)
    empty = frozenset(dedicated).difference(used) if len(used) < len(dedicated) else frozenset()
    mems = memory_of(supply, request, frozenset().union(*per_vcpu), bool(dedicated))
    return CpuAssignment(per_vcpu, emulator, dedicated, empty, mems)


def memory_of(supply: CpuSupply, request: GuestRequest, cpus: CpuSet, pinned: bool) -> CpuSet:
    """The NUMA nodes that the memory of a guest on ``cpus`` comes from; empty: of any.

    Those that its definition demands, else those that it holds memory of, whatever CPUs it has. Where
    neither says a node, that of a ``pinned`` guest comes from those of its CPUs.
    """
    told = request.constraints.memory or request.mems
    return told or (memory_nodes(supply.topology, cpus) if pinned else frozenset())


def refit(supply: CpuSupply, request: GuestRequest, current: CpuAssignment) -> CpuAssignment | None:
    """The guest's assignment with the dedicated CPUs it has, and its guest CPUs where they are.

    It keeps them as long as they serve the request.

    None if they do not: another number, or not in the zones of the allocation, or also somebody else's, or
    without the siblings that thread policy isolate keeps empty. CPUs that left ``cpu_dedicated_set`` or went
    offline do not count against it: a running guest is not moved for that.
    """
    if _was_allocated_shared(request):
        return None
    taken = supply.taken(request)
    for dedicated in _what_may_be_its_own(supply, request, current):
        own = frozenset(dedicated)
        if taken & own or not _amounts_match(supply, request, own):
            continue
        if _is_isolated(supply, request, dedicated, current.withheld):
            again = assemble(supply, request, dedicated, withheld=current.withheld)
            return in_place(again, current) if isinstance(again, CpuAssignment) else None
    return None


def _was_allocated_shared(request: GuestRequest) -> bool:
    """Whether a guest that was ordered with dedicated CPUs was allocated shared ones only."""
    return bool(request.dedicated and request.demands and not request.pcpu)


def _what_may_be_its_own(
    supply: CpuSupply, request: GuestRequest, current: CpuAssignment
) -> Iterator[tuple[int, ...]]:
    """The dedicated CPUs of a guest; then without the siblings of its emulator CPU.

    The kernel does not show whose these are: the allocation may pay for them or not.
    """
    yield current.dedicated
    used = _used(supply, request, current.dedicated, current.withheld)
    if request.thread_policy is ThreadPolicy.ISOLATE and request.has_emulator_cpu and used:
        beside = supply.topology.threads_of(used[-1]) - {used[-1]}
        yield tuple(cpu for cpu in current.dedicated if cpu not in beside)


def in_place(fresh: CpuAssignment, current: CpuAssignment) -> CpuAssignment:
    """The fresh assignment with the guest CPUs where they are, if they are on the same dedicated CPUs."""
    own = frozenset(fresh.dedicated)
    pinned, were_pinned = (
        [cpus for cpus in assignment.vcpu_cpus if cpus <= own] for assignment in (fresh, current)
    )
    if len(pinned) != len(were_pinned) or len(fresh.vcpu_cpus) != len(current.vcpu_cpus):
        return fresh
    if frozenset().union(*pinned) != frozenset().union(*were_pinned):
        return fresh
    floating = [cpus for cpus in fresh.vcpu_cpus if not cpus <= own]
    vcpu_cpus = tuple(cpus if cpus <= own else floating[0] for cpus in current.vcpu_cpus)
    return replace(fresh, vcpu_cpus=vcpu_cpus)


def _is_isolated(
    supply: CpuSupply, request: GuestRequest, dedicated: tuple[int, ...], withheld: CpuSet = frozenset()
) -> bool:
    """Whether thread policy isolate, if asked for, has a whole core for every guest CPU.

    An emulator CPU may share its core with others.
    """
    if request.thread_policy is not ThreadPolicy.ISOLATE or not dedicated:
        return True
    used = _used(supply, request, dedicated, withheld)
    alone = used[:-1] if request.has_emulator_cpu else used
    return len(used) >= request.used_pcpu and all(
        supply.topology.threads_of(cpu) <= frozenset(dedicated) for cpu in alone
    )


def _amounts_match(supply: CpuSupply, request: GuestRequest, dedicated: CpuSet) -> bool:
    """Whether the CPUs are as many as the allocation says in every zone.

    Those that are offline count where some are missing: zones have usable CPUs only.
    """
    remaining = dedicated
    missing: list[CpuSet] = []
    for demand in request.demands:
        inside = remaining & demand.cpus
        if len(inside) > demand.pcpu and not demand.around:
            return False
        inside = frozenset(sorted(inside)[: demand.pcpu])
        missing += [demand.around] * (demand.pcpu - len(inside))
        remaining -= inside
    for cpu in sorted(remaining & supply.topology.usable):  # of what is another pool by now
        around = next((cpus for cpus in missing if cpu in cpus), None)
        if around is None:
            return False
        missing.remove(around)
    return len(remaining - supply.topology.usable) == len(missing)


def floating_cpus(supply: CpuSupply, request: GuestRequest) -> CpuSet:
    """The shared CPUs for the VCPU part: those of its zones; all of no pool without an allocation.

    With those that are lent; who has no shared CPUs there borrows none either.
    """
    online = supply.topology.online
    if not request.demands:
        shared, lent = supply.cpu_sets.open_shared & online, supply.lent.get("", frozenset())
        return shared | lent if shared else shared
    found: CpuSet = frozenset()
    for demand in request.demands:
        shared = supply.cpu_sets.shared & online & demand.cpus
        if demand.vcpu and shared:
            lent = supply.lent.get(demand.pool, frozenset()) & (demand.around or demand.cpus)
            found |= shared | lent
    return found


def _why_not_shared(supply: CpuSupply, request: GuestRequest) -> str:
    """Why a guest without PCPU does not get shared CPUs."""
    if not supply.cpu_sets.shared & supply.topology.online:
        return "the host has no shared CPUs, and the guest holds no PCPU"
    zones = ", ".join([demand.zone for demand in request.demands]) or "the host"
    return f"{zones} has no shared CPUs that no other guest holds, and the guest holds no PCPU"


def shared_emulator_cpus(supply: CpuSupply, request: GuestRequest, held: CpuSet) -> CpuSet:
    """The shared CPUs for emulator threads: near the guest where there are any, else wherever."""
    everywhere = supply.cpu_sets.emulator & supply.topology.online - held
    if not everywhere:
        return everywhere
    zones: CpuSet = frozenset().union(*(demand.cpus for demand in request.demands))
    return (everywhere & zones) or everywhere - supply.cpu_sets.pooled


def _used(
    supply: CpuSupply, request: GuestRequest, dedicated: tuple[int, ...], withheld: CpuSet
) -> tuple[int, ...]:
    """The CPUs that threads run on: all of them, or with thread policy isolate the first of each core.

    Those ``withheld`` before stay empty, also if the topology does not show any more whose siblings they are.
    """
    if request.thread_policy is not ThreadPolicy.ISOLATE:
        return dedicated
    used: list[int] = []
    covered = set(withheld)
    for cpu in dedicated:
        if cpu not in covered:
            used.append(cpu)
            covered |= supply.topology.threads_of(cpu)
    return tuple(used)


def _spread_over_vcpus(
    pinned: tuple[int, ...], floating: CpuSet, request: GuestRequest
) -> tuple[CpuSet, ...]:
    """A set per guest CPU: first one dedicated CPU each, then the shared ones.

    Where amounts and guest CPUs do not match, the guest CPUs take turns on what the guest holds: never on
    more.
    """
    if not pinned:
        return (floating,) * request.vcpus
    if floating:
        alone = tuple(frozenset({cpu}) for cpu in pinned[: request.vcpus])
        return alone + (floating,) * (request.vcpus - len(alone))
    if request.vcpus <= len(pinned):
        return tuple([frozenset(pinned[index :: request.vcpus]) for index in range(request.vcpus)])
    return tuple(frozenset({pinned[index % len(pinned)]}) for index in range(request.vcpus))
