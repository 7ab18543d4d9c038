"""Settings of throttling: ``[qos]``, ``[watermark:NAME]`` and ``[interference:NAME]`` as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from oslo_config import cfg

from compute_agent.classes.guest_classes import QosClasses, parse_classes
from compute_agent.conf.interference import INTERFERENCE
from compute_agent.conf.qos import interference_sections
from compute_agent.model.messages import ConfigError
from compute_agent.throttling.guest_command import GuestCommand, guest_command
from compute_agent.throttling.interference.signals import SIGNALS, InterferenceWatch
from compute_agent.throttling.levers import ThrottleSteps
from compute_agent.throttling.watermarks.metrics import MetricRegistry
from compute_agent.throttling.watermarks.sections import WatermarkRules, parse_watermarks, with_expressions
from compute_agent.throttling.watermarks.sources import MetricSource, parse_sources, with_sources

_ESCALATE_SECONDS: Final = 600.0
"""A migration takes minutes. The agent reports a command that takes longer than this, and ends it."""


@dataclass(frozen=True, slots=True)
class ThrottlingSettings:
    """The values of all sections.

    - ``rules`` belong to watermarks, ``watches`` to interference, ``sources`` to metrics of ``rules``.
    - ``interval`` is in seconds between two rounds of the watermarks.
    - ``evict_command`` makes a guest leave in the operator's own way.
    - ``evict_grace`` is in seconds: the time that a guest has to end after the request, without a command.
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
        """The levers that set limits by themselves; the worker does not know these limits."""
        levers = self.rules.registry.levers.items()
        return frozenset(name for name, lever in levers if lever.set_limit is not None)


def read_settings(conf: cfg.ConfigOpts, registry: MetricRegistry) -> ThrottlingSettings:
    """The settings of a configuration.

    :raises ConfigError: naming section and option of a contradiction.
    """
    # First, because watermarks and watches may name only classes that exist.
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
    """The rules for decisions of watermarks.

    :raises ConfigError: naming section and option of a contradiction.
    """
    # Expressions may name the metrics of sources.
    registry = with_expressions(conf, with_sources(conf, registry))
    return WatermarkRules(
        registry,
        parse_watermarks(conf, registry, classes),
        # Options are percent, as operators write them; decisions take shares.
        ThrottleSteps(conf.qos.step / 100, conf.qos.min_share / 100),
        conf.qos.margin / 100,
    )


def parse_watches(conf: cfg.ConfigOpts, classes: QosClasses) -> tuple[InterferenceWatch, ...]:
    """The watches that ``conf`` has, by name.

    :raises ConfigError: naming section and option.
    """
    return tuple(_read_watch(name, options, classes) for name, options in interference_sections(conf))


def _read_watch(name: str, options: Any, classes: QosClasses) -> InterferenceWatch:
    section = f"[{INTERFERENCE}{name}]"
    # The option has no default: a signal is a choice of what to act for.
    if options.signal is None:
        raise ConfigError(f"{section} signal: the option is missing; choose one of {', '.join(SIGNALS)}")
    for option in ("victims", "consenting"):
        for word in options[option]:
            if word not in classes.classes:
                known = ", ".join(sorted(classes.classes))
                raise ConfigError(f"{section} {option}: there is no class {word!r}; there are {known}")
    for word in options.consenting:
        # Such a class is never acted on: consent to it would read as if it had an effect.
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
    # Words are split here, so that an unbalanced quote is refused at the start and not at the first eviction.
    try:
        return guest_command(command, timeout)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from error
