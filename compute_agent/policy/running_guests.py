"""Places running guests: reads assignments back, confines guests without a place, and finds useful moves.

``read_back`` recognises an assignment from the CPUs that the kernel shows for a guest, such as after a
restart of the agent.

A guest runs without an assignment in two cases: the operator has over-allocated the host, or the guest has no
allocation and the host has no shared CPUs. Without an assignment the guest would run on all CPUs, including
CPUs of other guests. The agent *confines* such a guest to the shared CPUs outside of pools. If there are no
shared CPUs, the agent confines the guest to all CPUs that no guest holds, and to CPUs of pools only if no
other CPUs exist. A confined guest holds no CPU, and leaves each CPU that another guest gets. An example: CPUs
0-1 are dedicated, CPU 2 belongs to the host, and no CPU is shared. A confined guest runs on 0-2. It runs on
1-2 while a guest holds CPU 0, and on 2 while guests hold both CPUs.

Rebalancing moves at most one guest at a time, and only if the gain is large enough. Costs are counted in
points: a guest that uses one more L3 domain costs one point, and constants of this module define all other
costs. A core that two guests share counts for both of them, so each move lowers the sum of all costs by at
least its gain. As the minimum gain is above 0, moves end after some time, and no guest moves back and forth.
The use by hour of the week is stable, so a smaller gain is enough for a move than with the mean of the last
minutes. If no move gains enough by the hours of the week, guests that are busy together now are separated,
unless that makes the hours of the week much worse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import CpuAssignment
from compute_agent.model.guest_settings import EmulatorPolicy, ThreadPolicy
from compute_agent.policy.base import CpuSupply, GuestRequest, Policy, build_assignment, in_place, memory_of
from compute_agent.policy.load_profiles import common_load


def read_back(
    supply: CpuSupply,
    request: GuestRequest,
    observed: CpuSet,
    vcpu_cpus: Mapping[int, CpuSet] | None = None,
    mems: CpuSet = frozenset(),
) -> CpuAssignment | None:
    """Recognise the assignment of a running guest; None if the agent cannot have made it.

    A guest that may use all CPUs was never placed. A guest that may use CPUs of the host or of another guest
    was placed by another program. With thread policy isolate, free sibling threads are kept empty, because
    the allocation perhaps includes them.

    :param observed: the CPUs that all threads of the guest together may use.
    :param vcpu_cpus: the host CPUs of each guest CPU, by its number from 0, if the driver knows the threads
        of guest CPUs. If a guest CPU is missing, the dedicated CPUs are assigned in ascending order.
    :param mems: the NUMA nodes to which the guest's memory is bound; empty if there is no binding.
    """
    sets = supply.cpu_sets
    positions = _vcpu_positions(request, vcpu_cpus or {})
    seen = observed.union(*positions)
    if seen >= supply.topology.online or not seen <= sets.dedicated | sets.shared:
        return None
    dedicated = seen & sets.dedicated
    if not sets.shared or sets.dedicated & sets.shared or supply.lent:
        dedicated &= _own_cpus(request, seen, positions)
    if dedicated == sets.shared:  # with the legacy vcpu_pin_set, a guest that floats may use the whole set
        dedicated = frozenset()
    taken = supply.taken_cpus(request)
    if dedicated & taken:
        return None
    of_vcpus = [cpu for cpus in positions for cpu in sorted(cpus & dedicated)]
    others = sorted(dedicated.difference(of_vcpus))
    isolated = request.thread_policy is ThreadPolicy.ISOLATE
    siblings = supply.topology.siblings_of(dedicated) & sets.dedicated - taken if isolated else frozenset()
    # dict.fromkeys() removes repetitions. CPUs of guest CPUs come first, because build_assignment() gives the
    # last used CPU to the emulator threads.
    in_order = tuple(dict.fromkeys((*of_vcpus, *others, *sorted(siblings))))
    found = build_assignment(supply, request, in_order, floating=seen - dedicated, withheld=siblings)
    if not isinstance(found, CpuAssignment):
        return None
    found = replace(found, mems=mems or found.mems)
    if not positions:
        return found
    emulator = frozenset(others) or (seen - dedicated) or found.emulator_cpus
    return replace(found, vcpu_cpus=positions, emulator_cpus=emulator)


def _vcpu_positions(request: GuestRequest, vcpu_cpus: Mapping[int, CpuSet]) -> tuple[CpuSet, ...]:
    """The host CPUs of each guest CPU, in their order; empty if those of any guest CPU are unknown."""
    if vcpu_cpus.keys() != set(range(request.vcpus)) or not all(vcpu_cpus.values()):
        return ()
    return tuple(vcpu_cpus[number] for number in range(request.vcpus))


def _own_cpus(request: GuestRequest, seen: CpuSet, positions: tuple[CpuSet, ...]) -> CpuSet:
    """The CPUs that probably belong to a guest, on a host where guests can float on dedicated CPUs.

    A CPU belongs to the guest if exactly one guest CPU is pinned to it. With emulator policy isolate, a
    single further CPU belongs to the emulator threads. If the CPUs of the single guest CPUs are not known,
    the agent counts CPUs. All CPUs belong to the guest if there is at most one for each guest CPU, plus one
    with emulator policy isolate. If there are more CPUs, none of them belongs to the guest.
    """
    alone = request.emulator_policy is EmulatorPolicy.ISOLATE
    if not positions:
        return seen if len(seen) <= request.vcpus + alone else frozenset()
    bound = frozenset().union(*(cpus for cpus in positions if len(cpus) == 1))
    return seen if alone and len(seen - bound) == 1 else bound


def confine_guest(supply: CpuSupply, request: GuestRequest) -> CpuAssignment | None:
    """The assignment that confines a guest to CPUs that no guest holds; None if guests hold all CPUs."""
    free = supply.topology.online - supply.taken_cpus(request)
    pooled = supply.cpu_sets.pooled
    cpus = (supply.cpu_sets.open_shared & free) or free - pooled or free
    if not cpus:
        return None
    mems = memory_of(supply, request, cpus, pinned=False)
    return CpuAssignment(
        (cpus,) * request.vcpus, (supply.cpu_sets.emulator - pooled & free) or cpus, mems=mems
    )


def keep_dedicated(supply: CpuSupply, request: GuestRequest, current: CpuAssignment) -> CpuAssignment | None:
    """The assignment with the guest's present dedicated CPUs, even if its allocation has other amounts.

    The floating guest CPUs leave the CPUs that other guests hold. The result is None if the guest has no
    dedicated CPUs, or if another guest holds one of them.
    """
    if not current.held_cpus or current.held_cpus & supply.taken_cpus(request):
        return None
    # Without an allocation, only the present CPUs show on which CPUs the guest floats.
    floating = None if request.demands else (current.cpus - current.held_cpus) & supply.topology.online
    again = build_assignment(supply, request, current.dedicated, floating, current.withheld)
    return in_place(again, current, request) if isinstance(again, CpuAssignment) else None


def may_stay(current: CpuAssignment, taken: CpuSet, online: CpuSet) -> bool:
    """Whether a guest without a known allocation may stay on its CPUs, none of which another guest holds.

    A guest without dedicated CPUs also needs one of its CPUs online.
    """
    in_the_way = not taken.isdisjoint(current.cpus | current.emulator_cpus)
    return not in_the_way and (bool(current.held_cpus) or not online.isdisjoint(current.cpus))


L3_CROSSED: Final = 1.0
"""Cost of each L3 domain of a guest beyond the first."""
NODE_CROSSED: Final = 3.0
"""Cost of each NUMA node of a guest beyond the first."""
PACKAGE_CROSSED: Final = 6.0
"""Cost of each package of a guest beyond the first."""
CORE_SHARED: Final = 1.0
"""Cost of each core that a guest shares with another guest, for each such guest, if CPU use is not
measured.
"""
BUSY_SIBLINGS: Final = 4.0
"""Cost of a shared core if CPU use is measured, multiplied by the part of the time in which both guests are
busy.
"""
# The cost is above MEMORY_MOVED, so that a guest leaves such CPUs even if its memory has to follow.
OUTSIDE: Final = 4.0
"""Cost of each CPU of a guest that is no longer in ``cpu_dedicated_set``."""
MEMORY_MOVED: Final = 2.0
"""Cost of moving all memory of a guest to other NUMA nodes. If a guest leaves half of its nodes, the cost is
half of this value.
"""

# If the whole minimum gain were needed, guests with equal peaks would stay together. benchmarks/policies.md
# has the numbers.
LEARNT_GAIN: Final = 1 / 16
"""The part of the minimum gain that is enough for a move if the load profiles of all guests are known."""
RECENT_LOSS: Final = 0.5
"""Maximum loss of a move that separates guests that are busy now, as a part of the minimum gain."""


@dataclass(frozen=True, slots=True)
class RebalanceMove:
    """A useful move of a guest to a new assignment.

    :ivar gain: the decrease of the guest's cost, minus the cost of the move.
    """

    guest: str
    assignment: CpuAssignment
    gain: float


def best_move(
    supply: CpuSupply,
    policy: Policy,
    guests: Sequence[tuple[GuestRequest, CpuAssignment]],
    min_gain: float,
    recent: CpuSupply | None = None,
) -> RebalanceMove | None:
    """The move with the largest gain; None if no gain is at least ``min_gain``.

    A move after which guests share cores less needs only the fraction ``LEARNT_GAIN`` of ``min_gain``, if the
    use by hour of the week is known for all guests concerned.

    :param policy: computes the CPUs that a guest would get if it started now.
    :param guests: the requests of guests that may be moved, with their present assignments.
    :param min_gain: the minimum gain of a move in points, above 0.
    :param recent: the same supply with the use of the last minutes, which decides if no move gains enough by
        the hours of the week.
    """
    move = _best_move_by(supply, policy, guests, min_gain)
    if move is not None or recent is None or not any(load.learnt for load in supply.use.values()):
        return move

    def hardly_costs(request: GuestRequest, current: CpuAssignment, new: CpuAssignment) -> bool:
        loss = place_cost(supply, request, new) - place_cost(supply, request, current)
        return loss <= min_gain * RECENT_LOSS

    return _best_move_by(recent, policy, guests, min_gain, hardly_costs)


def _best_move_by(
    supply: CpuSupply,
    policy: Policy,
    guests: Sequence[tuple[GuestRequest, CpuAssignment]],
    min_gain: float,
    is_allowed: Callable[[GuestRequest, CpuAssignment, CpuAssignment], bool] = lambda *move: True,
) -> RebalanceMove | None:
    best: RebalanceMove | None = None
    for request, current in guests:
        own = supply.own_load(request)
        least = min_gain * LEARNT_GAIN if own is not None and own.learnt else min_gain
        cost = place_cost(supply, request, current)
        if cost < least:
            # the guest is skipped, because even a move to an assignment without any cost would gain too
            # little
            continue
        for wanted in _requests_to_try(supply, request):
            new = policy(supply, wanted)
            if not isinstance(new, CpuAssignment):
                continue
            gain = cost - place_cost(supply, request, new) - move_cost(current, new)
            if best is not None and gain <= best.gain:
                continue
            is_enough = gain >= min_gain or (
                gain >= least and _relieves_cores(supply, request, current, new, least)
            )
            if is_enough and is_allowed(request, current, new):
                best = RebalanceMove(request.guest, new, gain)
    return best


def _relieves_cores(
    supply: CpuSupply, request: GuestRequest, current: CpuAssignment, new: CpuAssignment, least: float
) -> bool:
    """Whether a move lowers the cost of shared cores by at least ``least`` points.

    The result is False if the use by hour of the week is not known for all guests concerned.
    """
    before, after = current.held_cpus, new.held_cpus
    siblings = supply.topology.siblings_of(before | after)
    loads = [
        supply.busy.get(min(held & siblings))
        for guest, held in supply.holdings.items()
        if guest != request.guest and held & siblings
    ]
    if not all(load is not None and load.learnt for load in loads):
        return False
    return _shared_cores(supply, request, before) - _shared_cores(supply, request, after) >= least


def _requests_to_try(supply: CpuSupply, request: GuestRequest) -> Iterable[GuestRequest]:
    """The request, and if CPU use is measured, the same request with thread policy spread.

    Thread policy spread prefers unused cores.
    """
    yield request
    if supply.busy and request.thread_policy is ThreadPolicy.PREFER:
        yield replace(request, thread_policy=ThreadPolicy.SPREAD)


def place_cost(supply: CpuSupply, request: GuestRequest, assignment: CpuAssignment) -> float:
    """The cost of an assignment: crossed zones, shared cores, and CPUs outside of the dedicated set."""
    topology, cpus = supply.topology, assignment.held_cpus
    return (
        L3_CROSSED * _zones_crossed([cache.cpus for cache in topology.l3_domains], cpus)
        + NODE_CROSSED * _zones_crossed([node.cpus for node in topology.numa_nodes], cpus)
        + PACKAGE_CROSSED * _zones_crossed([package.cpus for package in topology.packages], cpus)
        + OUTSIDE * len(cpus - supply.cpu_sets.dedicated)
        + _shared_cores(supply, request, cpus)
    )


def move_cost(current: CpuAssignment, new: CpuAssignment) -> float:
    """The cost of a move: MEMORY_MOVED times the share of the guest's memory nodes that it leaves."""
    left = current.mems - new.mems
    return MEMORY_MOVED * len(left) / len(current.mems) if new.mems and left else 0.0


def _zones_crossed(zones: Sequence[CpuSet], cpus: CpuSet) -> int:
    return max(0, sum(1 for zone in zones if zone & cpus) - 1)


def _shared_cores(supply: CpuSupply, request: GuestRequest, cpus: CpuSet) -> float:
    """The cost of the cores that a guest shares with other guests.

    If CPU use is measured, the cost depends on the time in which both guests are busy.
    """
    cores = {supply.topology.threads_of(cpu) for cpu in cpus}
    mine = supply.own_load(request)
    cost = 0.0
    for guest, held in supply.holdings.items():
        if guest == request.guest:
            continue
        for core in cores:
            if theirs := core & held:
                # Each CPU of the guest gives the same result, because ``busy`` spreads a guest's use evenly
                # over its CPUs.
                load = supply.busy.get(min(theirs))
                if mine is None or load is None:
                    cost += CORE_SHARED
                else:
                    cost += BUSY_SIBLINGS * common_load(mine, load)
    return cost
