"""Controllers ``cpuset`` and ``cpu``: the CPUs of a guest's threads, and its share of them.

Controller ``cpuset`` pins. Controller ``cpu`` sets the weight of a guest on CPUs that it shares, and a quota.

The weight follows the allocation, so that two guests that compete for the same CPUs divide them in proportion
to what they hold. Each VCPU and each PCPU counts as much as the kernel's default for a group. That is 100 as
``cpu.weight`` of cgroup v2, and 1024 as ``cpu.shares`` of cgroup v1, which equals Nova's 1024 shares a VCPU.
Guests with dedicated CPUs have a weight as well, because their emulator threads compete on the shared CPUs.
A guest of a class that ranks no higher than best effort gets a hundredth of that weight. A guest that holds
nothing counts as one CPU.

The quota is the temporary limit that throttling sets; there is none otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Final

from compute_agent.controllers.base import (
    PINS,
    GuestController,
    GuestTarget,
    ReleaseItem,
    items_by_guest,
)
from compute_agent.drivers.base import CpuLimits, CpuSettings, CpuTuning
from compute_agent.model import cpuset
from compute_agent.model.guest import Allocation, CpuAssignment, Guest
from compute_agent.model.resource import CPU_CLASSES, ThrottleControl


class CpusetController(GuestController):
    """Pins guests through their driver. A guest without an assignment keeps its CPUs."""

    name = "cpuset"

    def __init__(self, driver: CpuTuning) -> None:
        self._driver = driver

    def describe_drift(self, target: GuestTarget) -> str | None:
        """The threads that run elsewhere, or would after the next start; None if all are in place."""
        if target.assignment is None:
            return None
        settings = _target_settings(target, target.assignment)
        misplaced = self._driver.misplaced_threads(target.guest, settings)
        if not misplaced:
            return self._driver.definition_drift(target.guest, settings) or None
        tid, cpus = min(misplaced.items())
        return f"{len(misplaced)} threads elsewhere, such as {tid} on CPUs {cpuset.format(cpus)}"

    def apply(self, target: GuestTarget) -> bool:
        """Pin the threads that run elsewhere; return whether there were any."""
        # Looks first: pinning a domain costs calls of libvirtd, and mostly nothing has changed.
        if self.describe_drift(target) is None or target.assignment is None:
            return False
        self._driver.apply_cpu_settings(target.guest, _target_settings(target, target.assignment))
        return True

    def describe_change(self, target: GuestTarget, difference: str) -> str:
        """The CPUs before and after: ids of threads alone tell an operator little."""
        goes = target.assignment
        if goes is None:
            return difference
        kind = "dedicated" if goes.dedicated else "shared"
        has = cpuset.format(self._driver.observed_cpus(target.guest))
        text = f"CPUs {has} -> {kind} CPUs {cpuset.format(goes.cpus)}"
        # Emulator threads are worth a word only where they leave the CPUs of the guest.
        if goes.emulator_cpus <= goes.cpus:
            return text
        return f"{text}, emulator CPUs {cpuset.format(goes.emulator_cpus)}"

    def release(self, guests: Sequence[Guest], online: frozenset[int]) -> Iterator[ReleaseItem]:
        """The pins of each guest, without those that another program wrote into its definition."""

        def of_guest(guest: Guest) -> Iterator[ReleaseItem]:
            free = _unpinned_settings(guest, online)
            if self._driver.misplaced_threads(guest, free):
                has = f"CPUs {cpuset.format(self._driver.observed_cpus(guest))}"
                yield ReleaseItem(
                    PINS, str(guest), has, partial(self._driver.apply_cpu_settings, guest, free)
                )

        return items_by_guest(guests, PINS, of_guest)


def _unpinned_settings(guest: Guest, online: frozenset[int]) -> CpuSettings:
    """The CPUs of a guest that the agent does not pin: all online ones, within its definition's demands."""
    demanded = dict(guest.constraints.pins)
    vcpus = (demanded.get(number, online) for number in range(guest.settings.vcpus))
    return CpuSettings(tuple(vcpus), guest.constraints.emulator or online)


def _target_settings(target: GuestTarget, assignment: CpuAssignment) -> CpuSettings:
    """The CPU settings of a target's assignment on the CPUs that are online.

    A guest CPU without an online CPU of its own runs on the other CPUs of the guest. If these are offline as
    well, it runs on CPUs that no guest holds, and in the end on any online CPU.
    """
    online = target.online
    # sched_setaffinity(2) refuses a set without an online CPU (EINVAL), and the kernel itself moves a thread
    # to any CPU when its own go offline, so the last resort is no worse than doing nothing.
    rest = (assignment.cpus & online) or (assignment.emulator_cpus & online) or target.spare or online
    return CpuSettings(
        vcpu_cpus=tuple((cpus & online) or rest for cpus in assignment.vcpu_cpus),
        emulator_cpus=(assignment.emulator_cpus & online) or rest,
    )


QUOTA: Final = ThrottleControl("cpu_quota")

_PER_CPU: Final = 100
# A hundredth: best effort guests give way under contention, and still run when all CPUs are busy.
_PER_CPU_OF_BEST_EFFORT: Final = 1
# The kernel's default ``cpu.weight`` of a new group.
_DEFAULT_WEIGHT: Final = 100

# The highest ``cpu.weight``: a guest with more than a hundred CPUs counts as one with a hundred.
_MAX_WEIGHT: Final = 10_000


class CpuController(GuestController):
    """Sets weights and quotas through the driver."""

    name = "cpu"

    def __init__(self, driver: CpuTuning, best_effort: Collection[str]) -> None:
        self._driver = driver
        #: Classes of guests that give way to all others on shared CPUs.
        self._best_effort = best_effort

    def describe_drift(self, target: GuestTarget) -> str | None:
        """The current limits where they differ from the wanted ones; None if they agree."""
        wanted = self._wanted_limits(target)
        has = self._driver.cpu_limits(target.guest, wanted)
        return None if has is None else f"CPU {_limits_text(has)} in place of {_limits_text(wanted)}"

    def apply(self, target: GuestTarget) -> bool:
        """Set the differing limits; return whether any differed."""
        return self._driver.apply_cpu_limits(target.guest, self._wanted_limits(target))

    def release(self, guests: Sequence[Guest], online: frozenset[int]) -> Iterator[ReleaseItem]:
        """Quotas, which are temporary limits, and weights, which are given back with the pins."""

        def of_guest(guest: Guest) -> Iterator[ReleaseItem]:
            # Two steps, so that a release without pins gives back the quota and leaves the weight.
            free, usual = CpuLimits(), CpuLimits(_DEFAULT_WEIGHT)
            give_back = self._driver.apply_cpu_limits
            has = self._driver.cpu_limits(guest, free)
            if has is not None and has.quota is not None:
                yield ReleaseItem(
                    "quota", str(guest), f"{has.quota:g} cores", partial(give_back, guest, free)
                )
            has = self._driver.cpu_limits(guest, usual)
            if has is not None and has.weight not in (None, _DEFAULT_WEIGHT):
                yield ReleaseItem(PINS, str(guest), f"weight {has.weight}", partial(give_back, guest, usual))

        return items_by_guest(guests, "quota", of_guest)

    def _wanted_limits(self, target: GuestTarget) -> CpuLimits:
        """The limits that a guest should have.

        The weight stays unchanged for a guest that the agent does not place, or without a known allocation.
        """
        quota = target.limits.get(QUOTA)
        if target.assignment is None or target.allocation is None:
            return CpuLimits(quota=quota)
        best_effort = target.guest.settings.qos_class in self._best_effort
        return CpuLimits(cpu_weight(target.allocation, best_effort), quota)


def cpu_weight(allocation: Allocation, best_effort: bool) -> int:
    """The ``cpu.weight`` of a guest that holds ``allocation``, 1 to 10000.

    :param best_effort: whether its class gives way to all others.
    """
    cpus = sum(held.get(name, 0) for held in allocation.values() for name in CPU_CLASSES)
    per_cpu = _PER_CPU_OF_BEST_EFFORT if best_effort else _PER_CPU
    return min(max(cpus, 1) * per_cpu, _MAX_WEIGHT)


def _limits_text(limits: CpuLimits) -> str:
    quota = "no quota" if limits.quota is None else f"quota {limits.quota:g} cores"
    return quota if limits.weight is None else f"weight {limits.weight}, {quota}"
