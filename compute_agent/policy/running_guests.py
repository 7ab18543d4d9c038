"""Recognise an assignment in what the kernel shows of a running guest.

Guests for which there is no place, and those of which it is not known what they may use.

A guest runs, whether there is a place for it or not: somebody over-allocated the host by hand, or the guest
holds nothing and the host has no shared CPUs. Left alone it would run on all CPUs, those of others included.
It is *confined* instead: to the shared CPUs of no pool, or where there are none to all CPUs that nobody
holds (those of pools last), and it gives way from each that somebody comes to hold. It holds no CPU itself.

With CPUs 0-1 dedicated, 2 the host's, and nothing shared, such a guest runs on 0-2, on 1-2 once a guest holds
CPU 0, and on 2 once both are held.

Which running guest to move, if any: at most one at a time, and only when it is worth it.

What a guest's place costs is counted in L3 domains: see the constants. Sharing a core is counted by pairs of
guests, so that the costs of all guests together fall with every move by what it gains at least. A threshold
above 0 is thus reached after finitely many moves, and no guest goes back and forth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from compute_agent.host.topology import HostTopology
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import CpuAssignment
from compute_agent.model.guest_settings import EmulatorPolicy, ThreadPolicy
from compute_agent.policy.base import CpuSupply, GuestRequest, Policy, assemble, in_place, memory_of


def read_back(
    supply: CpuSupply,
    request: GuestRequest,
    observed: CpuSet,
    vcpu_cpus: Mapping[int, CpuSet] | None = None,
    mems: CpuSet = frozenset(),
) -> CpuAssignment | None:
    """The assignment of a guest whose threads may use ``observed``; None if that is not one of ours.

    ``vcpu_cpus`` has the CPUs that the thread of each guest CPU may use, by number from 0, where the driver
    can tell these threads from others: every guest CPU is then assigned what it has. If it is None, or has
    not exactly the guest CPUs of the request, dedicated CPUs go to the guest CPUs in ascending order.
    ``mems`` are the NUMA nodes that its memory is bound to (empty: it is not): it stays there.

    A guest that may use all CPUs was never placed, and one that may use CPUs of the host or of another guest
    was placed by somebody else. With thread policy isolate free siblings are kept empty: whether the
    allocation pays for them is not known here.
    """
    sets = supply.cpu_sets
    positions = _positions(request, vcpu_cpus or {})
    seen = observed.union(*positions)
    if seen >= supply.topology.online or not seen <= sets.dedicated | sets.shared:
        return None
    dedicated = seen & sets.dedicated
    if not sets.shared or sets.dedicated & sets.shared or supply.lent:
        dedicated &= _own(request, seen, positions)
    if dedicated == sets.shared:  # the legacy vcpu_pin_set: whoever has all of it shares it
        dedicated = frozenset()
    taken = supply.taken(request)
    if dedicated & taken:
        return None
    of_vcpus = [cpu for cpus in positions for cpu in sorted(cpus & dedicated)]
    others = sorted(dedicated.difference(of_vcpus))
    isolated = request.thread_policy is ThreadPolicy.ISOLATE
    siblings = supply.topology.siblings_of(dedicated) & sets.dedicated - taken if isolated else frozenset()
    # Each once, those of the guest CPUs first: the last one in use is that of the emulator threads.
    in_order = tuple(dict.fromkeys((*of_vcpus, *others, *sorted(siblings))))
    found = assemble(supply, request, in_order, floating=seen - dedicated, withheld=siblings)
    if not isinstance(found, CpuAssignment):
        return None
    found = replace(found, mems=mems or found.mems)
    if not positions:
        return found
    emulator = frozenset(others) or (seen - dedicated) or found.emulator_cpus
    return replace(found, vcpu_cpus=positions, emulator_cpus=emulator)


def _positions(request: GuestRequest, vcpu_cpus: Mapping[int, CpuSet]) -> tuple[CpuSet, ...]:
    """By guest CPU; empty if not all are known."""
    if vcpu_cpus.keys() != set(range(request.vcpus)) or not all(vcpu_cpus.values()):
        return ()
    return tuple(vcpu_cpus[number] for number in range(request.vcpus))


def _own(request: GuestRequest, seen: CpuSet, positions: tuple[CpuSet, ...]) -> CpuSet:
    """The CPUs that a guest seems to have to itself where others float on dedicated CPUs.

    These are those that a guest CPU is bound to, and the one that is left for emulator threads; or all, if
    they are no more than it has threads to pin.
    """
    alone = request.emulator_policy is EmulatorPolicy.ISOLATE
    if not positions:
        return seen if len(seen) <= request.vcpus + alone else frozenset()
    bound = frozenset().union(*(cpus for cpus in positions if len(cpus) == 1))
    return seen if alone and len(seen - bound) == 1 else bound


def confine(supply: CpuSupply, request: GuestRequest) -> CpuAssignment | None:
    """Where a guest without a place runs; None if others hold every CPU."""
    free = supply.topology.online - supply.taken(request)
    pooled = supply.cpu_sets.pooled
    cpus = (supply.cpu_sets.open_shared & free) or free - pooled or free
    if not cpus:
        return None
    mems = memory_of(supply, request, cpus, pinned=False)
    return CpuAssignment(
        (cpus,) * request.vcpus, (supply.cpu_sets.emulator - pooled & free) or cpus, mems=mems
    )


def keep(supply: CpuSupply, request: GuestRequest, current: CpuAssignment) -> CpuAssignment | None:
    """A guest with the dedicated CPUs that it has, whatever the request says of them.

    The rest of it is off those that others hold. None if it has none, or shares one with another guest.
    """
    if not current.held or current.held & supply.taken(request):
        return None
    # Of whom nothing is known the present CPUs tell how much of it floats, and where.
    floating = None if request.demands else (current.cpus - current.held) & supply.topology.online
    again = assemble(supply, request, current.dedicated, floating, current.withheld)
    return in_place(again, current) if isinstance(again, CpuAssignment) else None


def may_stay(current: CpuAssignment, taken: CpuSet, online: CpuSet) -> bool:
    """Whether a guest of which nothing is known runs where it is, and is in nobody's way there."""
    in_the_way = not taken.isdisjoint(current.cpus | current.emulator_cpus)
    return not in_the_way and (bool(current.held) or not online.isdisjoint(current.cpus))


L3_CROSSED: Final = 1.0
"""Each L3 domain after the first. A guest that crosses NUMA nodes or packages crosses L3 domains as well."""
NODE_CROSSED: Final = 3.0
"""Each NUMA node after the first."""
PACKAGE_CROSSED: Final = 6.0
"""Each package after the first."""
CORE_SHARED: Final = 1.0
"""Each core that a guest shares with another one, for each such guest."""
BUSY_SIBLINGS: Final = 4.0
"""In place of that where use was measured: times the average use of the less busy of the two."""
OUTSIDE: Final = 4.0
"""Each CPU that is not in the dedicated set any more: more than a move of memory costs."""
MEMORY_MOVED: Final = 2.0
"""All memory of a guest to other NUMA nodes; a part of its nodes costs that part."""


@dataclass(frozen=True, slots=True)
class RebalanceMove:
    """A guest, its new assignment, and how much less that costs, its move included."""

    guest: str
    assignment: CpuAssignment
    gain: float


def best_move(
    supply: CpuSupply, policy: Policy, guests: Iterable[tuple[GuestRequest, CpuAssignment]], min_gain: float
) -> RebalanceMove | None:
    """The move that gains most, if that is at least ``min_gain`` (above 0), the first of equals.

    ``guests`` are those that may be moved, with their present assignments; ``supply`` knows what all guests
    hold. The policy decides where a guest would go if it came now.
    """
    best: RebalanceMove | None = None
    for request, current in guests:
        cost = place_cost(supply, request, current)
        if cost < min_gain:
            continue  # nothing to gain, whatever the policy says
        for wanted in _wishes(supply, request):
            new = policy(supply, wanted)
            if not isinstance(new, CpuAssignment):
                continue
            gain = cost - place_cost(supply, request, new) - move_cost(current, new)
            if gain >= min_gain and (best is None or gain > best.gain):
                best = RebalanceMove(request.guest, new, gain)
    return best


def _wishes(supply: CpuSupply, request: GuestRequest) -> Iterable[GuestRequest]:
    """The request; where use was measured also one for cores that others do not keep busy."""
    yield request
    if supply.busy and request.thread_policy is ThreadPolicy.PREFER:
        yield replace(request, thread_policy=ThreadPolicy.SPREAD)


def place_cost(supply: CpuSupply, request: GuestRequest, assignment: CpuAssignment) -> float:
    """What is bad about a guest's place.

    Zones crossed, cores shared with other guests, and CPUs that are not in the dedicated set any more.
    """
    topology, cpus = supply.topology, assignment.held
    return (
        L3_CROSSED * _crossed([cache.cpus for cache in topology.l3_domains], cpus)
        + NODE_CROSSED * _crossed([node.cpus for node in topology.numa_nodes], cpus)
        + PACKAGE_CROSSED * _crossed([package.cpus for package in topology.packages], cpus)
        + OUTSIDE * len(cpus - supply.cpu_sets.dedicated)
        + _shared_cores(topology, supply, request, cpus)
    )


def move_cost(current: CpuAssignment, new: CpuAssignment) -> float:
    """What the move itself costs: memory that is bound to NUMA nodes which the guest leaves."""
    left = current.mems - new.mems
    return MEMORY_MOVED * len(left) / len(current.mems) if new.mems and left else 0.0


def _crossed(zones: Sequence[CpuSet], cpus: CpuSet) -> int:
    return max(0, sum(1 for zone in zones if zone & cpus) - 1)


def _shared_cores(topology: HostTopology, supply: CpuSupply, request: GuestRequest, cpus: CpuSet) -> float:
    """What cores that are shared with others cost: by how busy the less busy guest is, where measured."""
    cores = {topology.threads_of(cpu) for cpu in cpus}
    own = frozenset(supply.holdings.get(request.guest, frozenset()))
    mine = max((supply.busy[cpu] for cpu in own if cpu in supply.busy), default=None)
    cost = 0.0
    for guest, held in supply.holdings.items():
        if guest == request.guest:
            continue
        for core in cores:
            if theirs := core & held:
                use = [supply.busy[cpu] for cpu in theirs if cpu in supply.busy]
                if mine is None or not use:
                    cost += CORE_SHARED
                else:
                    cost += BUSY_SIBLINGS * min(mine, max(use))
    return cost
