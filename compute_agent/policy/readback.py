"""Recognise an assignment in what the kernel shows of a running guest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import CpuAssignment, EmulatorPolicy, ThreadPolicy
from compute_agent.policy.base import CpuSupply, GuestRequest, assemble


def read_back(
    supply: CpuSupply,
    request: GuestRequest,
    observed: CpuSet,
    vcpu_cpus: Mapping[int, CpuSet] | None = None,
    mems: CpuSet = frozenset(),
) -> CpuAssignment | None:
    """The assignment of a guest whose threads may use ``observed``; None if that is not one of ours.

    ``vcpu_cpus`` has the CPUs that the thread of each guest CPU may use, by number from 0, where the driver
    can tell these threads from others: every guest CPU is then assigned what it has. If it is None, or has
    not exactly the guest CPUs of the request, dedicated CPUs go to the guest CPUs in ascending order.
    ``mems`` are the NUMA nodes that its memory is bound to (empty: it is not): it stays there.

    A guest that may use all CPUs was never placed, and one that may use CPUs of the host or of another guest
    was placed by somebody else. With thread policy isolate free siblings are kept empty: whether the
    allocation pays for them is not known here.
    """
    sets = supply.cpu_sets
    positions = _positions(request, vcpu_cpus or {})
    seen = observed.union(*positions)
    if seen >= supply.topology.online or not seen <= sets.dedicated | sets.shared:
        return None
    dedicated = seen & sets.dedicated
    if not sets.shared or sets.dedicated & sets.shared or supply.lent:
        dedicated &= _own(request, seen, positions)
    if dedicated == sets.shared:  # the legacy vcpu_pin_set: whoever has all of it shares it
        dedicated = frozenset()
    taken = supply.taken(request)
    if dedicated & taken:
        return None
    of_vcpus = [cpu for cpus in positions for cpu in sorted(cpus & dedicated)]
    others = sorted(dedicated.difference(of_vcpus))
    isolated = request.thread_policy is ThreadPolicy.ISOLATE
    siblings = supply.topology.siblings_of(dedicated) & sets.dedicated - taken if isolated else frozenset()
    # Each once, those of the guest CPUs first: the last one in use is that of the emulator threads.
    in_order = tuple(dict.fromkeys((*of_vcpus, *others, *sorted(siblings))))
    found = assemble(supply, request, in_order, floating=seen - dedicated, withheld=siblings)
    if not isinstance(found, CpuAssignment):
        return None
    found = replace(found, mems=mems or found.mems)
    if not positions:
        return found
    emulator = frozenset(others) or (seen - dedicated) or found.emulator_cpus
    return replace(found, vcpu_cpus=positions, emulator_cpus=emulator)


def _positions(request: GuestRequest, vcpu_cpus: Mapping[int, CpuSet]) -> tuple[CpuSet, ...]:
    """By guest CPU; empty if not all are known."""
    if vcpu_cpus.keys() != set(range(request.vcpus)) or not all(vcpu_cpus.values()):
        return ()
    return tuple(vcpu_cpus[number] for number in range(request.vcpus))


def _own(request: GuestRequest, seen: CpuSet, positions: tuple[CpuSet, ...]) -> CpuSet:
    """The CPUs that a guest seems to have to itself where others float on dedicated CPUs.

    These are those that a guest CPU is bound to, and the one that is left for emulator threads; or all, if
    they are no more than it has threads to pin.
    """
    alone = request.emulator_policy is EmulatorPolicy.ISOLATE
    if not positions:
        return seen if len(seen) <= request.vcpus + alone else frozenset()
    bound = frozenset().union(*(cpus for cpus in positions if len(cpus) == 1))
    return seen if alone and len(seen - bound) == 1 else bound
