"""What the thread policy of a guest asks of the cores of a zone, and why there are none."""

from __future__ import annotations

from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import ThreadPolicy
from compute_agent.policy.base import CpuSupply, GuestRequest, PlacementRefusal, ProviderDemand
from compute_agent.policy.cores import CoreDemand


def want_of(request: GuestRequest, demand: ProviderDemand) -> CoreDemand:
    """What a demand asks of the cores. Isolated guest CPUs are on as many cores, spread as the PCPU are."""
    if request.thread_policy is not ThreadPolicy.ISOLATE:
        return CoreDemand(request.thread_policy, demand.pcpu)
    is_last = demand is [each for each in request.demands if each.pcpu][-1]
    extra = is_last and request.has_emulator_cpu
    cores = request.used_pcpu * demand.pcpu // request.pcpu
    return CoreDemand(request.thread_policy, demand.pcpu, cores, extra)


def refuse(
    supply: CpuSupply, request: GuestRequest, demand: ProviderDemand, free: CpuSet
) -> PlacementRefusal:
    """Why no choice of the free CPUs will do."""
    if request.thread_policy is ThreadPolicy.ISOLATE:
        threads = min(len(supply.topology.threads_of(cpu)) for cpu in free)
        emulator = int(request.has_emulator_cpu)
        needed = (request.used_pcpu - emulator) * threads + emulator
        if request.pcpu < needed:
            return PlacementRefusal(
                f"thread policy isolate keeps cores whole: the guest needs {needed} PCPU on cores of"
                f" {threads} threads, its allocation has {request.pcpu}"
            )
    return PlacementRefusal(
        f"{demand.zone} has {len(free)} free dedicated CPUs, but not {demand.pcpu} that satisfy thread"
        f" policy {request.thread_policy}"
    )
