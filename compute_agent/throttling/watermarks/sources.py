"""The sources of metrics from outside the kernel, as configured: a command or a Prometheus query.

Each source is read in a thread of its own (``loops.metric_sources``), and rounds use the last value. While a
source does not answer, its metric has no value. The watermarks of the metric then set no limits, and keep
existing limits.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from oslo_config import cfg

from compute_agent.conf.metric_source import METRIC_SOURCE
from compute_agent.conf.qos import family_sections
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
"""The levers that a section can select, by name."""

_PRIORITY: Final = 1
"""The ``action_priority`` of metrics of sources: below all metrics of the kernel except I/O pressure and
steal."""

MAX_QUERY: Final = 4000
"""Maximum number of characters of a query."""


@dataclass(frozen=True, slots=True)
class MetricSource:
    """One section ``[metric:NAME]``: a command, or a query of Prometheus.

    :ivar command: the words of the command; empty if the source is a query.
    :ivar promql: the query that the Prometheus server at ``url`` answers.
    :ivar interval: seconds from the start of one read to the start of the next.
    :ivar timeout: maximum duration of one read of the metric, in seconds.
    """

    name: str
    command: tuple[str, ...] = ()
    promql: str = ""
    url: str = ""
    interval: float = 30.0
    timeout: float = 10.0

    @property
    def lasting_seconds(self) -> float:
        """The seconds for which a value is valid. Within this time, the next read has ended or is killed."""
        return self.interval + self.timeout + 1.0


def parse_sources(conf: cfg.ConfigOpts) -> tuple[MetricSource, ...]:
    """Read the sections ``[metric:NAME]``.

    :raises ConfigError: an option is missing or wrong; the text names section and option.
    """
    return tuple(_read_source(name, options) for name, options in family_sections(conf, METRIC_SOURCE))


def with_sources(conf: cfg.ConfigOpts, registry: MetricRegistry) -> MetricRegistry:
    """A registry with the metrics of ``registry`` and the metrics of all sources.

    :raises ConfigError: a name cannot be the name of a metric, or is taken; the text names the section.
    """
    for name, options in family_sections(conf, METRIC_SOURCE):
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
                has_capacity=False,
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
    # A user name is refused, because the log shows the address, and must not show a password.
    if not usable or parts.query or parts.fragment or parts.username or not address.isascii():
        raise ConfigError(f"{section} url: it has to be http://HOST[:PORT] or https://HOST[:PORT]")
