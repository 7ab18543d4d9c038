"""Policy ``topology-aware``: few zones for the guest, and whole cores and caches left for the next one.

Candidates are made domain by domain (each L3, NUMA node, package, and the host), each by taking whole cores
first; the best is the least by :func:`score`, whose criteria are listed there in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from compute_agent.host.topology import Topology
from compute_agent.policy.base import (
    Assignment,
    CpuSet,
    Demand,
    Refusal,
    Request,
    Supply,
    ThreadPolicy,
    place,
)

LOCAL_DISTANCE = 10
"""Distance of a NUMA node to itself (ACPI SLIT)."""


def place_by_topology(supply: Supply, request: Request) -> Assignment | Refusal:
    """The free dedicated CPUs of each zone that serve the guest and those after it best."""
    return place(supply, request, _best)


def score(topology: Topology, free: CpuSet, chosen: CpuSet) -> tuple[int, ...]:
    """How bad a choice is; the least tuple wins. In this order:

    1. NUMA nodes crossed, 2. L3 domains crossed, 3. packages crossed, 4. distance between the nodes;
    5. cores left with only some of their threads free, 6. L3 domains broken that were wholly free before,
    7. free CPUs left in the L3 domains used (the tightest fit leaves the largest holes elsewhere).
    """
    nodes = {topology.node_of(cpu) for cpu in chosen}
    l3s = [cache for cache in topology.l3_domains if cache.cpus & chosen]
    packages = {core.package for cpu in chosen if (core := topology.core_of(cpu)) is not None}
    left = free - chosen
    broken_cores = sum(1 for core in topology.cores if core.cpus & left and not core.cpus <= left)
    broken_l3s = sum(1 for cache in l3s if cache.cpus <= free and cache.cpus & left)
    left_beside = sum(len(cache.cpus & left) for cache in l3s)
    return (
        len(nodes),
        len(l3s),
        len(packages),
        _distance(topology, nodes),
        broken_cores,
        broken_l3s,
        left_beside,
    )


def _best(supply: Supply, request: Request, demand: Demand, free: CpuSet) -> tuple[int, ...] | Refusal:
    topology = supply.topology
    policy = request.thread_policy
    if policy is ThreadPolicy.ISOLATE and request.pcpu > request.vcpus:
        policy = ThreadPolicy.REQUIRE  # the allocation counts the siblings too: whole cores
    ranked = [
        (score(topology, free, frozenset(cpus)), cpus)
        for cpus in _candidates(topology, policy, demand.pcpu, free)
    ]
    if not ranked:
        return Refusal(
            f"{demand.zone} has {len(free)} free dedicated CPUs, but not {demand.pcpu} that satisfy thread"
            f" policy {request.thread_policy}"
        )
    return min(ranked)[1]


def _candidates(
    topology: Topology, policy: ThreadPolicy, count: int, free: CpuSet
) -> Iterator[tuple[int, ...]]:
    for domain in _domains(topology):
        inside = free & domain
        if len(inside) >= count and (cpus := _pick(topology, policy, count, inside)) is not None:
            yield cpus
    for start in topology.l3_domains:
        cpus = _walk(topology, policy, count, free, start.cpus)
        if cpus is not None:
            yield cpus


def _domains(topology: Topology) -> Iterable[CpuSet]:
    seen: set[CpuSet] = set()
    for group in (topology.l3_domains, topology.numa_nodes, topology.packages):
        seen.update(part.cpus for part in group)
    seen.add(topology.online)
    return sorted(seen, key=lambda cpus: (len(cpus), sorted(cpus)))


def _walk(
    topology: Topology, policy: ThreadPolicy, count: int, free: CpuSet, start: CpuSet
) -> tuple[int, ...] | None:
    """A choice that fills the L3 domain it starts in and goes on to the nearest ones."""
    home = topology.node_of(min(start))

    def far(cpus: CpuSet) -> tuple[int, int, int]:
        node = topology.node_of(min(cpus))
        return (_node_distance(topology, home, node), -len(cpus & free), min(cpus))

    reach: CpuSet = free & start
    for cache in sorted(topology.l3_domains, key=lambda cache: far(cache.cpus)):
        if len(reach) >= count and (cpus := _pick(topology, policy, count, reach)) is not None:
            return cpus
        reach |= free & cache.cpus
    return _pick(topology, policy, count, reach) if len(reach) >= count else None


def _pick(topology: Topology, policy: ThreadPolicy, count: int, inside: CpuSet) -> tuple[int, ...] | None:
    """``count`` CPUs of ``inside`` as the thread policy wants them; None if that cannot be."""
    cores = _free_threads_by_core(topology, inside)
    whole = [threads for threads, is_whole in cores if is_whole]
    partial = [threads for threads, is_whole in cores if not is_whole]
    match policy:
        case ThreadPolicy.ISOLATE:
            return _isolate(whole, count)
        case ThreadPolicy.SPREAD:
            return _one_by_one(whole + partial, count)
        case ThreadPolicy.REQUIRE:
            if not any(len(threads) > 1 for threads in whole):
                return None
            return _pack([threads for threads in whole if len(threads) > 1], [], count)
        case _:
            return _pack(whole, partial, count)


def _free_threads_by_core(topology: Topology, inside: CpuSet) -> list[tuple[tuple[int, ...], bool]]:
    """The CPUs of ``inside`` by core, lowest first, and whether all of the core's threads are there."""
    by_core = {topology.threads_of(cpu) for cpu in inside}
    return sorted((tuple(sorted(core & inside)), core <= inside) for core in by_core)


def _pack(
    whole: Sequence[tuple[int, ...]], partial: Sequence[tuple[int, ...]], count: int
) -> tuple[int, ...] | None:
    """Whole cores as far as they are filled, then threads of broken cores, then one more core broken."""
    chosen: list[int] = []
    unused: list[tuple[int, ...]] = []
    for threads in whole:
        if len(chosen) + len(threads) <= count:
            chosen.extend(threads)
        else:
            unused.append(threads)
    rest = [cpu for threads in (*partial, *unused) for cpu in threads]
    missing = count - len(chosen)
    if missing > len(rest):
        return None
    return (*chosen, *rest[:missing])


def _one_by_one(cores: Sequence[tuple[int, ...]], count: int) -> tuple[int, ...] | None:
    """A thread of every core before the second thread of any."""
    rounds = max((len(threads) for threads in cores), default=0)
    order = [threads[turn] for turn in range(rounds) for threads in cores if turn < len(threads)]
    return tuple(order[:count]) if len(order) >= count else None


def _isolate(whole: Sequence[tuple[int, ...]], count: int) -> tuple[int, ...] | None:
    """One thread per wholly free core."""
    return tuple(threads[0] for threads in whole[:count]) if len(whole) >= count else None


def _distance(topology: Topology, nodes: Iterable[int | None]) -> int:
    known = [node for node in nodes if node is not None]
    return sum(_node_distance(topology, one, other) for one in known for other in known if one < other)


def _node_distance(topology: Topology, one: int | None, other: int | None) -> int:
    if one == other or one is None or other is None:
        return LOCAL_DISTANCE
    return topology.distances.get(one, {}).get(other, 2 * LOCAL_DISTANCE)
