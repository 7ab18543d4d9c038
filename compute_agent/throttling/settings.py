"""Settings of throttling: ``[qos]``, watermarks, interference and metric sources as one frozen value.

A metric source (``[metric:NAME]``) is a command or a Prometheus query. Each source is read in a thread of its
own (``loops.metric_sources``), and rounds use the last value. While a source does not answer, its metric has
no value. The watermarks of the metric then set no limits, and keep existing limits.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from oslo_config import cfg

from compute_agent.classes.guest_classes import QosClasses, parse_classes
from compute_agent.conf.interference import INTERFERENCE
from compute_agent.conf.metric_source import METRIC_SOURCE
from compute_agent.conf.qos import family_sections
from compute_agent.model.messages import ConfigError
from compute_agent.throttling.guest_command import GuestCommand, guest_command
from compute_agent.throttling.interference.signals import SIGNALS, InterferenceWatch
from compute_agent.throttling.levers import BLOCKIO, CPU_QUOTA, ThrottleSteps
from compute_agent.throttling.watermarks.metrics import (
    MetricRegistry,
    MetricUnit,
    MetricUsage,
    WatermarkMetric,
    host_usage,
)
from compute_agent.throttling.watermarks.sections import (
    WatermarkRules,
    parse_watermarks,
    read_classes,
    with_expressions,
)
from compute_agent.usage.rounds import MeasuringRound

_ESCALATE_SECONDS: Final = 600.0
"""Seconds after which the agent kills ``escalate_command`` and reports a failure. A live migration takes
minutes."""


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


@dataclass(frozen=True, slots=True)
class ThrottlingSettings:
    """The options of ``[qos]`` and of all sections of watermarks, interference and metrics.

    - ``rules`` are the watermarks, ``watches`` the sections of interference, and ``sources`` the sections of
      metrics from outside the kernel.
    - ``interval`` is the number of seconds between two rounds of the watermarks.
    - ``evict_command`` runs the operator's program that evicts a guest. If ``evict_command`` is None, the
      driver stops the guest.
    - ``evict_grace`` is the number of seconds that a guest has to end after it was asked to leave.
    """

    rules: WatermarkRules
    classes: QosClasses
    interval: float
    evict_grace: float
    evict_command: GuestCommand | None = None
    watches: tuple[InterferenceWatch, ...] = ()
    sources: tuple[MetricSource, ...] = ()

    @property
    def foreign_levers(self) -> frozenset[str]:
        """Names of the levers from other packages that set limits without the agent's worker."""
        levers = self.rules.registry.levers.items()
        return frozenset(name for name, lever in levers if lever.set_limit is not None)


def read_settings(conf: cfg.ConfigOpts, registry: MetricRegistry) -> ThrottlingSettings:
    """Read all settings of throttling from a configuration.

    :raises ConfigError: an option is wrong, or options contradict each other; the text names them.
    """
    # Classes are read first, because watermarks and watches can name only existing classes.
    classes = parse_classes(conf)
    return ThrottlingSettings(
        build_rules(conf, registry, classes),
        classes,
        conf.qos.interval,
        conf.qos.evict_grace,
        _read_command("[qos] evict_command", conf.qos.evict_command, conf.qos.evict_command_timeout),
        parse_watches(conf, classes),
        parse_sources(conf),
    )


def build_rules(conf: cfg.ConfigOpts, registry: MetricRegistry, classes: QosClasses) -> WatermarkRules:
    """Read the watermarks, the sizes of throttling steps and the margin of plans.

    :raises ConfigError: an option is wrong, or options contradict each other; the text names them.
    """
    # Expressions can name the metrics of sources.
    registry = with_expressions(conf, with_sources(conf, registry))
    return WatermarkRules(
        registry,
        parse_watermarks(conf, registry, classes),
        # The options are in percent; the arithmetic of limits uses parts of 1.
        ThrottleSteps(conf.qos.step / 100, conf.qos.min_share / 100),
        conf.qos.margin / 100,
    )


def parse_watches(conf: cfg.ConfigOpts, classes: QosClasses) -> tuple[InterferenceWatch, ...]:
    """Read the sections ``[interference:NAME]``.

    :raises ConfigError: an option is missing or wrong; the text names section and option.
    """
    return tuple(_read_watch(name, options, classes) for name, options in family_sections(conf, INTERFERENCE))


def _read_watch(name: str, options: Any, classes: QosClasses) -> InterferenceWatch:
    section = f"[{INTERFERENCE}{name}]"
    # The option has no default, because an operator has to decide against which disturbance the agent acts.
    if options.signal is None:
        raise ConfigError(f"{section} signal: the option is missing; choose one of {', '.join(SIGNALS)}")
    return InterferenceWatch(
        name,
        SIGNALS[options.signal],
        options.mode == "preview",
        read_classes(f"{section} victims", options.victims, classes, limited=False),
        read_classes(f"{section} consenting", options.consenting, classes, limited=True),
        options.escalate_after,
        _read_command(f"{section} escalate_command", options.escalate_command, _ESCALATE_SECONDS),
    )


def _read_command(option: str, command: str | None, timeout: float) -> GuestCommand | None:
    if command is None:
        return None
    # guest_command() splits the words now, so that an unbalanced quote is reported at the start, and not at
    # an eviction.
    try:
        return guest_command(command, timeout)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from error


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
