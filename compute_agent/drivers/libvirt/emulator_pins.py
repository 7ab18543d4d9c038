"""Threads of QEMU that run no guest CPU, on other CPUs than the definition of their domain says, and back.

If another program pins guests, such threads get back its pins in the definition. So only threads with a pin
there are moved. The agent changes only the running domain, because the other program decides about its next
start.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping

from compute_agent.drivers import procfs
from compute_agent.drivers.base import CpuSettings
from compute_agent.drivers.libvirt.qemu import QemuProcess, ThreadRole
from compute_agent.drivers.libvirt.running_domain import DomainTuning, RunningDomain
from compute_agent.model.cpuset import CpuSet


def read_threads(process: QemuProcess) -> dict[int, CpuSet]:
    """The CPUs of the threads that run no guest CPU, by thread id."""
    roles = process.thread_roles().items()
    found = {tid: procfs.thread_affinity(tid) for tid, role in roles if not role.runs_guest}
    return {tid: cpus for tid, cpus in found.items() if cpus is not None}


def defined_pins(known: RunningDomain, host: CpuSet) -> dict[ThreadRole, CpuSet]:
    """The pins in the definition of threads that run no guest CPU, without those to all CPUs of the host."""
    pins = known.definition.demanded_pins(host) if known.definition.persistent else {}
    return {role: cpus for role, cpus in pins.items() if not role.runs_guest}


def find_moved(known: RunningDomain, host: CpuSet, online: CpuSet) -> dict[int, CpuSet]:
    """The threads with other pins than the definition has, with their CPUs, by thread id."""
    wanted = {role: cpus & online for role, cpus in defined_pins(known, host).items() if cpus & online}
    return {tid: has for tid, (_, has) in known.process.find_elsewhere(wanted).items()}


def move_threads(
    known: RunningDomain, tuning: DomainTuning, host: CpuSet, threads: Collection[int], cpus: CpuSet
) -> int:
    """Pin the threads with the roles of some to other CPUs; return how many changed."""
    roles = {role for tid, role in known.process.thread_roles().items() if tid in threads}
    return _pin_roles(known, tuning, dict.fromkeys(roles & defined_pins(known, host).keys(), cpus))


def restore_threads(known: RunningDomain, tuning: DomainTuning, host: CpuSet, online: CpuSet) -> int:
    """Pin the threads by the definition; return how many changed."""
    moved = find_moved(known, host, online)
    roles = {role for tid, role in known.process.thread_roles().items() if tid in moved}
    pins = defined_pins(known, host)
    return _pin_roles(known, tuning, {role: pins[role] for role in roles & pins.keys()})


def _pin_roles(known: RunningDomain, tuning: DomainTuning, wanted: Mapping[ThreadRole, CpuSet]) -> int:
    before = known.process.find_elsewhere(wanted)
    for role, cpus in wanted.items():
        tuning.pin_threads({role}, CpuSettings((), cpus))
    # Without cgroups, libvirt pins the main thread alone.
    tried: set[int] = set()
    for _ in range(procfs.MAX_PASSES):
        left = known.process.find_elsewhere(wanted)
        if not left.keys() - tried:
            break
        for tid, (role, _) in left.items():
            tried.add(tid)
            with contextlib.suppress(OSError):
                os.sched_setaffinity(tid, wanted[role])
    return len(before.keys() - known.process.find_elsewhere(wanted).keys())
