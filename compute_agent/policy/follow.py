"""Policy ``follow``: guests run where somebody else pins them, such as Nova, and the agent goes by that.

Nothing is chosen and nobody is moved. The assignment of a guest is what the kernel shows of it: its guest
CPUs and its other threads as they are pinned now, and the NUMA nodes that its memory is bound to.

With CPUs 0-3 dedicated and 4-7 shared, a guest whose two guest CPUs are pinned to CPU 1 and CPU 3 and whose
emulator runs on 4-7 has the dedicated CPUs 1 and 3. One without pins, on 4-7, has none, and floats there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compute_agent.model.cpuset import CpuSet, CpuSets
from compute_agent.model.guest import CpuAssignment
from compute_agent.policy.base import CpuSupply, GuestRequest


@dataclass(frozen=True, slots=True)
class KernelPlacement:
    """Where the kernel lets a guest run.

    ``cpus`` are those of all its threads together, ``vcpu_cpus`` those of each guest CPU by its number, as
    far as its thread can be told from others, ``emulator_cpus`` those of the threads that run no guest CPU.
    ``mems`` are the NUMA nodes that its memory is bound to; empty: it is not.
    """

    cpus: CpuSet
    vcpu_cpus: Mapping[int, CpuSet] = field(default_factory=dict)
    emulator_cpus: CpuSet = frozenset()
    mems: CpuSet = frozenset()


def leave_in_place(supply: CpuSupply, request: GuestRequest) -> None:
    """Leave the guest where somebody else has it."""


def as_found(cpu_sets: CpuSets, vcpus: int, found: KernelPlacement) -> CpuAssignment:
    """The assignment of a guest of so many guest CPUs that is where it was ``found``.

    Dedicated are the CPUs of guest CPUs that run within the dedicated set, and those of the other threads if
    they do so apart from them. Whoever may use all of the set floats on it.
    """
    vcpu_cpus = tuple(found.vcpu_cpus.get(number) or found.cpus for number in range(vcpus))
    emulator = found.emulator_cpus or found.cpus
    own = [cpu for cpus in vcpu_cpus if _is_own(cpus, cpu_sets) for cpu in sorted(cpus)]
    if own and _is_own(emulator, cpu_sets) and emulator.isdisjoint(frozenset().union(*vcpu_cpus)):
        own += sorted(emulator)
    return CpuAssignment(vcpu_cpus, emulator, tuple(dict.fromkeys(own)), mems=found.mems, given=True)


def _is_own(cpus: CpuSet, cpu_sets: CpuSets) -> bool:
    """Whether CPUs are some guest's own: with the legacy ``vcpu_pin_set`` a single one only is."""
    if len(cpus) == 1 or not cpu_sets.dedicated & cpu_sets.shared:
        return bool(cpus) and cpus <= cpu_sets.dedicated and (len(cpus) == 1 or cpus != cpu_sets.dedicated)
    return False
