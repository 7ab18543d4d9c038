"""Cores whose threads are in both CPU sets, and sets with as many CPUs that split none.

On a host with 48 CPUs, where the threads of a core are ``n`` and ``n + 24``, ``cpu_dedicated_set = 2-17`` and
``cpu_shared_set = 18-47`` split the 16 cores of CPUs 2-17: whoever has CPU 2 for itself has all guests on
shared CPUs on CPU 26, its other half. ``2-9,26-33`` and ``10-25,34-47`` are as many of each.
"""

from __future__ import annotations

from collections import defaultdict

from compute_agent.host.topology import HostTopology
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet


def split_cores(dedicated: CpuSet, shared: CpuSet, topology: HostTopology) -> list[CpuSet]:
    """The threads of each core that has some in both sets, lowest first."""
    return sorted(
        (core.cpus for core in topology.cores if core.cpus & dedicated and core.cpus & shared), key=min
    )


def better_sets(dedicated: CpuSet, shared: CpuSet, topology: HostTopology) -> tuple[CpuSet, CpuSet]:
    """Dedicated and shared CPUs, the same altogether, without a core in both.

    On each NUMA node are as many dedicated ones as before, or those more that a whole core takes.
    """
    ours = dedicated | shared
    by_node: dict[int | None, list[CpuSet]] = defaultdict(list)
    for threads in split_cores(dedicated, shared, topology):
        by_node[topology.node_of(min(threads))].append(threads & ours)
    for cores in by_node.values():
        missing = sum(len(threads & dedicated) for threads in cores)
        for threads in cores:
            dedicated = dedicated | threads if missing > 0 else dedicated - threads
            missing -= len(threads)
    return dedicated, ours - dedicated


def split_warning(dedicated: CpuSet, shared: CpuSet, topology: HostTopology) -> str:
    """What to tell the operator; empty where no core is split."""
    cores = split_cores(dedicated, shared, topology)
    if not cores:
        return ""
    better, rest = better_sets(dedicated, shared, topology)
    instead = f"cpu_dedicated_set = {cpuset.format(better)}"
    instead += f" and cpu_shared_set = {cpuset.format(rest)}" if rest else " and no cpu_shared_set"
    return (
        f"[compute] cpu_dedicated_set and cpu_shared_set split {len(cores)} cores, such as that of CPUs"
        f" {cpuset.format(cores[0])}: guests with a dedicated CPU have those on shared ones beside them, on"
        f" the other thread of the core. {instead} split none"
    )
