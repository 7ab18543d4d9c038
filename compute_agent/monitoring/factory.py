"""Monitoring, from the configuration and a mount."""

from __future__ import annotations

from pathlib import Path

from oslo_config import cfg
from prometheus_client import CollectorRegistry

from compute_agent.monitoring.cache_reader import MonitoredCaches
from compute_agent.monitoring.loop import MonitorLoop, Targets
from compute_agent.monitoring.metrics import MonitoringCollector
from compute_agent.monitoring.monitor import CacheMonitor
from compute_agent.monitoring.settings import Settings
from compute_agent.monitoring.store import SampleStore
from compute_agent.monitoring.tables import FILE
from compute_agent.resctrl.filesystem import Filesystem
from compute_agent.resctrl.platform import Platform


class Monitoring:
    """What the daemon has of monitoring. ``reader`` is for watermarks."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        files: Filesystem,
        platform: Platform,
        targets: Targets,
        registry: CollectorRegistry,
    ) -> None:
        settings = Settings.of(conf)
        self._loop = MonitorLoop(
            CacheMonitor(files, platform, conf.resctrl.group_prefix),
            targets,
            SampleStore(Path(conf.state_path) / FILE, settings.retention, settings.store_bytes),
            settings,
        )
        self.reader = MonitoredCaches(platform, self._loop.newest, conf.resctrl.memory_bandwidth_gbps)
        registry.register(MonitoringCollector(self._loop))

    def start(self) -> None:
        """Measure from now on, if an interval is set."""
        self._loop.start()

    def stop(self) -> None:
        """Stop measuring; groups stay for the next agent."""
        self._loop.stop()

    def reload(self, conf: cfg.ConfigOpts) -> None:
        """Go on with the options of [monitoring] in another configuration, and its memory bandwidth."""
        self.reader.memory_bandwidth_gbps = conf.resctrl.memory_bandwidth_gbps
        self._loop.reload(Settings.of(conf))


def open_monitoring(
    conf: cfg.ConfigOpts,
    files: Filesystem | None,
    platform: Platform | None,
    targets: Targets,
    registry: CollectorRegistry,
) -> Monitoring | None:
    """Monitoring of a mount, not started; None where there is no mount, or a processor without counters.

    ``targets`` tells whom to measure, from a thread of monitoring, in every round: it has to be quick.
    """
    if files is None or platform is None or platform.monitoring is None:
        return None
    return Monitoring(conf, files, platform, targets, registry)
