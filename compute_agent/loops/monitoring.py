"""Monitoring, built from the configuration and the mount of resctrl, and its targets from the guests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry

from compute_agent.controllers.base import KernelController, find_controller
from compute_agent.controllers.resctrl import ResctrlController
from compute_agent.drivers.base import GuestThreads
from compute_agent.loops.base import ConfigurationInForce, ReloadedConfiguration
from compute_agent.model.guest import Guest
from compute_agent.monitoring.loop import MonitoringCollector, MonitoringSettings, MonitorLoop, Targets
from compute_agent.monitoring.monitor import CacheMonitor
from compute_agent.monitoring.readings import MonitoredCaches, MonitorTarget, build_targets
from compute_agent.monitoring.samples import FILE, SampleStore
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.resctrl.mount import ResctrlHandle
from compute_agent.usage.snapshot import MetricSeries, UsageSnapshot

_CPU: Final = MetricSeries("cpu_usage")


class MonitorTargets:
    """Guests and classes in the groups that the controller of resctrl has put them in."""

    def __init__(self, driver: GuestThreads) -> None:
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


class MeasuredUsage(Protocol):
    """The use of guests at one moment; ``snapshot`` is None before the first."""

    @property
    def snapshot(self) -> UsageSnapshot | None:
        """What was measured."""
        ...


class UsageSource(Protocol):
    """Measures the use of guests by itself."""

    @property
    def status(self) -> MeasuredUsage:
        """What was measured last."""
        ...


class MonitoredGuests:
    """The targets of one agent, by its guests and controllers now."""

    def __init__(self, driver: GuestThreads, pipeline: GuestPipeline, in_force: ConfigurationInForce) -> None:
        self._targets = MonitorTargets(driver)
        self._pipeline = pipeline
        self._in_force = in_force
        self._usage: UsageSource | None = None

    def use_usage(self, usage: UsageSource) -> None:
        """Have samples contain the CPU use that ``usage`` measures.

        Not of the constructor: ``usage`` is made later, as it reads the counters.
        """
        self._usage = usage

    def __call__(self) -> tuple[MonitorTarget, ...] | None:
        """The targets; None while that is not known."""
        snapshot = None if self._usage is None else self._usage.status.snapshot
        return self._targets.build(self._in_force.controllers, self._pipeline.guests(), snapshot)


class CacheMonitoring:
    """What the daemon has of monitoring: a thread, metrics in a registry, and ``reader`` for watermarks."""

    def __init__(self, conf: ReloadedConfiguration, targets: Targets, registry: CollectorRegistry) -> None:
        """``targets`` tells whom to measure, from the thread and in every round: it has to be quick.

        Who is no longer told of loses its monitoring group; None is for when it is not known.
        """
        settings = MonitoringSettings.from_options(conf.options)
        store = SampleStore(Path(conf.options.state_path) / FILE, settings.retention, settings.store_bytes)
        self._measured: tuple[Any, ...] | None = None
        self.loop = MonitorLoop(targets, store, settings)
        self.reader = MonitoredCaches(self.loop.newest_reading)
        registry.register(MonitoringCollector(self.loop))
        self.reload(conf)

    @property
    def off(self) -> str:
        """Why nothing is measured; empty if it is."""
        if self._measured is None:
            return "there is no resctrl with counters"
        return "" if self.loop.settings.interval > 0 else "[monitoring] interval is 0"

    def start(self) -> None:
        """Measure from now on, as far as there is something to measure with."""
        self.loop.start()

    def stop(self) -> None:
        """Stop measuring; groups stay for the next agent."""
        self.loop.stop()

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Go on with another configuration, and the mount that there is now."""
        control = conf.control
        usable = control is not None and control.writable and control.platform.monitoring is not None
        measured = _measured(control) if control is not None and usable else None
        if measured != self._measured:
            # Not for every change of the configuration: totals would begin anew.
            self.loop.monitor_with(
                CacheMonitor(control.files, control.platform, control.options.prefix)
                if control is not None and usable
                else None
            )
        self._measured = measured
        if control is not None:
            self.reader.set_platform(control.platform, control.options.memory_bandwidth_gbps)
        self.loop.reload(MonitoringSettings.from_options(conf.options))


def _measured(control: ResctrlHandle) -> tuple[Any, ...]:
    """What a monitor of a mount depends on."""
    platform = control.platform
    return control.files.root, platform.monitoring, platform.max_groups, control.options.prefix
