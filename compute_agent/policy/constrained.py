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

Placing a guest whose definition demands something: within its limits, or not at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from compute_agent.host.topology import HostTopology
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import UNCONSTRAINED, CpuAssignment, PlacementConstraints
from compute_agent.model.guest_settings import ThreadPolicy
from compute_agent.policy.base import (
    CpuSupply,
    GuestRequest,
    PlacementRefusal,
    Policy,
    floating_cpus,
    memory_of,
    refit,
    shared_emulator_cpus,
)

Limits = tuple[CpuSet, ...]
"""The CPUs that each guest CPU may use; empty if nothing is demanded."""


def limits_of(topology: HostTopology, constraints: PlacementConstraints, vcpus: int) -> Limits:
    """The usable CPUs that each of so many guest CPUs may use."""
    if constraints == UNCONSTRAINED:
        return ()
    limits = [topology.usable & _near(topology, constraints.nodes)] * vcpus
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
    return found or topology.usable


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


def constrained(policy: Policy) -> Policy:
    """A policy that meets what definitions demand, and chooses as ``policy`` does where there is a choice."""

    def place(supply: CpuSupply, request: GuestRequest) -> CpuAssignment | PlacementRefusal | None:
        limits = limits_of(supply.topology, request.constraints, request.vcpus)
        return _place_within(policy, supply, request, limits) if limits else policy(supply, request)

    return place


def refit_within(supply: CpuSupply, request: GuestRequest, current: CpuAssignment) -> CpuAssignment | None:
    """As :func:`~compute_agent.policy.base.refit`, within what the guest's definition demands."""
    kept = refit(supply, request, current)
    limits = limits_of(supply.topology, request.constraints, request.vcpus)
    if kept is None or not limits or len(kept.vcpu_cpus) != len(limits):
        return kept if not limits else None
    floating = floating_cpus(supply, request) - supply.taken(request) - kept.held
    vcpu_cpus = tuple(
        cpus if cpus <= kept.held else floating & limit
        for cpus, limit in zip(kept.vcpu_cpus, limits, strict=True)
    )
    if not all(cpus and cpus <= limit for cpus, limit in zip(vcpu_cpus, limits, strict=True)):
        return None
    given = {number: next(iter(cpus)) for number, cpus in enumerate(vcpu_cpus) if cpus <= kept.held}
    alone = frozenset(kept.dedicated) - kept.withheld - frozenset(given.values())
    return _assignment(supply, request, vcpu_cpus, kept.dedicated, kept.withheld, alone)


def _place_within(
    policy: Policy, supply: CpuSupply, request: GuestRequest, limits: Limits
) -> CpuAssignment | PlacementRefusal | None:
    if (lost := _first_empty(limits)) is not None:
        return _left(f"guest CPU {lost} may use no CPU that is online")
    first = policy(supply, request)
    if isinstance(first, PlacementRefusal):
        return PlacementRefusal(first.reason, leave=True)
    floating = floating_cpus(supply, request) - supply.taken(request)
    if not request.pcpu:
        vcpu_cpus = tuple(floating & limit for limit in limits)
        if (lost := _first_empty(vcpu_cpus)) is not None:
            return _left(
                f"guest CPU {lost} may use CPUs {cpuset.format(limits[lost])}, and it floats on"
                f" {cpuset.format(floating) or 'none'}"
            )
        return _assignment(supply, request, vcpu_cpus)
    slots = limits
    if request.has_emulator_cpu:
        slots = (*limits, (request.constraints.emulator or supply.topology.usable) - floating)
    given, withheld = _give_out(policy, supply, request, floating, slots)
    if given is None:
        return _left(
            f"no {request.pcpu} dedicated CPUs that are free in its zones are among the CPUs"
            f" {', '.join(sorted({cpuset.format(limit) for limit in limits}))} that its guest CPUs may use"
        )
    vcpu_cpus = tuple(
        frozenset({given[number]}) if number in given else (floating & limit) - frozenset(given.values())
        for number, limit in enumerate(limits)
    )
    dedicated = (*(given[number] for number in sorted(given)), *sorted(withheld))
    alone = frozenset({given[len(limits)]}) if len(slots) > len(limits) else frozenset[int]()
    return _assignment(supply, request, vcpu_cpus, dedicated, withheld, alone)


def _give_out(
    policy: Policy, supply: CpuSupply, request: GuestRequest, floating: CpuSet, slots: Limits
) -> tuple[Mapping[int, int] | None, CpuSet]:
    """Which guest CPU gets which dedicated CPU, and which are kept empty.

    Those that the policy chooses among the CPUs that may be used, if they will do; else any.
    """
    usable = frozenset[int]().union(*slots)
    narrow = request.narrowed(usable)
    chosen = policy(supply, narrow)
    if isinstance(chosen, CpuAssignment):
        used = frozenset(chosen.dedicated) - chosen.withheld
        if (given := give_out([(used, len(used))], floating, slots)) is not None:
            return given, chosen.withheld
    if request.thread_policy is ThreadPolicy.ISOLATE:
        return None, frozenset()
    zones = [(supply.free(request, demand), demand.pcpu) for demand in request.demands if demand.pcpu]
    return give_out(zones, floating, slots), frozenset()


def _assignment(
    supply: CpuSupply,
    request: GuestRequest,
    vcpu_cpus: tuple[CpuSet, ...],
    dedicated: tuple[int, ...] = (),
    withheld: CpuSet = frozenset(),
    alone: CpuSet = frozenset(),
) -> CpuAssignment:
    """``alone`` is the CPU that is the emulator's own, if it has one."""
    held = supply.taken(request).union(dedicated)
    own = frozenset().union(*vcpu_cpus)
    demanded = request.constraints.emulator & supply.topology.online
    emulator = alone or demanded - held or demanded or shared_emulator_cpus(supply, request, held) or own
    mems = memory_of(supply, request, own, bool(dedicated))
    return CpuAssignment(vcpu_cpus, emulator, dedicated, withheld, mems)


def _left(reason: str) -> PlacementRefusal:
    return PlacementRefusal(f"its definition cannot be met: {reason}", leave=True)


def _first_empty(sets: Limits) -> int | None:
    return next((number for number, cpus in enumerate(sets) if not cpus), None)
