"""Controllers ``cpuset`` and ``cpu``: the CPUs of a guest's threads, and the guest's CPU time on these CPUs.

Controller ``cpuset`` pins threads. Controller ``cpu`` sets a guest's weight on CPUs that it shares with
others, and its quota.

The weight follows the allocation, so that two guests that compete for the same CPUs get CPU time in
proportion to the CPUs that they hold. For each VCPU and each PCPU, a guest gets the default weight of a group
in the kernel. The default is 100 as ``cpu.weight`` of cgroup v2, and 1024 as ``cpu.shares`` of cgroup v1,
which equals Nova's 1024 shares a VCPU. Guests with dedicated CPUs have a weight, too, because their emulator
threads compete on the shared CPUs. The weight of a best-effort guest, or of a guest of a lower class, is a
hundredth of that weight. A guest with no CPU in its allocation gets the weight of one CPU.

A class can set its own weight for each CPU that a guest holds. A class can also make its guests idle
(``cpu.idle``), which ranks below all weights.

The quota is the lower of two limits: the temporary limit that throttling sets, and the cap of a guest on
reclaimed CPUs. A guest with a quota can have a burst.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

from compute_agent.controllers.base import (
    FOREIGN_ROUNDS,
    PINS,
    GuestController,
    GuestTarget,
    ReleaseItem,
)
from compute_agent.drivers.base import CpuLimits, CpuSettings, CpuTuning, QuotaError
from compute_agent.inventory.provider_tree import ProviderNode
from compute_agent.model import cpuset
from compute_agent.model.guest import Allocation, CpuAssignment, Guest
from compute_agent.model.resource import (
    BEST_EFFORT_WEIGHT,
    CPU_CLASSES,
    RECLAIMED_VCPU,
    CpuShare,
    ThrottleControl,
)


class CpusetController(GuestController):
    """Pins guests through the driver. A guest without an assignment keeps its CPUs."""

    name = "cpuset"

    def __init__(self, driver: CpuTuning) -> None:
        self._driver = driver

    def list_refusals(self, target: GuestTarget) -> Sequence[str]:
        """Messages about helper tasks that could not be moved when the guest was last pinned."""
        return () if target.guest.settings.preserve else self._driver.stuck_helpers(target.guest)

    def describe_drift(self, target: GuestTarget) -> str | None:
        """A text about threads on wrong CPUs, or about wrong pins in the definition; None if all agree."""
        if target.assignment is None:
            return None
        settings = _target_settings(target, target.assignment)
        misplaced = self._driver.misplaced_threads(target.guest, settings)
        # Threads on other CPUs are reported first, because the definition takes effect only at the next
        # start.
        if not misplaced:
            return self._driver.definition_drift(target.guest, settings) or None
        # The log names one thread only, because a guest can have hundreds of threads.
        tid, cpus = min(misplaced.items())
        return f"{len(misplaced)} threads elsewhere, such as {tid} on CPUs {cpuset.format(cpus)}"

    def apply(self, target: GuestTarget) -> bool:
        """Pin those threads that may run on other CPUs than wanted; return whether such threads existed."""
        # Pinning a domain costs calls of libvirtd, and in most rounds nothing has changed. So the pins are
        # compared first.
        if self.describe_drift(target) is None or target.assignment is None:
            return False
        self._driver.apply_cpu_settings(target.guest, _target_settings(target, target.assignment))
        return True

    def describe_change(self, target: GuestTarget, difference: str) -> str:
        """A text with the CPUs before and after the change."""
        goes = target.assignment
        if goes is None:
            return difference
        kind = "dedicated" if goes.dedicated else "shared"
        has = cpuset.format(self._driver.observed_cpus(target.guest))
        text = f"CPUs {has} -> {kind} CPUs {cpuset.format(goes.cpus)}"
        # Emulator threads are mentioned only where they leave the CPUs of the guest.
        if goes.emulator_cpus <= goes.cpus:
            return text
        return f"{text}, emulator CPUs {cpuset.format(goes.emulator_cpus)}"

    def list_written(self, guest: Guest, online: frozenset[int]) -> Iterator[ReleaseItem]:
        """Yield the pins of a guest to remove; pins of other programs in its definition stay."""
        free = _unpinned_settings(guest, online)
        if self._driver.misplaced_threads(guest, free):
            has = f"CPUs {cpuset.format(self._driver.observed_cpus(guest))}"
            yield ReleaseItem(PINS, str(guest), has, partial(self._driver.apply_cpu_settings, guest, free))


def _unpinned_settings(guest: Guest, online: frozenset[int]) -> CpuSettings:
    """CPU settings without the agent's pins: all online CPUs, or the pins of other programs."""
    demanded = dict(guest.constraints.pins)
    vcpus = (demanded.get(number, online) for number in range(guest.settings.vcpus))
    return CpuSettings(tuple(vcpus), guest.constraints.emulator or online)


def _target_settings(target: GuestTarget, assignment: CpuAssignment) -> CpuSettings:
    """The CPU settings for a target's assignment, restricted to online CPUs.

    If all CPUs of a guest CPU are offline, the guest CPU gets the guest's other CPUs. If the guest's other
    CPUs are offline, too, the guest gets the spare CPUs, which no guest holds, or else all online CPUs.
    """
    online = target.online
    # sched_setaffinity(2) refuses a set without an online CPU (EINVAL). The kernel itself moves a thread to
    # any CPU when all CPUs of the thread go offline. So all online CPUs are as good as this choice of the
    # kernel.
    rest = (assignment.cpus & online) or (assignment.emulator_cpus & online) or target.spare or online
    return CpuSettings(
        vcpu_cpus=tuple((cpus & online) or rest for cpus in assignment.vcpu_cpus),
        emulator_cpus=(assignment.emulator_cpus & online) or rest,
    )


QUOTA: Final = ThrottleControl("cpu_quota")

# The weight of a guest with one CPU equals that of a new group in the kernel.
_PER_CPU: Final = 100
# The kernel's default ``cpu.weight`` of a new group.
_DEFAULT_WEIGHT: Final = 100

# The highest ``cpu.weight`` that the kernel accepts: a guest with more than a hundred CPUs counts as a guest
# with a hundred CPUs.
_MAX_WEIGHT: Final = 10_000


class CpuController(GuestController):
    """Sets the weights, quotas and bursts of guests through the driver."""

    name = "cpu"
    compare_rounds = FOREIGN_ROUNDS
    release_kind = "quota"

    def __init__(
        self,
        driver: CpuTuning,
        best_effort: Collection[str],
        shares: Mapping[str, CpuShare] = MappingProxyType({}),
    ) -> None:
        """Begin with the settings of the classes of guests.

        :param best_effort: the names of the classes of best-effort guests, which get a hundredth of the usual
            weight.
        :param shares: the settings of each class, by its name.
        """
        self._driver = driver
        self._best_effort = best_effort
        self._shares = shares
        #: The uuids of guests that cannot have a quota, so that the cap of their class has no effect.
        self._uncapped: set[str] = set()

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Note for each guest which CPU settings of its class cannot be set."""
        self._uncapped.clear()
        super().sync(targets, zones)

    def list_refusals(self, target: GuestTarget) -> Sequence[str]:
        """Messages about the CPU settings of a guest's class that cannot be set for the guest."""
        wanted = self._class_limits(target)
        # A limit of throttling can have a burst, too.
        burst = max(wanted.burst, self._saved_cores(target, target.limits.get(QUOTA)))
        wanted = replace(wanted, burst=burst)
        # A weight is possible for each guest, so only other limits can be missing.
        if target.guest.settings.preserve or wanted == CpuLimits(wanted.weight):
            return ()
        found: list[str] = []
        try:
            found += self._driver.missing_limits(target.guest, wanted)
            # Only the error of this call is needed: QuotaError shows that this guest cannot have a quota.
            if wanted.quota is not None:
                self._driver.cpu_limits(target.guest, wanted)
        except QuotaError as error:
            self._uncapped.add(target.guest.uuid)
            found.append(str(error))
        return found

    def describe_drift(self, target: GuestTarget) -> str | None:
        """A text with the present CPU limits if they differ from the wanted limits; None if they agree."""
        wanted = self._wanted_limits(target)
        has = self._driver.cpu_limits(target.guest, wanted)
        return None if has is None else f"CPU {_limits_text(has)} in place of {_limits_text(wanted)}"

    def apply(self, target: GuestTarget) -> bool:
        """Set the CPU limits that differ; return whether any limit differed."""
        return self._driver.apply_cpu_limits(target.guest, self._wanted_limits(target))

    def list_written(self, guest: Guest, online: frozenset[int]) -> Iterator[ReleaseItem]:
        """Yield the quota of a guest to remove, and its weight if pins are also undone."""
        # Quota and weight are separate items: a release that keeps pins removes the quota and leaves the
        # weight.
        usual = CpuLimits(_DEFAULT_WEIGHT)
        give_back = self._driver.apply_cpu_limits
        has = self._driver.cpu_limits(guest, CpuLimits())
        # The setting cpu.idle belongs to the weight of a group, so only the item of the weight changes
        # cpu.idle.
        free = CpuLimits(idle=has is not None and has.idle)
        if has is not None and has.quota is not None:
            detail = f"{has.quota:g} cores"
            yield ReleaseItem(self.release_kind, str(guest), detail, partial(give_back, guest, free))
        has = self._driver.cpu_limits(guest, usual)
        if has is not None and has.weight not in (None, _DEFAULT_WEIGHT):
            detail = "idle" if has.idle else f"weight {has.weight}"
            yield ReleaseItem(PINS, str(guest), detail, partial(give_back, guest, usual))

    def _wanted_limits(self, target: GuestTarget) -> CpuLimits:
        """The CPU limits that a guest should have now.

        The weight is None if the agent does not place the guest, or if its allocation is not known. The
        weight in the kernel then stays unchanged.
        """
        found, throttled = self._class_limits(target), target.limits.get(QUOTA)
        # With a cap that cannot be set each apply() would fail, and the guest would not get its weight
        # either.
        cap = None if target.guest.uuid in self._uncapped else found.quota
        quota = min((one for one in (cap, throttled) if one is not None), default=None)
        return replace(found, quota=quota, burst=self._saved_cores(target, quota))

    def _class_limits(self, target: GuestTarget) -> CpuLimits:
        """The CPU limits from the class of a guest, without the limits of throttling."""
        share = self._shares.get(target.guest.settings.qos_class, CpuShare())
        if target.assignment is None or target.allocation is None:
            return CpuLimits(idle=share.cpu_idle)
        quota = reclaimed_cores(target.allocation, share.reclaimed_cap)
        best_effort = target.guest.settings.qos_class in self._best_effort
        per_cpu = share.cpu_weight or (BEST_EFFORT_WEIGHT if best_effort else _PER_CPU)
        weight = cpu_weight(target.allocation, per_cpu)
        return CpuLimits(weight, quota, share.cpu_idle, self._saved_cores(target, quota))

    def _saved_cores(self, target: GuestTarget, quota: float | None) -> float:
        """The burst of a guest in cores, by its class's percentage of its quota; 0 without a quota."""
        share = self._shares.get(target.guest.settings.qos_class, CpuShare())
        return (quota or 0.0) * (share.cpu_burst or 0) / 100


def cpu_weight(allocation: Allocation, per_cpu: int = _PER_CPU) -> int:
    """The ``cpu.weight`` of a guest that holds ``allocation``, 1 to 10000.

    :param per_cpu: the weight for each CPU that the guest holds.
    """
    cpus = sum(held.get(name, 0) for held in allocation.values() for name in CPU_CLASSES)
    return min(max(cpus, 1) * per_cpu, _MAX_WEIGHT)


def reclaimed_cores(allocation: Allocation, percent: int | None) -> float | None:
    """The cap, in cores, of a guest that has only reclaimed CPUs.

    The result is None for other guests, and if ``percent`` is None.
    """
    held = {name: sum(one.get(name, 0) for one in allocation.values()) for name in CPU_CLASSES}
    reclaimed = held.pop(RECLAIMED_VCPU, 0)
    # A guest that also holds ordinary CPUs may use these CPUs whenever they are free, so it gets no cap.
    if percent is None or not reclaimed or any(held.values()):
        return None
    return reclaimed * percent / 100


def _limits_text(limits: CpuLimits) -> str:
    quota = "no quota" if limits.quota is None else f"quota {limits.quota:g} cores"
    burst = f", burst {limits.burst:g} cores" if limits.burst else ""
    weight = "idle, " if limits.idle else "" if limits.weight is None else f"weight {limits.weight}, "
    return f"{weight}{quota}{burst}"
