"""From the guests of the pipeline to what monitoring measures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from compute_agent.controllers.base import Controller
from compute_agent.controllers.resctrl import resctrl_of
from compute_agent.drivers.base import Driver
from compute_agent.model.guest import Guest
from compute_agent.monitoring.targets import MonitorTarget, build_targets
from compute_agent.qos.snapshot import Series, Snapshot

_CPU: Final = Series("cpu_usage")


def monitor_targets(
    controllers: Iterable[Controller],
    guests: Sequence[Guest],
    driver: Driver,
    snapshot: Snapshot | None = None,
) -> list[MonitorTarget] | None:
    """Guests and classes in the groups that the controller of resctrl has put them in.

    Without one all guests are in the default group. None while a new controller has not synced yet.

    ``snapshot`` is what watermarks have measured last: it may know the use of CPU.
    """
    controller = resctrl_of(controllers)
    groups: dict[str, str] = {}
    if controller is not None:
        if controller.class_groups is None or (guests and not controller.membership):
            return None
        groups = dict(controller.class_groups)
    cpu = {
        uuid: usage.usage[_CPU]
        for uuid, usage in (snapshot.guests if snapshot else {}).items()
        if _CPU in usage.usage
    }
    return build_targets(
        guests,
        driver.thread_ids,
        groups,
        None if controller is None else controller.membership,
        cpu,
    )
