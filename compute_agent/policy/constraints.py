"""From what a guest's definition demands to the CPUs that each of its guest CPUs may use: pure functions.

Nouns
    The *limit* of a guest CPU are the CPUs it may use by the definition: those it is pinned to, as far as
    they are near all memory that it is bound to strictly. A guest of which nothing is demanded has no limits.

A worked example
    Two NUMA nodes, CPUs 0-3 and 4-7. A guest of four guest CPUs in two cells, whose memory is strictly of
    node 0 and node 1, has the limits 0-3, 0-3, 4-7, 4-7. Of the dedicated CPUs 1, 2, 5 and 6 it gets 1, 2, 5
    and 6 in this order, and nothing else would do.

What always holds
    - A guest CPU gets no CPU outside its limit.
    - If the dedicated CPUs can be given out within limits and zones, they are (maximum flow).
    - Where they cannot be, nothing is decided: the guest is left as it is, with the reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from compute_agent.host.topology import HostTopology
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import UNCONSTRAINED, PlacementConstraints

Limits = tuple[CpuSet, ...]
"""The CPUs that each guest CPU may use; empty if nothing is demanded."""


def limits_of(topology: HostTopology, constraints: PlacementConstraints, vcpus: int) -> Limits:
    """The online CPUs that each of so many guest CPUs may use."""
    if constraints == UNCONSTRAINED:
        return ()
    limits = [topology.online & _near(topology, constraints.nodes)] * vcpus
    for cell in constraints.cells:
        for number in cell.vcpus:
            if number < vcpus:
                limits[number] &= _near(topology, cell.nodes)
    for number, cpus in constraints.pins:
        if number < vcpus:
            limits[number] &= cpus
    return tuple(limits)


def _near(topology: HostTopology, nodes: frozenset[int]) -> CpuSet:
    """The CPUs of NUMA nodes; all if none is demanded, or those that are have no CPUs."""
    found = frozenset[int]().union(*(node.cpus for node in topology.numa_nodes if node.id in nodes))
    return found or topology.online


def give_out(zones: Sequence[tuple[CpuSet, int]], floating: CpuSet, limits: Limits) -> dict[int, int] | None:
    """A dedicated CPU for as many guest CPUs as the zones give, by the number of the guest CPU.

    ``zones`` have the CPUs that are free and how many of them have to be given. Guest CPUs that get none
    float within their limits. None if that cannot be.
    """
    wanted = sum(amount for _, amount in zones)
    if wanted > len(limits):
        return None
    bound = [number for number, limit in enumerate(limits) if not limit & floating]
    others = [number for number, limit in enumerate(limits) if limit & floating]
    flow = _CpuFlow()
    for zone, (cpus, amount) in enumerate(zones):
        flow.add(("zone", zone), _SINK, amount)
        for cpu in sorted(cpus):
            flow.add(("given", cpu), ("zone", zone), 1)
    for cpu in sorted(frozenset[int]().union(*(cpus for cpus, _ in zones))):
        flow.add(("cpu", cpu), ("given", cpu), 1)
        for number, limit in enumerate(limits):
            if cpu in limit:
                flow.add(("vcpu", number), ("cpu", cpu), 1)
    for number in bound:  # these first: whoever has a way keeps one
        if not flow.push(("vcpu", number)):
            return None
    sent = len(bound) + sum(flow.push(("vcpu", number)) for number in others)
    if sent < wanted:
        return None
    return dict(flow.used())


_Node = tuple[str, int]

_SINK: Final[_Node] = ("sink", 0)


class _CpuFlow:
    """Units that go from guest CPUs over CPUs and zones to the sink, each by a shortest augmenting path."""

    def __init__(self) -> None:
        self._left: dict[_Node, dict[_Node, int]] = {}

    def add(self, start: _Node, end: _Node, capacity: int) -> None:
        """Let so many units go from one node to another."""
        self._left.setdefault(start, {})[end] = capacity
        self._left.setdefault(end, {}).setdefault(start, 0)

    def push(self, start: _Node) -> bool:
        """Send one from here to the sink, if there is a way."""
        before = {start: start}
        queue = deque([start])
        while queue and _SINK not in before:
            here = queue.popleft()
            for there, left in self._left.get(here, {}).items():
                if left > 0 and there not in before:
                    before[there] = here
                    queue.append(there)
        if _SINK not in before:
            return False
        end = _SINK
        while end != start:
            here = before[end]
            self._left[here][end] -= 1
            self._left[end][here] += 1
            end = here
        return True

    def used(self) -> Iterator[tuple[int, int]]:
        """The guest CPUs of which a unit was sent, and the CPUs over which it goes."""
        for (kind, number), ends in self._left.items():
            if kind == "vcpu":
                yield from ((number, cpu) for (_, cpu), left in ends.items() if left == 0)
