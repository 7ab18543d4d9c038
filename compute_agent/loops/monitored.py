"""From the guests of the pipeline to what monitoring measures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from compute_agent.controllers.base import KernelController
from compute_agent.controllers.resctrl import resctrl_of
from compute_agent.drivers.base import GuestDriver
from compute_agent.model.guest import Guest
from compute_agent.monitoring.reading import MonitorTarget, build_targets
from compute_agent.qos.snapshot import MetricSeries, UsageSnapshot

_CPU: Final = MetricSeries("cpu_usage")


class MonitorTargets:
    """Guests and classes in the groups that the controller of resctrl has put them in."""

    def __init__(self, driver: GuestDriver) -> None:
        self._driver = driver
        self._made_of: tuple[object, ...] | None = None
        self._targets: tuple[MonitorTarget, ...] = ()

    def build(
        self,
        controllers: Iterable[KernelController],
        guests: Sequence[Guest],
        snapshot: UsageSnapshot | None = None,
    ) -> tuple[MonitorTarget, ...] | None:
        """The targets now: those of the last time, as long as they are made of the same.

        Without a controller all guests are in the default group. None while a new one has not synced yet.

        ``snapshot`` is what watermarks have measured last: it may know the use of CPU.
        """
        controller = resctrl_of(controllers)
        groups: dict[str, str] = {}
        membership: dict[str, str] | None = None
        if controller is not None:
            if controller.class_groups is None or (guests and not controller.membership):
                return None
            groups, membership = dict(controller.class_groups), dict(controller.membership)
        cpu = {
            uuid: usage.usage[_CPU]
            for uuid, usage in (snapshot.guests if snapshot else {}).items()
            if _CPU in usage.usage
        }
        made_of = (list(guests), groups, membership, cpu)
        if made_of != self._made_of:
            self._targets = tuple(build_targets(guests, self._driver.thread_ids, groups, membership, cpu))
            self._made_of = made_of
        return self._targets
