"""Settings of throttling: ``[qos]``, ``[watermark:NAME]`` and ``[interference:NAME]`` as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from oslo_config import cfg

from compute_agent.classes.guest_classes import QosClasses, parse_classes
from compute_agent.conf.interference import INTERFERENCE
from compute_agent.conf.qos import family_sections
from compute_agent.model.messages import ConfigError
from compute_agent.throttling.guest_command import GuestCommand, guest_command
from compute_agent.throttling.interference.signals import SIGNALS, InterferenceWatch
from compute_agent.throttling.levers import ThrottleSteps
from compute_agent.throttling.watermarks.metrics import MetricRegistry
from compute_agent.throttling.watermarks.sections import WatermarkRules, parse_watermarks, with_expressions
from compute_agent.throttling.watermarks.sources import MetricSource, parse_sources, with_sources

_ESCALATE_SECONDS: Final = 600.0
"""Seconds after which the agent kills ``escalate_command`` and reports a failure. A live migration takes
minutes."""


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
    for option in ("victims", "consenting"):
        for word in options[option]:
            if word not in classes.classes:
                known = ", ".join(sorted(classes.classes))
                raise ConfigError(f"{section} {option}: there is no class {word!r}; there are {known}")
    for word in options.consenting:
        # The option is refused, because it would have no effect: the agent never limits such a class.
        if classes.is_protected(word, dedicated=False):
            raise ConfigError(
                f"{section} consenting: {word} is above [qos] highest_class and the agent never limits it"
            )
    return InterferenceWatch(
        name,
        SIGNALS[options.signal],
        options.mode == "preview",
        frozenset(options.victims),
        frozenset(options.consenting),
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
