"""Monitoring, from the configuration and the mount that there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from compute_agent.loops.base import ReloadedConfiguration
from compute_agent.monitoring.loop import MonitoringCollector, MonitoringSettings, MonitorLoop, Targets
from compute_agent.monitoring.monitor import CacheMonitor
from compute_agent.monitoring.reading import MonitoredCaches
from compute_agent.monitoring.samples import FILE, SampleStore
from compute_agent.resctrl.mount import ResctrlHandle


class CacheMonitoring:
    """What the daemon has of monitoring: a thread, metrics in a registry, and ``reader`` for watermarks."""

    def __init__(self, conf: ReloadedConfiguration, targets: Targets, registry: CollectorRegistry) -> None:
        """``targets`` tells whom to measure, from the thread and in every round: it has to be quick.

        Who is no longer told of loses its monitoring group; None is for when it is not known.
        """
        settings = MonitoringSettings.of(conf.options)
        store = SampleStore(Path(conf.options.state_path) / FILE, settings.retention, settings.store_bytes)
        self._measured: tuple[Any, ...] | None = None
        self._loop = MonitorLoop(targets, store, settings)
        self.reader = MonitoredCaches(self._loop.newest)
        registry.register(MonitoringCollector(self._loop))
        self.reload(conf)

    @property
    def off(self) -> str:
        """Why nothing is measured; empty if it is."""
        if self._measured is None:
            return "there is no resctrl with counters"
        return "" if self._loop.settings.interval > 0 else "[monitoring] interval is 0"

    def start(self) -> None:
        """Measure from now on, as far as there is something to measure with."""
        self._loop.start()

    def stop(self) -> None:
        """Stop measuring; groups stay for the next agent."""
        self._loop.stop()

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Go on with another configuration, and the mount that there is now."""
        control = conf.control
        usable = control is not None and control.writable and control.platform.monitoring is not None
        measured = _measured(control) if control is not None and usable else None
        if measured != self._measured:
            # Not for every change of the configuration: totals would begin anew.
            self._loop.monitor_with(
                CacheMonitor(control.files, control.platform, control.options.prefix)
                if control is not None and usable
                else None
            )
        self._measured = measured
        if control is not None:
            self.reader.use(control.platform, control.options.memory_bandwidth_gbps)
        self._loop.reload(MonitoringSettings.of(conf.options))


def _measured(control: ResctrlHandle) -> tuple[Any, ...]:
    """What a monitor of a mount depends on."""
    platform = control.platform
    return control.files.root, platform.monitoring, platform.max_groups, control.options.prefix
