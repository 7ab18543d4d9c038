"""Places a guest within the limits of its definition (pins, strict memory), by pure functions.

Nouns
    The *limit* of a guest CPU is the set of host CPUs that the guest's definition allows. The definition can
    pin a guest CPU to host CPUs. The definition can also bind memory strictly to NUMA nodes, which excludes
    the CPUs of other nodes. A guest without demands has no limits.

An example
    A host has two NUMA nodes, CPUs 0-3 and 4-7. A guest has two NUMA cells with two guest CPUs each. Memory
    is bound strictly to node 0 for the first cell, and to node 1 for the second. The limits of the guest CPUs
    are 0-3, 0-3, 4-7, 4-7. If the dedicated CPUs 1, 2, 5 and 6 are free, the guest CPUs get these CPUs in
    this order.

Invariants
    - A guest CPU gets no CPU outside its limit.
    - If dedicated CPUs can be assigned within limits and zones, they are assigned (maximum flow). With thread
      policy isolate, only the CPUs that the placement policy chooses are tried.
    - If the CPUs cannot be assigned, the guest keeps its present CPUs, and the refusal has the reason.
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
    refit_assignment,
    shared_emulator_cpus,
)

Limits = tuple[CpuSet, ...]
"""The host CPUs that each guest CPU may use, by number of the guest CPU.

The tuple is empty if the guest has no demands.
"""


def limits_of(topology: HostTopology, constraints: PlacementConstraints, vcpus: int) -> Limits:
    """The limit of each guest CPU: the usable host CPUs that ``constraints`` allow."""
    if constraints == UNCONSTRAINED:
        return ()
    limits = [topology.usable & _cpus_of_nodes(topology, constraints.nodes)] * vcpus
    for cell in constraints.cells:
        for number in cell.vcpus:
            if number < vcpus:
                limits[number] &= _cpus_of_nodes(topology, cell.nodes)
    for number, cpus in constraints.pins:
        if number < vcpus:
            limits[number] &= cpus
    return tuple(limits)


def _cpus_of_nodes(topology: HostTopology, nodes: frozenset[int]) -> CpuSet:
    """The CPUs of NUMA nodes; all usable CPUs if ``nodes`` is empty or has only nodes without CPUs."""
    return topology.cpus_of(nodes) or topology.usable


def give_out(zones: Sequence[tuple[CpuSet, int]], floating: CpuSet, limits: Limits) -> dict[int, int] | None:
    """Assign dedicated CPUs to guest CPUs within their limits; None if this is impossible.

    The result maps numbers of guest CPUs to dedicated CPUs. A guest CPU without a dedicated CPU floats on the
    CPUs of ``floating`` within its limit.

    :param zones: for each zone, the free CPUs and the number of CPUs to assign.
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
    # Guest CPUs that cannot float are assigned first. A later augmenting path can exchange their CPU for
    # another CPU, but never takes it away.
    for number in bound:
        if not flow.push_unit(("vcpu", number)):
            return None
    sent = len(bound) + sum(flow.push_unit(("vcpu", number)) for number in others)
    if sent < wanted:
        return None
    return dict(flow.used_edges())


_Node = tuple[str, int]

_SINK: Final[_Node] = ("sink", 0)


class _CpuFlow:
    """Maximum flow (Edmonds and Karp) from guest CPUs over host CPUs and zones to a sink."""

    def __init__(self) -> None:
        self._left: dict[_Node, dict[_Node, int]] = {}

    def add(self, start: _Node, end: _Node, capacity: int) -> None:
        """Add an edge with a capacity in units."""
        self._left.setdefault(start, {})[end] = capacity
        self._left.setdefault(end, {}).setdefault(start, 0)

    def push_unit(self, start: _Node) -> bool:
        """Send one unit from a node to the sink along a shortest path; return whether there is a path."""
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

    def used_edges(self) -> Iterator[tuple[int, int]]:
        """Yield pairs of a guest CPU and the host CPU to which its unit of flow goes."""
        for (kind, number), ends in self._left.items():
            if kind == "vcpu":
                yield from ((number, cpu) for (_, cpu), left in ends.items() if left == 0)


def within_constraints(policy: Policy) -> Policy:
    """Return a policy that keeps guests within their limits, and otherwise decides like ``policy``."""

    def place_constrained(
        supply: CpuSupply, request: GuestRequest
    ) -> CpuAssignment | PlacementRefusal | None:
        limits = limits_of(supply.topology, request.constraints, request.vcpus)
        return _place_within(policy, supply, request, limits) if limits else policy(supply, request)

    return place_constrained


def refit_within(supply: CpuSupply, request: GuestRequest, current: CpuAssignment) -> CpuAssignment | None:
    """The assignment that keeps a guest's present dedicated CPUs within its limits; None if impossible.

    See :func:`~compute_agent.policy.base.refit_assignment`.
    """
    kept = refit_assignment(supply, request, current)
    limits = limits_of(supply.topology, request.constraints, request.vcpus)
    if kept is None or not limits or len(kept.vcpu_cpus) != len(limits):
        return kept if not limits else None
    floating = floating_cpus(supply, request) - supply.taken_cpus(request) - kept.held_cpus
    vcpu_cpus = tuple(
        cpus if cpus <= kept.held_cpus else floating & limit
        for cpus, limit in zip(kept.vcpu_cpus, limits, strict=True)
    )
    if not all(cpus and cpus <= limit for cpus, limit in zip(vcpu_cpus, limits, strict=True)):
        return None
    given = {number: next(iter(cpus)) for number, cpus in enumerate(vcpu_cpus) if cpus <= kept.held_cpus}
    alone = frozenset(kept.dedicated) - kept.withheld - frozenset(given.values())
    return _make_assignment(supply, request, vcpu_cpus, kept.dedicated, kept.withheld, alone)


def _place_within(
    policy: Policy, supply: CpuSupply, request: GuestRequest, limits: Limits
) -> CpuAssignment | PlacementRefusal | None:
    if (lost := _first_empty(limits)) is not None:
        return _refuse_in_place(f"guest CPU {lost} may use only CPUs that are offline")
    # A request that the policy refuses without limits is also impossible with limits.
    first = policy(supply, request)
    if isinstance(first, PlacementRefusal):
        return PlacementRefusal(first.reason, leave=True)
    floating = floating_cpus(supply, request) - supply.taken_cpus(request)
    if not request.pcpu:
        vcpu_cpus = tuple(floating & limit for limit in limits)
        if (lost := _first_empty(vcpu_cpus)) is not None:
            return _refuse_in_place(
                f"guest CPU {lost} may use CPUs {cpuset.format(limits[lost])}, but the guest floats on"
                f" {cpuset.format(floating) or 'none'}"
            )
        return _make_assignment(supply, request, vcpu_cpus)
    slots = limits = _with_kinds(limits, request, floating)
    if request.has_emulator_cpu:
        slots = (*limits, (request.constraints.emulator or supply.topology.usable) - floating)
    given, withheld = _give_out(policy, supply, request, floating, slots)
    if given is None:
        return _refuse_in_place(
            f"its zones have no {request.pcpu} free dedicated CPUs among the CPUs"
            f" {', '.join(sorted({cpuset.format(limit) for limit in limits}))} that its guest CPUs may use"
        )
    vcpu_cpus = tuple(
        frozenset({given[number]}) if number in given else (floating & limit) - frozenset(given.values())
        for number, limit in enumerate(limits)
    )
    dedicated = (*(given[number] for number in sorted(given)), *sorted(withheld))
    alone = frozenset({given[len(limits)]}) if len(slots) > len(limits) else frozenset[int]()
    return _make_assignment(supply, request, vcpu_cpus, dedicated, withheld, alone)


def _with_kinds(limits: Limits, request: GuestRequest, floating: CpuSet) -> Limits:
    """The limits, reduced to dedicated CPUs for dedicated guest CPUs, and to shared CPUs for all others.

    The limits are returned unchanged in two cases: the definition does not name the dedicated guest CPUs, or
    a limit would become empty.
    """
    named = request.dedicated_vcpus
    if len(named) != request.used_pcpu - request.has_emulator_cpu:
        return limits
    narrow = tuple(
        limit - floating if number in named else limit & floating for number, limit in enumerate(limits)
    )
    return narrow if all(narrow) else limits


def _give_out(
    policy: Policy, supply: CpuSupply, request: GuestRequest, floating: CpuSet, slots: Limits
) -> tuple[Mapping[int, int] | None, CpuSet]:
    """Choose the dedicated CPU of each slot (a guest CPU or the emulator threads), and the CPUs kept empty.

    The CPUs that the policy chooses are used if they fit the limits. Otherwise any free CPUs are used that
    fit. The first item of the result is None if no free CPUs fit.
    """
    usable = frozenset[int]().union(*slots)
    narrow = request.narrowed_to(usable)
    chosen = policy(supply, narrow)
    if isinstance(chosen, CpuAssignment):
        used = frozenset(chosen.dedicated) - chosen.withheld
        if (given := give_out([(used, len(used))], floating, slots)) is not None:
            return given, chosen.withheld
    if request.thread_policy is ThreadPolicy.ISOLATE:  # the flow does not know cores, and could break cores
        return None, frozenset()
    zones = [(supply.free(request, demand), demand.pcpu) for demand in request.demands if demand.pcpu]
    return give_out(zones, floating, slots), frozenset()


def _make_assignment(
    supply: CpuSupply,
    request: GuestRequest,
    vcpu_cpus: tuple[CpuSet, ...],
    dedicated: tuple[int, ...] = (),
    withheld: CpuSet = frozenset(),
    alone: CpuSet = frozenset(),
) -> CpuAssignment:
    """Build the assignment with its emulator CPUs and memory nodes.

    :param alone: the dedicated CPU of the emulator threads; empty if they have no dedicated CPU.
    """
    held = supply.taken_cpus(request).union(dedicated)
    own = frozenset().union(*vcpu_cpus)
    demanded = request.constraints.emulator & supply.topology.online
    emulator = alone or demanded - held or demanded or shared_emulator_cpus(supply, request, held, own) or own
    mems = memory_of(supply, request, own, bool(dedicated))
    return CpuAssignment(vcpu_cpus, emulator, dedicated, withheld, mems)


def _refuse_in_place(reason: str) -> PlacementRefusal:
    return PlacementRefusal(f"its definition cannot be met: {reason}", leave=True)


def _first_empty(sets: Limits) -> int | None:
    return next((number for number, cpus in enumerate(sets) if not cpus), None)
