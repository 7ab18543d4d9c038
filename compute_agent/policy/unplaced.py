"""Guests for which there is no place, and those of which it is not known what they may use.

A guest runs, whether there is a place for it or not: somebody over-allocated the host by hand, or the guest
holds nothing and the host has no shared CPUs. Left alone it would run on all CPUs, those of others included.
It is *confined* instead: to the shared CPUs of no pool, or where there are none to all CPUs that nobody
holds (those of pools last), and it gives way from each that somebody comes to hold. It holds no CPU itself.

With CPUs 0-1 dedicated, 2 the host's, and nothing shared, such a guest runs on 0-2, on 1-2 once a guest holds
CPU 0, and on 2 once both are held.
"""

from __future__ import annotations

from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import CpuAssignment
from compute_agent.policy.base import CpuSupply, GuestRequest, assemble, in_place, memory_of


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
