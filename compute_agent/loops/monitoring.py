"""Builds the objects that monitor guests' use of caches, from the configuration and the resctrl mount."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry

from compute_agent.controllers.base import KernelController, find_controller
from compute_agent.controllers.resctrl import ResctrlController
from compute_agent.drivers.base import GuestThreads
from compute_agent.loops.base import AgentLoop, ConfigurationInForce, ReloadedConfiguration
from compute_agent.loops.triggers import WatermarkLoop
from compute_agent.model.guest import Guest
from compute_agent.monitoring.loop import MonitoringCollector, MonitoringSettings, MonitorLoop, Targets
from compute_agent.monitoring.monitor import CacheMonitor
from compute_agent.monitoring.readings import CacheReaderPlace, MonitoredCaches, MonitorTarget, build_targets
from compute_agent.monitoring.samples import FILE, SampleStore
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.resctrl.mount import ResctrlHandle
from compute_agent.usage.snapshot import MetricSeries, UsageSnapshot

_CPU: Final = MetricSeries("cpu_usage")


class MonitorTargets:
    """Lists the guests and classes to monitor, each with the resctrl control group of its threads.

    The kernel counts the use of a guest in a monitoring group below this control group.
    """

    def __init__(self, driver: GuestThreads) -> None:
        self._driver = driver
        self._made_of: tuple[object, ...] | None = None
        self._targets: tuple[MonitorTarget, ...] = ()

    def build_targets(
        self,
        controllers: Iterable[KernelController],
        guests: Sequence[Guest],
        snapshot: UsageSnapshot | None = None,
    ) -> tuple[MonitorTarget, ...] | None:
        """Build the targets, or return the last targets if nothing has changed.

        Without a controller of resctrl, all guests are in the default group. The result is None until a new
        controller has made its groups.

        :param snapshot: the latest snapshot of watermarks, which can have the CPU use of guests.
        """
        controller = find_controller(controllers, ResctrlController)
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


class MonitoredGuests:
    """Builds the targets of monitoring from the present guests and controllers of the agent."""

    def __init__(self, driver: GuestThreads, pipeline: GuestPipeline, in_force: ConfigurationInForce) -> None:
        self._targets = MonitorTargets(driver)
        self._pipeline = pipeline
        self._in_force = in_force
        self._watermarks: WatermarkLoop | None = None

    def use_watermarks(self, watermarks: WatermarkLoop) -> None:
        """Add the CPU use of guests to samples. ``watermarks`` measures it, and is made after this object."""
        self._watermarks = watermarks

    def list_targets(self) -> tuple[MonitorTarget, ...] | None:
        """Build the present targets; None while the targets are not known."""
        snapshot = None if self._watermarks is None else self._watermarks.status.snapshot
        return self._targets.build_targets(self._in_force.controllers, self._pipeline.guests(), snapshot)


class CacheMonitoring(AgentLoop):
    """Monitors caches in a thread, offers metrics in a registry, and has a ``reader`` for watermarks."""

    def __init__(self, conf: ReloadedConfiguration, targets: Targets, registry: CollectorRegistry) -> None:
        """Prepare monitoring.

        :param targets: returns the guests and classes to monitor, or None while they are not known. The
            thread calls this function in each round. A guest that the function does not return loses its
            monitoring group.
        """
        settings = MonitoringSettings.from_options(conf.options)
        store = SampleStore(Path(conf.options.state_path) / FILE, settings.retention, settings.store_bytes)
        self._measured: tuple[Any, ...] | None = None
        self.loop = MonitorLoop(targets, store, settings)
        self.reader = MonitoredCaches(self.loop.newest_reading)
        registry.register(MonitoringCollector(self.loop))
        self.reload(conf)

    @property
    def reason_off(self) -> str:
        """The reason why caches are not measured; empty if they are measured."""
        if self._measured is None:
            return "there is no resctrl with counters"
        return "" if self.loop.settings.interval > 0 else "[monitoring] interval is 0"

    def start(self) -> None:
        """Start the thread, if the host has counters."""
        self.loop.start()

    def stop(self) -> None:
        """Stop the thread. The monitoring groups stay for the next run of the agent."""
        self.loop.stop()

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Use another configuration and the mount of that configuration."""
        control = conf.control
        usable = control is not None and control.writable and control.platform.monitoring is not None
        measured = (*_monitor_key(control), conf.reader_cpus) if control is not None and usable else None
        if measured != self._measured:
            # The monitor is replaced only if the mount has changed, because the totals of a new monitor begin
            # at zero.
            self.loop.monitor_with(
                CacheMonitor(
                    control.files,
                    control.platform,
                    control.options.prefix,
                    CacheReaderPlace(conf.reader_cpus),
                )
                if control is not None and usable
                else None
            )
        self._measured = measured
        if control is not None:
            self.reader.set_platform(control.platform, control.options.memory_bandwidth_gbps)
        self.loop.reload(MonitoringSettings.from_options(conf.options))


def _monitor_key(control: ResctrlHandle) -> tuple[Any, ...]:
    """The properties of a resctrl mount. If a reload changes none of them, the monitor stays usable."""
    platform = control.platform
    return control.files.root, platform.monitoring, platform.max_groups, control.options.prefix
