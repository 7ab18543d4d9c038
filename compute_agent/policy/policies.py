"""The placement policies, of which ``[policy] name`` selects one.

``none`` The agent counts and lists guests. The agent does not change the CPUs of guests.

``follow``
    Another program, such as Nova, pins guests. The agent moves no guest, and reads assignments from the
    kernel. An assignment has the CPUs of guest CPUs and of other threads, and the NUMA nodes of memory. An
    example: CPUs 0-3 are dedicated and 4-7 shared. If guest CPUs are pinned to CPUs 1 and 3, and the emulator
    to 4-7, the guest has the dedicated CPUs 1 and 3. A guest on 4-7 without pins floats there.

``static``, ``static-plus`` and ``static-pools``
    A guest gets the lowest free dedicated CPUs.

``topology-aware``
    A guest gets CPUs of few caches and nodes, such that whole cores and caches stay free for other guests.
    Candidates are groups of pieces with free cores. Single pieces are tried first, then pieces of one node,
    then pieces of several nodes. The candidate with the lowest rank is chosen; :func:`_rank_group` lists the
    criteria.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from compute_agent.host.topology import HostTopology
from compute_agent.model.cpuset import CpuSet, CpuSets
from compute_agent.model.guest import CpuAssignment
from compute_agent.model.guest_settings import ThreadPolicy
from compute_agent.policy.base import CpuSupply, GuestRequest, PlacementRefusal, ProviderDemand, place_guest
from compute_agent.policy.cores import (
    CoreCost,
    CoreDemand,
    FreeCores,
    capacity,
    choice_cost,
    choose_cpus,
    free_cores,
)


def place_nowhere(supply: CpuSupply, request: GuestRequest) -> None:
    """Policy ``none``: leave the guest as it is."""


@dataclass(frozen=True, slots=True)
class KernelPlacement:
    """The CPUs and memory nodes that the kernel lets a guest use.

    :ivar cpus: CPUs of all threads of the guest together.
    :ivar vcpu_cpus: CPUs of each guest CPU by number, if the thread of the guest CPU is known.
    :ivar emulator_cpus: CPUs of the threads that run no guest CPU.
    :ivar mems: NUMA nodes to which the guest's memory is bound; empty if there is no binding.
    """

    cpus: CpuSet
    vcpu_cpus: Mapping[int, CpuSet] = field(default_factory=dict)
    emulator_cpus: CpuSet = frozenset()
    mems: CpuSet = frozenset()


def leave_in_place(supply: CpuSupply, request: GuestRequest) -> None:
    """Policy ``follow``: leave the guest on the CPUs to which another program has pinned it."""


def found_assignment(cpu_sets: CpuSets, vcpus: int, found: KernelPlacement) -> CpuAssignment:
    """The assignment of a guest that another program has placed, as read from the kernel.

    CPUs of the dedicated set count as dedicated to the guest if a guest CPU is pinned to them. CPUs of the
    other threads count in the same way, if no guest CPU may use these CPUs. A guest that may use the whole
    set floats on it.
    """
    vcpu_cpus = tuple(found.vcpu_cpus.get(number) or found.cpus for number in range(vcpus))
    emulator = found.emulator_cpus or found.cpus
    # The CPUs are in the order of guest CPUs, as in assignments that the agent makes.
    own = [cpu for cpus in vcpu_cpus if _is_own(cpus, cpu_sets) for cpu in sorted(cpus)]
    if own and _is_own(emulator, cpu_sets) and emulator.isdisjoint(frozenset().union(*vcpu_cpus)):
        own += sorted(emulator)
    return CpuAssignment(vcpu_cpus, emulator, tuple(dict.fromkeys(own)), mems=found.mems, given=True)


def _is_own(cpus: CpuSet, cpu_sets: CpuSets) -> bool:
    """Whether CPUs to which a guest is pinned count as dedicated.

    With the legacy option ``vcpu_pin_set``, only a pin to a single CPU counts.
    """
    # If dedicated and shared CPUs overlap, a guest on several of them perhaps also floats there.
    if len(cpus) == 1 or not cpu_sets.dedicated & cpu_sets.shared:
        return bool(cpus) and cpus <= cpu_sets.dedicated and (len(cpus) == 1 or cpus != cpu_sets.dedicated)
    return False


def place_in_order(supply: CpuSupply, request: GuestRequest) -> CpuAssignment | PlacementRefusal:
    """Policies ``static``: place a guest on the lowest free dedicated CPUs of each zone.

    With a thread policy other than prefer, the guest gets the fewest and lowest cores that satisfy the
    policy. Caches and NUMA nodes do not matter.
    """
    return place_guest(supply, request, _choose_lowest)


def _core_demand(request: GuestRequest, demand: ProviderDemand) -> CoreDemand:
    """The CPUs and cores that a guest needs from a provider.

    With thread policy isolate, the guest needs a core for each used CPU. The cores are divided over the
    demands in proportion to their PCPU.
    """
    if request.thread_policy is not ThreadPolicy.ISOLATE:
        return CoreDemand(request.thread_policy, demand.pcpu)
    # The CPU of the emulator threads is chosen last, and so from the last zone with PCPU.
    is_last = demand is [each for each in request.demands if each.pcpu][-1]
    extra = is_last and request.has_emulator_cpu
    # The number is rounded down, because place_guest() checks the sum over all zones.
    cores = request.used_pcpu * demand.pcpu // request.pcpu
    return CoreDemand(request.thread_policy, demand.pcpu, cores, extra)


def _explain_refusal(
    supply: CpuSupply, request: GuestRequest, demand: ProviderDemand, free: CpuSet
) -> PlacementRefusal:
    """The refusal of a guest, with the reason why its demand cannot be met from the free CPUs."""
    if request.thread_policy is ThreadPolicy.ISOLATE:
        threads = min(len(supply.topology.threads_of(cpu)) for cpu in free)
        emulator = int(request.has_emulator_cpu)
        needed = (request.used_pcpu - emulator) * threads + emulator
        if request.pcpu < needed:
            return PlacementRefusal(
                f"thread policy isolate takes whole cores: the guest needs {needed} PCPU on cores of"
                f" {threads} threads, but its allocation has {request.pcpu}"
            )
    return PlacementRefusal(
        f"{demand.zone} has {len(free)} free dedicated CPUs, but not {demand.pcpu} that satisfy thread"
        f" policy {request.thread_policy}"
    )


def _choose_lowest(
    supply: CpuSupply, request: GuestRequest, demand: ProviderDemand, free: CpuSet
) -> tuple[int, ...] | PlacementRefusal:
    order = supply.core_order(request)
    if request.thread_policy is ThreadPolicy.PREFER:
        # The CPUs are in ascending order, but CPUs that do not suit the isolation level come last. Sibling
        # load does not count.
        return tuple(sorted(free, key=lambda cpu: (supply.is_unsuited(request, cpu), cpu))[: demand.pcpu])
    cores, want = free_cores(supply.topology, free), _core_demand(request, demand)
    if choice_cost(cores, want) is None:
        return _explain_refusal(supply, request, demand, free)
    return choose_cpus(cores, want, order)


LOCAL_DISTANCE: Final = 10
"""Distance of a NUMA node to itself (ACPI SLIT)."""

Group = tuple[FreeCores, ...]
Candidate = tuple[Group, CoreCost]


def place_by_topology(supply: CpuSupply, request: GuestRequest) -> CpuAssignment | PlacementRefusal:
    """Policy ``topology-aware``: place a guest on few caches and nodes, so that other caches stay free."""
    return place_guest(supply, request, _choose_best)


def _choose_best(
    supply: CpuSupply, request: GuestRequest, demand: ProviderDemand, free: CpuSet
) -> tuple[int, ...] | PlacementRefusal:
    topology = supply.topology
    want = _core_demand(request, demand)
    available = free_cores(topology, free)
    beside = supply.core_order(request)

    def rank_candidate(candidate: Candidate) -> tuple[float, ...]:
        group, found = candidate
        ranked = _rank_group(topology, group, found, want.cpus)
        if beside is None:
            return ranked
        # This criterion comes after zones and cores, so that no guest is spread over two caches for the sake
        # of an idle sibling.
        return *ranked[:6], sum(map(beside, choose_cpus(group, want, beside))), *ranked[6:]

    # The kinds of groups are in the order of the first criteria: a later kind is tried only if the earlier
    # ones have no candidate.
    for groups in (_single_pieces, _in_one_node, _across_nodes):
        possible = list(groups(topology, available, want))
        if len(possible) > 1:
            possible.sort(key=rank_candidate)
        if possible:
            return choose_cpus(possible[0][0], want, beside)
    return _explain_refusal(supply, request, demand, free)


def _rank_group(topology: HostTopology, group: Group, found: CoreCost, count: int) -> tuple[int, ...]:
    """The rank of a group of pieces of the host, as a tuple. The group with the lowest tuple wins.

    The criteria in their order:

    - the number of NUMA nodes
    - the number of L3 domains
    - the number of packages
    - the distance between the nodes
    - the cost of the choice of cores (two numbers, see :class:`CoreCost`)
    - whether the CPUs suit the level of isolation, and the load of their siblings if it was measured
    - whether a piece that was wholly free is used only in part
    - the number of free CPUs left in the used pieces, so that other pieces keep more free CPUs
    """
    left = sum(len(free.cpus) for free in group) - count
    # All pieces except the last one are used up, apart from cores that the thread policy cannot use.
    last = group[-1]
    breaks = int(left > 0 and len(last.cpus) == len(last.piece.cpus))
    if len(group) == 1:
        return (1, 1, 1, 0, *found, breaks, left)
    nodes = {free.piece.node for free in group}
    l3s = {free.piece.l3 for free in group}
    packages = {free.piece.package for free in group}
    return (len(nodes), len(l3s), len(packages), _total_distance(topology, nodes), *found, breaks, left)


def _single_pieces(
    topology: HostTopology, available: Sequence[FreeCores], want: CoreDemand
) -> Iterator[Candidate]:
    for free in available:
        if capacity(free, want) >= want.cpus and (found := choice_cost((free,), want)) is not None:
            yield (free,), found


def _in_one_node(
    topology: HostTopology, available: Sequence[FreeCores], want: CoreDemand
) -> Iterator[Candidate]:
    by_node: dict[int | None, list[FreeCores]] = {}
    for free in available:
        by_node.setdefault(free.piece.node, []).append(free)
    for inside in by_node.values():
        capacities = {free: capacity(free, want) for free in inside}
        if len(inside) > 1 and sum(capacities.values()) >= want.cpus:
            yield from _distinct_groups(
                _collect_pieces(capacities, want, start, [inside]) for start in _distinct_pieces(inside)
            )


def _across_nodes(
    topology: HostTopology, available: Sequence[FreeCores], want: CoreDemand
) -> Iterator[Candidate]:
    capacities = {free: capacity(free, want) for free in available}
    if sum(capacities.values()) < want.cpus:
        return iter(())
    return _distinct_groups(
        _collect_pieces(capacities, want, start, rings)
        for start in _distinct_pieces(available)
        for near in [_by_distance(topology, start, available)]
        # For each first piece there are two groups: one with the nearest pieces, and one with the fewest
        # pieces at any distance. Ranks decide between them.
        for rings in (near, [[free for ring in near for free in ring]])
    )


def _distinct_pieces(available: Sequence[FreeCores]) -> Iterable[FreeCores]:
    """The first of each set of pieces that differ only by their ids."""
    return {
        (free.piece.node, free.piece.package, free.cpus == free.piece.cpus, free.amounts): free
        for free in reversed(available)
    }.values()


def _distinct_groups(candidates: Iterable[Candidate | None]) -> Iterator[Candidate]:
    """The candidates without duplicate groups of pieces."""
    return iter({frozenset(each[0]): each for each in candidates if each is not None}.values())


def _by_distance(
    topology: HostTopology, start: FreeCores, available: Sequence[FreeCores]
) -> list[list[FreeCores]]:
    """Groups of pieces by distance from ``start``, the nearest first, other packages last."""
    rings: dict[tuple[bool, int], list[FreeCores]] = {}
    for free in available:
        distance = _node_distance(topology, start.piece.node, free.piece.node)
        rings.setdefault((free.piece.package != start.piece.package, distance), []).append(free)
    return [rings[distance] for distance in sorted(rings)]


def _collect_pieces(
    capacities: Mapping[FreeCores, int],
    want: CoreDemand,
    start: FreeCores,
    rings: Iterable[Sequence[FreeCores]],
) -> Candidate | None:
    """Add pieces to ``start`` until the group meets the demand; return the group with its cost, or None.

    ``rings`` are groups of pieces in the order in which the search uses them. In a ring, the smallest piece
    that has all missing CPUs is added, or else the largest piece, so that few pieces are used.
    """
    group = [start]
    missing = want.cpus - capacities[start]
    for ring in rings:
        others = [free for free in ring if free is not start]
        while missing > 0 or (found := choice_cost(group, want)) is None:
            if not others:
                break
            enough = [free for free in others if capacities[free] >= missing]
            chosen = (
                min(enough, key=capacities.__getitem__) if enough else max(others, key=capacities.__getitem__)
            )
            others.remove(chosen)
            group.append(chosen)
            missing -= capacities[chosen]
        else:
            return tuple(group), found
    return None


def _total_distance(topology: HostTopology, nodes: Iterable[int | None]) -> int:
    known = [node for node in nodes if node is not None]
    return sum(_node_distance(topology, one, other) for one in known for other in known if one < other)


def _node_distance(topology: HostTopology, one: int | None, other: int | None) -> int:
    if one == other or one is None or other is None:
        return LOCAL_DISTANCE
    # 20, the kernel's REMOTE_DISTANCE, stands for a distance that the firmware does not report.
    return topology.distances.get(one, {}).get(other, 2 * LOCAL_DISTANCE)
