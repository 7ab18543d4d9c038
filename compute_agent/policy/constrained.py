"""Placing a guest whose definition demands something: within its limits, or not at all."""

from __future__ import annotations

from collections.abc import Mapping

from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import CpuAssignment, ThreadPolicy
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
from compute_agent.policy.constraints import Limits, give_out, limits_of


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
        slots = (*limits, (request.constraints.emulator or supply.topology.online) - floating)
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
