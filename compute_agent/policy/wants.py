"""What the thread policy of a guest asks of the cores of a zone, and why there are none."""

from __future__ import annotations

from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest_settings import ThreadPolicy
from compute_agent.policy.base import Demand, Refusal, Request, Supply
from compute_agent.policy.cores import Want


def want_of(request: Request, demand: Demand) -> Want:
    """What a demand asks of the cores. Isolated guest CPUs are on as many cores, spread as the PCPU are."""
    if request.thread_policy is not ThreadPolicy.ISOLATE:
        return Want(request.thread_policy, demand.pcpu)
    is_last = demand is [each for each in request.demands if each.pcpu][-1]
    extra = is_last and request.has_emulator_cpu
    cores = request.used_pcpu * demand.pcpu // request.pcpu
    return Want(request.thread_policy, demand.pcpu, cores, extra)


def refuse(supply: Supply, request: Request, demand: Demand, free: CpuSet) -> Refusal:
    """Why no choice of the free CPUs will do."""
    if request.thread_policy is ThreadPolicy.ISOLATE:
        threads = min(len(supply.topology.threads_of(cpu)) for cpu in free)
        emulator = int(request.has_emulator_cpu)
        needed = (request.used_pcpu - emulator) * threads + emulator
        if request.pcpu < needed:
            return Refusal(
                f"thread policy isolate keeps cores whole: the guest needs {needed} PCPU on cores of"
                f" {threads} threads, its allocation has {request.pcpu}"
            )
    return Refusal(
        f"{demand.zone} has {len(free)} free dedicated CPUs, but not {demand.pcpu} that satisfy thread"
        f" policy {request.thread_policy}"
    )
