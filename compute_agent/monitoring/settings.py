"""The options of [monitoring] as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from oslo_config import cfg


@dataclass(frozen=True, slots=True)
class MonitoringSettings:
    """Times are in seconds; an ``interval`` of 0 switches off what it is of. ``store_bytes`` is a size."""

    interval: float = 1.0
    store_interval: float = 10.0
    retention: float = 7 * 86400.0
    store_bytes: int = 512 * 10**6

    @classmethod
    def of(cls, conf: cfg.ConfigOpts) -> MonitoringSettings:
        """Those of a configuration."""
        options = conf.monitoring
        return cls(options.interval, options.store_interval, options.retention, options.store_max_mb * 10**6)
