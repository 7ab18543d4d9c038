"""Policies ``static``, ``static-plus`` and ``static-pools``: dedicated CPUs in ascending order."""

from __future__ import annotations

from functools import partial

from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import CpuAssignment, ThreadPolicy
from compute_agent.policy.base import CpuSupply, GuestRequest, PlacementRefusal, ProviderDemand, place
from compute_agent.policy.cores import choose, cost
from compute_agent.policy.pieces import free_cores
from compute_agent.policy.wants import refuse, want_of


def place_in_order(supply: CpuSupply, request: GuestRequest) -> CpuAssignment | PlacementRefusal:
    """The lowest free dedicated CPUs of each zone; the rest of the guest floats over the shared CPUs.

    With a thread policy other than prefer the fewest and lowest cores that satisfy it, whatever caches and
    nodes they are of.
    """
    return place(supply, request, _lowest)


def _lowest(
    supply: CpuSupply, request: GuestRequest, demand: ProviderDemand, free: CpuSet
) -> tuple[int, ...] | PlacementRefusal:
    if request.thread_policy is ThreadPolicy.PREFER:
        return tuple(sorted(free)[: demand.pcpu])
    cores, want = free_cores(supply.topology, free), want_of(request, demand)
    if cost(cores, want) is None:
        return refuse(supply, request, demand, free)
    return choose(cores, want, partial(supply.beside, request) if supply.busy else None)
