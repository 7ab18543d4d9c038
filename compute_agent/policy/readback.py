"""Recognise an assignment in what the kernel shows of a running guest."""

from __future__ import annotations

from compute_agent.policy.base import Assignment, CpuSet, Request, Supply, assemble


def read_back(supply: Supply, request: Request, observed: CpuSet) -> Assignment | None:
    """The assignment of a guest whose threads may use ``observed``; None if that is not one of ours.

    A guest that may use all CPUs was never placed, and one that may use CPUs of the host or of another guest
    was placed by somebody else.
    """
    sets = supply.cpu_sets
    if observed >= supply.topology.online or not observed <= sets.dedicated | sets.shared:
        return None
    # With the legacy vcpu_pin_set the sets are the same, and whoever has all of it shares it.
    dedicated = frozenset() if observed == sets.shared else observed & sets.dedicated
    if dedicated & supply.taken(request):
        return None
    found = assemble(supply, request, tuple(sorted(dedicated)), floating=observed - dedicated)
    return found if isinstance(found, Assignment) else None
