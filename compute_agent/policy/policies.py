"""Policy ``none``: guests are accounted and listed, and left where they are.

Policy ``follow``: guests run where somebody else pins them, such as Nova, and the agent goes by that.

Nothing is chosen and nobody is moved. The assignment of a guest is what the kernel shows of it: its guest
CPUs and its other threads as they are pinned now, and the NUMA nodes that its memory is bound to.

With CPUs 0-3 dedicated and 4-7 shared, a guest whose two guest CPUs are pinned to CPU 1 and CPU 3 and whose
emulator runs on 4-7 has the dedicated CPUs 1 and 3. One without pins, on 4-7, has none, and floats there.

Policies ``static``, ``static-plus`` and ``static-pools``: dedicated CPUs in ascending order.

Policy ``topology-aware``: few zones for the guest, and whole cores and caches left for the next one.

Candidates are groups of pieces (an L3 domain in a NUMA node) with free cores: single pieces, else those of
one node, else of several nodes. The best is the lowest by :func:`_rank`, which lists the criteria in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from compute_agent.host.topology import HostTopology
from compute_agent.model.cpuset import CpuSet, CpuSets
from compute_agent.model.guest import CpuAssignment
from compute_agent.model.guest_settings import ThreadPolicy
from compute_agent.policy.base import (
    CpuSupply,
    FreeCores,
    GuestRequest,
    PlacementRefusal,
    ProviderDemand,
    free_cores,
    place,
)
from compute_agent.policy.cores import CoreCost, CoreDemand, capacity, choose, cost, refuse, want_of


def place_nowhere(supply: CpuSupply, request: GuestRequest) -> None:
    """Leave the guest as it is."""


@dataclass(frozen=True, slots=True)
class KernelPlacement:
    """Where the kernel lets a guest run.

    ``cpus`` are those of all its threads together, ``vcpu_cpus`` those of each guest CPU by its number, as
    far as its thread can be told from others, ``emulator_cpus`` those of the threads that run no guest CPU.
    ``mems`` are the NUMA nodes that its memory is bound to; empty: it is not.
    """

    cpus: CpuSet
    vcpu_cpus: Mapping[int, CpuSet] = field(default_factory=dict)
    emulator_cpus: CpuSet = frozenset()
    mems: CpuSet = frozenset()


def leave_in_place(supply: CpuSupply, request: GuestRequest) -> None:
    """Leave the guest where somebody else has it."""


def as_found(cpu_sets: CpuSets, vcpus: int, found: KernelPlacement) -> CpuAssignment:
    """The assignment of a guest of so many guest CPUs that is where it was ``found``.

    Dedicated are the CPUs of guest CPUs that run within the dedicated set, and those of the other threads if
    they do so apart from them. Whoever may use all of the set floats on it.
    """
    vcpu_cpus = tuple(found.vcpu_cpus.get(number) or found.cpus for number in range(vcpus))
    emulator = found.emulator_cpus or found.cpus
    own = [cpu for cpus in vcpu_cpus if _is_own(cpus, cpu_sets) for cpu in sorted(cpus)]
    if own and _is_own(emulator, cpu_sets) and emulator.isdisjoint(frozenset().union(*vcpu_cpus)):
        own += sorted(emulator)
    return CpuAssignment(vcpu_cpus, emulator, tuple(dict.fromkeys(own)), mems=found.mems, given=True)


def _is_own(cpus: CpuSet, cpu_sets: CpuSets) -> bool:
    """Whether CPUs are some guest's own: with the legacy ``vcpu_pin_set`` a single one only is."""
    if len(cpus) == 1 or not cpu_sets.dedicated & cpu_sets.shared:
        return bool(cpus) and cpus <= cpu_sets.dedicated and (len(cpus) == 1 or cpus != cpu_sets.dedicated)
    return False


def place_in_order(supply: CpuSupply, request: GuestRequest) -> CpuAssignment | PlacementRefusal:
    """The lowest free dedicated CPUs of each zone; the rest of the guest floats over the shared CPUs.

    With a thread policy other than prefer the fewest and lowest cores that satisfy it, whatever caches and
    nodes they are of.
    """
    return place(supply, request, _lowest)


def _lowest(
    supply: CpuSupply, request: GuestRequest, demand: ProviderDemand, free: CpuSet
) -> tuple[int, ...] | PlacementRefusal:
    if request.thread_policy is ThreadPolicy.PREFER:
        return tuple(sorted(free)[: demand.pcpu])
    cores, want = free_cores(supply.topology, free), want_of(request, demand)
    if cost(cores, want) is None:
        return refuse(supply, request, demand, free)
    return choose(cores, want, partial(supply.beside, request) if supply.busy else None)


LOCAL_DISTANCE: Final = 10
"""Distance of a NUMA node to itself (ACPI SLIT)."""

Group = tuple[FreeCores, ...]
Candidate = tuple[Group, CoreCost]


def place_by_topology(supply: CpuSupply, request: GuestRequest) -> CpuAssignment | PlacementRefusal:
    """The free dedicated CPUs of each zone that serve the guest and those after it best."""
    return place(supply, request, _best)


def _best(
    supply: CpuSupply, request: GuestRequest, demand: ProviderDemand, free: CpuSet
) -> tuple[int, ...] | PlacementRefusal:
    topology = supply.topology
    want = want_of(request, demand)
    available = free_cores(topology, free)
    beside = partial(supply.beside, request) if supply.busy else None

    def rank(candidate: Candidate) -> tuple[float, ...]:
        group, found = candidate
        ranked = _rank(topology, group, found, want.cpus)
        if beside is None:
            return ranked
        return *ranked[:6], sum(map(beside, choose(group, want, beside))), *ranked[6:]

    for groups in (_single, _in_one_node, _across_nodes):
        possible = list(groups(topology, available, want))
        if len(possible) > 1:
            possible.sort(key=rank)
        if possible:
            return choose(possible[0][0], want, beside)
    return refuse(supply, request, demand, free)


def _rank(topology: HostTopology, group: Group, found: CoreCost, count: int) -> tuple[int, ...]:
    """How bad a group of pieces is; the lowest tuple wins.

    The criteria are, in this order:

    1. NUMA nodes crossed, 2. L3 domains crossed, 3. packages crossed, 4. distance between the nodes;
    5. and 6. what the choice of cores costs; then, where it was measured, how busy others keep these cores;
    7. whether a piece is broken that was wholly free before,
    8. free CPUs left in the pieces used (the tightest fit leaves the largest holes elsewhere).
    """
    left = sum(len(free.cpus) for free in group) - count
    last = group[-1]
    breaks = int(left > 0 and len(last.cpus) == len(last.piece.cpus))
    if len(group) == 1:
        return (1, 1, 1, 0, *found, breaks, left)
    nodes = {free.piece.node for free in group}
    l3s = {free.piece.l3 for free in group}
    packages = {free.piece.package for free in group}
    return (len(nodes), len(l3s), len(packages), _distance(topology, nodes), *found, breaks, left)


def _single(topology: HostTopology, available: Sequence[FreeCores], want: CoreDemand) -> Iterator[Candidate]:
    for free in available:
        if capacity(free, want) >= want.cpus and (found := cost((free,), want)) is not None:
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
            yield from _distinct(_walk(capacities, want, start, [inside]) for start in _unlike(inside))


def _across_nodes(
    topology: HostTopology, available: Sequence[FreeCores], want: CoreDemand
) -> Iterator[Candidate]:
    capacities = {free: capacity(free, want) for free in available}
    if sum(capacities.values()) < want.cpus:
        return iter(())
    return _distinct(
        _walk(capacities, want, start, rings)
        for start in _unlike(available)
        for near in [_by_distance(topology, start, available)]
        for rings in (near, [[free for ring in near for free in ring]])
    )


def _unlike(available: Sequence[FreeCores]) -> Iterable[FreeCores]:
    """The first of the pieces that differ in nothing but their ids."""
    return {
        (free.piece.node, free.piece.package, free.cpus == free.piece.cpus, free.amounts): free
        for free in reversed(available)
    }.values()


def _distinct(candidates: Iterable[Candidate | None]) -> Iterator[Candidate]:
    """Each group of pieces once."""
    return iter({frozenset(each[0]): each for each in candidates if each is not None}.values())


def _by_distance(
    topology: HostTopology, start: FreeCores, available: Sequence[FreeCores]
) -> list[list[FreeCores]]:
    """The pieces at the same distance from one, the nearest first, and other packages last."""
    rings: dict[tuple[bool, int], list[FreeCores]] = {}
    for free in available:
        distance = _node_distance(topology, start.piece.node, free.piece.node)
        rings.setdefault((free.piece.package != start.piece.package, distance), []).append(free)
    return [rings[distance] for distance in sorted(rings)]


def _walk(
    capacities: Mapping[FreeCores, int],
    want: CoreDemand,
    start: FreeCores,
    rings: Iterable[Sequence[FreeCores]],
) -> Candidate | None:
    """The pieces from one on until there is enough, and what the choice of cores costs.

    All of a ring come before the next one. In a ring comes first what makes the fewest: the tightest that has
    all that is missing, else the one with the largest capacity.
    """
    group = [start]
    missing = want.cpus - capacities[start]
    for ring in rings:
        others = [free for free in ring if free is not start]
        while missing > 0 or (found := cost(group, want)) is None:
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


def _distance(topology: HostTopology, nodes: Iterable[int | None]) -> int:
    known = [node for node in nodes if node is not None]
    return sum(_node_distance(topology, one, other) for one in known for other in known if one < other)


def _node_distance(topology: HostTopology, one: int | None, other: int | None) -> int:
    if one == other or one is None or other is None:
        return LOCAL_DISTANCE
    return topology.distances.get(one, {}).get(other, 2 * LOCAL_DISTANCE)
