"""Sources of metrics from outside the kernel, as configured: a command, or a query of Prometheus.

A source is read in a thread of its own (``loops.metric_sources``); rounds use the last value. A source that
is away has no value: the watermarks of its metric then do nothing, and also give no limits back.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from oslo_config import cfg

from compute_agent.conf.metric_source import METRIC_SOURCE
from compute_agent.conf.qos import metric_source_sections
from compute_agent.model.messages import ConfigError
from compute_agent.throttling.levers import BLOCKIO, CPU_QUOTA
from compute_agent.throttling.watermarks.metrics import (
    MetricRegistry,
    MetricUnit,
    MetricUsage,
    WatermarkMetric,
    host_usage,
)
from compute_agent.usage.rounds import MeasuringRound

_LEVERS: Final = {lever.name: lever for lever in (CPU_QUOTA, BLOCKIO)}

_PRIORITY: Final = 1
"""Of actions: what the kernel measures itself comes first, but for I/O and stolen time."""

MAX_QUERY: Final = 4000


@dataclass(frozen=True, slots=True)
class MetricSource:
    """A command (its words), or a query of the Prometheus at ``url``. Times are in seconds."""

    name: str
    command: tuple[str, ...] = ()
    promql: str = ""
    url: str = ""
    interval: float = 30.0
    timeout: float = 10.0

    @property
    def lasting_seconds(self) -> float:
        """The time for which a value counts: until the next one is due, at the latest."""
        return self.interval + self.timeout + 1.0


def parse_sources(conf: cfg.ConfigOpts) -> tuple[MetricSource, ...]:
    """The sources that ``conf`` has, by name.

    :raises ConfigError: naming section and option.
    """
    return tuple(_read_source(name, options) for name, options in metric_source_sections(conf))


def with_sources(conf: cfg.ConfigOpts, registry: MetricRegistry) -> MetricRegistry:
    """The registry with the metrics of all sources.

    :raises ConfigError: naming the section with a name that no metric can have.
    """
    for name, options in metric_source_sections(conf):
        unit = MetricUnit.OTHER if options.unit == "number" else MetricUnit(options.unit)
        try:
            metric = WatermarkMetric(
                name,
                unit,
                _PRIORITY,
                partial(_measure_source, name),
                lever=_LEVERS.get(options.lever or ""),
                evictable=True,
                external=True,
            )
            registry = registry.with_metrics([metric])
        except ValueError as error:
            raise ConfigError(f"[{METRIC_SOURCE}{name}]: {error}") from error
    return registry


def _measure_source(name: str, now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    return host_usage(now.read_source(name))


def _read_source(name: str, options: Any) -> MetricSource:
    section = f"[{METRIC_SOURCE}{name}]"
    if bool(options.command) == bool(options.promql):
        raise ConfigError(f"{section}: set either command or promql")
    try:
        words = tuple(shlex.split(options.command or ""))
    except ValueError as error:
        raise ConfigError(f"{section} command: {options.command!r}: {error}") from error
    if len(options.promql or "") > MAX_QUERY:
        raise ConfigError(f"{section} promql: the query is longer than {MAX_QUERY} characters")
    if options.promql:
        _check_address(section, options.url)
    return MetricSource(
        name, words, options.promql or "", options.url.rstrip("/"), options.interval, options.timeout
    )


def _check_address(section: str, address: str) -> None:
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ConfigError(f"{section} url = {address}: {error}") from error
    # The log shows the address, and a password must not be there.
    if not usable or parts.query or parts.fragment or parts.username or not address.isascii():
        raise ConfigError(f"{section} url: it has to be http://HOST[:PORT] or https://HOST[:PORT]")
