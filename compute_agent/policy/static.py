"""Policy ``static``: dedicated CPUs in ascending order."""

from __future__ import annotations

from compute_agent.model.assignment import Assignment
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest_settings import ThreadPolicy
from compute_agent.policy.base import Demand, Refusal, Request, Supply, place


def place_in_order(supply: Supply, request: Request) -> Assignment | Refusal:
    """The lowest free dedicated CPUs of each zone; the rest of the guest floats over the shared CPUs."""
    if request.thread_policy is not ThreadPolicy.PREFER and request.pcpu:
        return Refusal(f"policy static knows no thread policy {request.thread_policy}; topology-aware does")
    return place(supply, request, _lowest)


def _lowest(supply: Supply, request: Request, demand: Demand, free: CpuSet) -> tuple[int, ...]:
    return tuple(sorted(free)[: demand.pcpu])
