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

_TOGETHER = frozenset({ThreadPolicy.PREFER, ThreadPolicy.REQUIRE})

LOCAL_DISTANCE = 10
"""Distance of a NUMA node to itself (ACPI SLIT)."""


def place_by_topology(supply: Supply, request: Request) -> Assignment | Refusal:
    """The free dedicated CPUs of each zone that serve the guest and those after it best."""
    return place(supply, request, _best)


def score(topology: Topology, free: CpuSet, chosen: CpuSet, policy: ThreadPolicy) -> tuple[int, ...]:
    """How bad a choice is; the least tuple wins. In this order:

    1. NUMA nodes crossed, 2. L3 domains crossed, 3. packages crossed, 4. distance between the nodes;
    5. cores crossed, 6. cores left with only some of their threads free (with thread policies isolate and
    spread instead: threads of the guest that share a core, and cores shared with others);
    7. L3 domains broken that were wholly free before,
    8. free CPUs left in the L3 domains used (the tightest fit leaves the largest holes elsewhere).
    """
    nodes = {topology.node_of(cpu) for cpu in chosen}
    l3s = [cache for cache in topology.l3_domains if cache.cpus & chosen]
    cores = {topology.threads_of(cpu) for cpu in chosen}
    packages = {core.package for cpu in chosen if (core := topology.core_of(cpu)) is not None}
    left = free - chosen
    if policy in _TOGETHER:
        broken = sum(1 for core in topology.cores if core.cpus & left and not core.cpus <= left)
        core_criteria = (len(cores), broken)
    else:
        core_criteria = (len(chosen) - len(cores), sum(1 for core in cores if not core <= free))
    return (
        len(nodes),
        len(l3s),
        len(packages),
        _distance(topology, nodes),
        *core_criteria,
        sum(1 for cache in l3s if cache.cpus <= free and cache.cpus & left),
        sum(len(cache.cpus & left) for cache in l3s),
    )


def _best(supply: Supply, request: Request, demand: Demand, free: CpuSet) -> tuple[int, ...] | Refusal:
    topology = supply.topology
    policy = request.thread_policy
    if policy is ThreadPolicy.ISOLATE and request.pcpu > request.vcpus:
        policy = ThreadPolicy.REQUIRE  # the allocation counts the siblings too: whole cores
    ranked = [
        (score(topology, free, frozenset(cpus), policy), cpus)
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
        if len(inside) >= count and (cpus := _pick(topology, policy, count, [inside])) is not None:
            yield cpus
    for start in topology.l3_domains:
        for nearest_first in (True, False):
            cpus = _walk(topology, policy, count, free, start.cpus, nearest_first)
            if cpus is not None:
                yield cpus


def _domains(topology: Topology) -> Iterable[CpuSet]:
    seen: set[CpuSet] = set()
    for group in (topology.l3_domains, topology.numa_nodes, topology.packages):
        seen.update(part.cpus for part in group)
    seen.add(topology.online)
    return sorted(seen, key=lambda cpus: (len(cpus), sorted(cpus)))


def _walk(
    topology: Topology,
    policy: ThreadPolicy,
    count: int,
    free: CpuSet,
    start: CpuSet,
    nearest_first: bool,
) -> tuple[int, ...] | None:
    """A choice that fills the L3 domain it starts in and goes on to others until there is enough.

    Either to the nearest first, or to whatever makes the fewest: the tightest that has all that is missing,
    else the roomiest. Each decides where the other leaves it open.
    """
    home = topology.node_of(min(start))
    reach = [free & start]
    others = [cache.cpus for cache in topology.l3_domains if cache.cpus != start and cache.cpus & free]
    while True:
        missing = count - sum(map(len, reach))
        if missing <= 0 and (cpus := _pick(topology, policy, count, reach)) is not None:
            return cpus
        if not others:
            return None

        def cost(cpus: CpuSet, missing: int = missing) -> tuple[tuple[int, int], ...]:
            amount = len(cpus & free)
            distance = (_node_distance(topology, home, topology.node_of(min(cpus))), 0)
            fit = (0, amount) if amount >= missing else (1, -amount)
            return (distance, fit) if nearest_first else (fit, distance)

        chosen = min(others, key=cost)
        others.remove(chosen)
        reach.append(chosen & free)


def _pick(
    topology: Topology, policy: ThreadPolicy, count: int, areas: Sequence[CpuSet]
) -> tuple[int, ...] | None:
    """``count`` CPUs of the areas, rather of the first ones, as the thread policy wants them; None if that
    cannot be.
    """
    cores = [core for area in areas for core in _free_threads_by_core(topology, area)]
    whole = [threads for threads, is_whole in cores if is_whole]
    partial = [threads for threads, is_whole in cores if not is_whole]
    match policy:
        case ThreadPolicy.ISOLATE:
            return _isolate(whole, count)
        case ThreadPolicy.SPREAD:
            return _one_by_one(whole + partial, count)
        case ThreadPolicy.REQUIRE:
            return _together([threads for threads in whole if len(threads) > 1], [], count)
        case _:
            return _together(whole, partial, count)


def _free_threads_by_core(topology: Topology, inside: CpuSet) -> list[tuple[tuple[int, ...], bool]]:
    """The CPUs of ``inside`` by core, lowest first, and whether all of the core's threads are there."""
    by_core = {topology.threads_of(cpu) for cpu in inside}
    return sorted((tuple(sorted(core & inside)), core <= inside) for core in by_core)


def _together(
    whole: Sequence[tuple[int, ...]], partial: Sequence[tuple[int, ...]], count: int
) -> tuple[int, ...] | None:
    """CPUs on as few cores as can be, and of those choices one that leaves the fewest cores broken."""
    kinds: dict[tuple[int, bool], list[tuple[int, ...]]] = {}
    for is_whole, cores in ((False, partial), (True, whole)):
        for threads in cores:
            kinds.setdefault((len(threads), is_whole), []).append(threads)
    order = sorted(kinds, key=lambda kind: (-kind[0], kind[1]))
    plan = _cheapest([(size, is_whole, len(kinds[size, is_whole])) for size, is_whole in order], count)
    if plan is None:
        return None
    full, broken = plan
    chosen = [
        cpu for kind, amount in zip(order, full, strict=True) for core in kinds[kind][:amount] for cpu in core
    ]
    if broken is not None:
        next_core = kinds[order[broken]][full[broken]]
        chosen.extend(next_core[: count - len(chosen)])
    return tuple(chosen)


def _cheapest(
    kinds: Sequence[tuple[int, bool, int]], count: int
) -> tuple[tuple[int, ...], int | None] | None:
    """How many cores of each kind to fill, and the kind of one more to use in part (None: none).

    A kind is (free threads, all of the core's threads are free, how many such cores). Least is the number of
    cores, then of broken cores afterwards. At most one core is used in part: two could be replaced by a
    fuller and an emptier one.
    """
    best: tuple[tuple[int, int], tuple[int, ...], int | None] | None = None

    def visit(index: int, missing: int, full: tuple[int, ...], unbroken: int) -> None:
        nonlocal best
        used = sum(full)
        if best is not None and used > best[0][0]:
            return
        if index < len(kinds) and missing:
            size, is_whole, amount = kinds[index]
            for filled in range(min(amount, missing // size), -1, -1):
                mended = 0 if is_whole else filled
                visit(index + 1, missing - filled * size, (*full, filled), unbroken + mended)
            return
        full = full + (0,) * (len(kinds) - len(full))
        if not missing:
            offer((used, -unbroken), full, None)
            return
        for kind, (size, is_whole, amount) in enumerate(kinds):
            if size > missing and full[kind] < amount:
                offer((used + 1, -unbroken + (1 if is_whole else 0)), full, kind)

    def offer(cost: tuple[int, int], full: tuple[int, ...], part: int | None) -> None:
        nonlocal best
        if best is None or cost < best[0]:
            best = (cost, full, part)

    visit(0, count, (), 0)
    return None if best is None else best[1:]


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
