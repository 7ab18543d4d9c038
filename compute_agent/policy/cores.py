"""The pieces of a host with their free cores, and the choice of free cores by thread policy.

A piece consists of the CPUs of one NUMA node, one L3 cache and one package. CPUs are numbers of logical CPUs.
A core is *broken* if only some of its threads are free, because guests use the others. A guest gets few
cores, and breaks few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from compute_agent.host.topology import HostTopology
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest_settings import ThreadPolicy


@dataclass(frozen=True, slots=True, eq=False)
class CpuPiece:
    """The CPUs of one NUMA node, L3 cache and package. An id is None if it is unknown."""

    id: int
    cpus: CpuSet
    node: int | None
    l3: int | None
    package: int | None
    cores: tuple[tuple[CpuSet, tuple[int, ...]], ...]
    """The online threads of each core in the piece, as a set and in order; the lowest core first."""


class CoreKind(NamedTuple):
    """The kind of a free core: the number of its free threads, and whether all its threads are free."""

    free: int
    whole: bool


Amounts = tuple[tuple[CoreKind, int], ...]
"""Numbers of cores by kind. Kinds with more free threads come first, and partly used cores before wholly free
cores.
"""


@dataclass(frozen=True, slots=True, eq=False)
class FreeCores:
    """The free CPUs of a piece.

    :ivar cores: for each kind of core, the free threads of each core, the lowest core first.
    :ivar amounts: the number of cores of each kind.
    """

    piece: CpuPiece
    cpus: CpuSet
    cores: Mapping[CoreKind, tuple[tuple[int, ...], ...]]
    amounts: Amounts


class CpuLayout(NamedTuple):
    """For each usable CPU, its piece and its NUMA node, if the node has memory."""

    piece_of: Mapping[int, CpuPiece]
    memory_node_of: Mapping[int, int]
    """The NUMA node of each CPU, for nodes with memory."""


def free_cores(topology: HostTopology, free: CpuSet) -> list[FreeCores]:
    """The free CPUs as a list with an item for each piece, in the order of the pieces."""
    pieces = set(map(_known_layout(topology).piece_of.__getitem__, free))
    if len(pieces) == 1:  # the zone of a guest is often one piece, and no intersection is needed then
        return [_free_cores(pieces.pop(), free)]
    return [_free_cores(piece, piece.cpus & free) for piece in sorted(pieces, key=lambda piece: piece.id)]


def memory_nodes(topology: HostTopology, cpus: CpuSet) -> CpuSet:
    """Return the NUMA nodes of these CPUs, without nodes that have no memory."""
    node_of = _known_layout(topology).memory_node_of
    return frozenset({node_of[cpu] for cpu in cpus if cpu in node_of})


# The result is cached, because most pieces have the same free CPUs for one guest as for the next.
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
    """Sort numbers of cores by kind in the order of :data:`Amounts`."""
    return tuple(sorted(totals.items(), key=lambda item: (-item[0].free, item[0].whole)))


_LAYOUTS: Final[dict[int, tuple[HostTopology, CpuLayout]]] = {}
"""Layouts by ``id()`` of the topology.

The dictionary keeps the topologies, so that no other object gets their ids. A comparison of topologies would
take longer than a placement.
"""

_HOSTS: Final = 4
"""Maximum number of cached layouts. The agent uses one topology at a time, and a new one when CPUs go offline
or come online.
"""


def _known_layout(topology: HostTopology) -> CpuLayout:
    # The key is the identity, because hashing a topology covers all CPUs of the host and would be repeated
    # for each guest.
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
        # The order is reversed, so that the first node wins if several nodes have a CPU, as in node_of().
        {cpu: node.id for node in reversed(topology.numa_nodes) if node.memory_kib for cpu in node.cpus},
    )


def _core_threads(topology: HostTopology, cpus: Sequence[int]) -> tuple[tuple[CpuSet, tuple[int, ...]], ...]:
    cores = dict.fromkeys(topology.threads_of(cpu) for cpu in cpus)
    return tuple((core, tuple(sorted(core))) for core in cores)


class CoreDemand(NamedTuple):
    """The number of CPUs and of cores that a guest needs from one provider.

    :ivar cpus: the number of CPUs that the guest needs.
    :ivar cores: with thread policy isolate, the minimum number of whole cores.
    :ivar extra: whether one of the CPUs is for the emulator threads, which need no whole core.
    """

    policy: ThreadPolicy
    cpus: int
    cores: int = 0
    extra: bool = False


class CoreCost(NamedTuple):
    """The cost of a choice of CPUs. Lower is better. ``broken`` decides between choices with equal ``cores``.

    :ivar cores: the number of cores of the choice. With thread policy spread, the number of CPUs that share a
        core with another CPU of the guest.
    :ivar broken: the number of wholly free cores that the choice uses in part, minus the number of broken
        cores that it fills. With thread policy spread, the number of cores that are shared with other guests.
    """

    cores: int
    broken: int


class CorePlan(NamedTuple):
    """A choice of cores by kind.

    :ivar filled: the number of cores, by kind, of which all free threads are taken.
    :ivar part: the kind of the only core of which not all free threads are taken; None if there is no such
        core.
    """

    cost: CoreCost
    filled: tuple[tuple[CoreKind, int], ...]
    part: CoreKind | None


_FITS: Final[Mapping[ThreadPolicy, Callable[[CoreKind], bool]]] = {
    ThreadPolicy.PREFER: lambda kind: True,
    ThreadPolicy.REQUIRE: lambda kind: kind.free > 1,
    ThreadPolicy.ISOLATE: lambda kind: kind.whole,
    ThreadPolicy.SPREAD: lambda kind: True,
}
"""For each thread policy, whether the policy may use cores of a kind. Policy require needs two free threads
of a core.
"""


def capacity(free: FreeCores, want: CoreDemand) -> int:
    """An upper bound of the number of CPUs that a piece of the host can give to a demand."""
    if want.policy is ThreadPolicy.PREFER or want.extra:
        return len(free.cpus)
    fits = _FITS[want.policy]
    return sum([kind.free * count for kind, count in free.amounts if fits(kind)])


def choice_cost(pieces: Sequence[FreeCores], want: CoreDemand) -> CoreCost | None:
    """The cost of the best choice of cores in the pieces; None if no choice satisfies the demand."""
    if want.policy is ThreadPolicy.SPREAD:
        return _cost_of_spreading(pieces, want.cpus)
    plan = _best_plan(_core_amounts(pieces), want)
    return None if plan is None else plan.cost


def choose_cpus(
    pieces: Sequence[FreeCores], want: CoreDemand, beside: Callable[[int], float] | None = None
) -> tuple[int, ...]:
    """The CPUs of the best choice, core by core. Call this function only if choice_cost() has found a choice.

    Among cores of one kind, the cores of the first pieces come first, and within a piece the lowest cores.

    :param beside: returns a sort key of the core of a CPU, which takes precedence over this order.
    """
    if want.policy is ThreadPolicy.SPREAD:
        return tuple(_one_by_one(pieces, beside))[: want.cpus]
    plan = _best_plan(_core_amounts(pieces), want)
    assert plan is not None
    chosen = [
        cpu
        for kind, number in plan.filled
        for core in _cores_of_kind(pieces, kind, beside)[:number]
        for cpu in core
    ]
    if plan.part is not None:
        next_core = _cores_of_kind(pieces, plan.part, beside)[dict(plan.filled).get(plan.part, 0)]
        chosen.extend(next_core[: want.cpus - len(chosen)])
    return tuple(chosen)


def _core_amounts(pieces: Sequence[FreeCores]) -> Amounts:
    if len(pieces) == 1:
        return pieces[0].amounts
    totals: dict[CoreKind, int] = {}
    for free in pieces:
        for kind, count in free.amounts:
            totals[kind] = totals.get(kind, 0) + count
    return in_order(totals)


def _cores_of_kind(
    pieces: Sequence[FreeCores], kind: CoreKind, beside: Callable[[int], float] | None = None
) -> Sequence[tuple[int, ...]]:
    cores = [core for free in pieces for core in free.cores.get(kind, ())]
    return cores if beside is None else sorted(cores, key=lambda core: beside(core[0]))


# The function is cached, because a plan depends only on numbers of cores by kind, which are equal for most
# caches of a host.
@lru_cache(maxsize=4096)
def _best_plan(amounts: Amounts, want: CoreDemand) -> CorePlan | None:
    usable = tuple((kind, number) for kind, number in amounts if _FITS[want.policy](kind))
    if want.policy is not ThreadPolicy.ISOLATE:
        return _fewest_cores(usable, want.cpus)
    whole = _fewest_cores(usable, want.cpus, want.cores, only_whole=True)
    if whole is not None or not want.extra:
        return whole
    return _with_one_more(amounts, _fewest_cores(usable, want.cpus - 1, want.cores - 1, only_whole=True))


def _with_one_more(amounts: Amounts, plan: CorePlan | None) -> CorePlan | None:
    """The plan with one more CPU, preferably from the broken core with the fewest free threads."""
    if plan is None:
        return None
    filled = dict(plan.filled)
    left = [kind for kind, number in amounts if number > filled.get(kind, 0)]
    if not left:
        return None
    kind = min(left, key=lambda kind: (kind.whole, kind.free))
    # A partly used core counts as broken, and a broken core with one free thread counts as filled.
    broken = (1 if kind.free > 1 else 0) if kind.whole else (-1 if kind.free == 1 else 0)
    return CorePlan(CoreCost(plan.cost.cores + 1, plan.cost.broken + broken), plan.filled, kind)


def _fewest_cores(
    amounts: Amounts, count: int, min_cores: int = 0, only_whole: bool = False
) -> CorePlan | None:
    """The cheapest plan that takes ``count`` CPUs from at least ``min_cores`` cores; None if impossible.

    The search visits the kinds in order and stops a branch that cannot be cheaper than the best plan.

    :param only_whole: whether no core may be taken in part.
    """
    best: CorePlan | None = None

    def min_cores_from(index: int, missing: int, passed_over: int) -> int:
        """A lower bound of the number of cores that the ``missing`` CPUs still need.

        The bound assumes that cores of the kinds from ``index`` on are filled. In addition, one core of any
        kind, even an earlier one, may be used in part.
        """
        if not missing or index == len(amounts):
            return min(missing, 1)
        largest = amounts[index][0].free
        more_in_part = max(0, passed_over - 1 - largest)
        return max(1, -(-(missing - more_in_part) // largest))

    def visit_kind(
        index: int, missing: int, filled: tuple[tuple[CoreKind, int], ...], mended: int, passed_over: int
    ) -> None:
        """Try each number of filled cores of the kind ``index``, and continue with the next kind.

        :param missing: CPUs that are still to be taken.
        :param mended: the number of broken cores of which ``filled`` takes all free threads.
        :param passed_over: the free threads of the largest core that was left unused.
        """
        used = sum(number for _, number in filled)
        if best is not None and used + min_cores_from(index, missing, passed_over) > best.cost.cores:
            return  # stop: no completion of this plan is cheaper than the best plan
        if index < len(amounts) and missing:
            kind, available = amounts[index]
            for number in range(min(available, missing // kind.free), -1, -1):
                more = 0 if kind.whole else number
                left = kind.free if number < available and not only_whole else 0
                visit_kind(
                    index + 1,
                    missing - number * kind.free,
                    (*filled, (kind, number)),
                    mended + more,
                    max(passed_over, left),
                )
        elif not missing:
            offer_plan(CoreCost(used, -mended), filled, None)
        # At most one core is taken in part. With two such cores, CPUs of one core could fill the other core.
        elif not only_whole:
            taken = dict(filled)
            for kind, available in amounts:
                if kind.free > missing and taken[kind] < available:
                    offer_plan(CoreCost(used + 1, kind.whole - mended), filled, kind)

    def offer_plan(cost: CoreCost, filled: tuple[tuple[CoreKind, int], ...], part: CoreKind | None) -> None:
        nonlocal best
        if cost.cores >= min_cores and (best is None or cost < best.cost):
            best = CorePlan(cost, filled, part)

    if amounts:
        visit_kind(0, count, (), 0, 0)
    return best


def _one_by_one(pieces: Sequence[FreeCores], beside: Callable[[int], float] | None) -> Iterable[int]:
    """Yield CPUs for policy spread: first threads before second ones, free cores before broken ones."""
    cores = _cores_to_spread_over(pieces, beside)
    for turn in range(max((len(core) for core, _ in cores), default=0)):
        yield from (core[turn] for core, _ in cores if turn < len(core))


def _cost_of_spreading(pieces: Sequence[FreeCores], count: int) -> CoreCost | None:
    cores = _cores_to_spread_over(pieces)
    if sum(len(core) for core, _ in cores) < count:
        return None
    used = cores[:count]
    return CoreCost(count - len(used), sum(not whole for _, whole in used))


def _cores_to_spread_over(
    pieces: Sequence[FreeCores], beside: Callable[[int], float] | None = None
) -> list[tuple[tuple[int, ...], bool]]:
    kinds = sorted({kind for free in pieces for kind in free.cores}, key=lambda kind: not kind.whole)
    found = [(core, kind.whole) for kind in kinds for core in _cores_of_kind(pieces, kind)]
    if beside is not None:
        found.sort(key=lambda core: (not core[1], beside(core[0][0])))
    return found
