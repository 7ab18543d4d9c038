"""Which running guest to move, if any: at most one at a time, and only when it is worth it.

What a guest's place costs is counted in L3 domains: see the constants. Sharing a core is counted by pairs of
guests, so that the costs of all guests together fall with every move by what it gains at least. A threshold
above 0 is thus reached after finitely many moves, and no guest goes back and forth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from compute_agent.host.topology import HostTopology
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import CpuAssignment, ThreadPolicy
from compute_agent.policy.base import CpuSupply, GuestRequest, Policy

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
