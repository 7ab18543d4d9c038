"""The configuration as rules."""

from __future__ import annotations

from dataclasses import dataclass

from oslo_config import cfg

from compute_agent.model.messages import ConfigError
from compute_agent.qos.classes import QosClasses, parse_classes
from compute_agent.qos.guest_command import GuestCommand, guest_command
from compute_agent.qos.levers import ThrottleSteps
from compute_agent.qos.metrics import MetricRegistry
from compute_agent.qos.rules import QosRules
from compute_agent.qos.watermarks import parse_watermarks


@dataclass(frozen=True, slots=True)
class QosSettings:
    """All that [qos], the watermarks and the classes say. ``interval`` is in seconds between two rounds.

    ``evict_command`` makes a guest leave in the operator's own way; without one it has ``evict_grace``
    seconds to end after it was asked to.
    """

    rules: QosRules
    classes: QosClasses
    interval: float
    evict_grace: float
    evict_command: GuestCommand | None = None


def read_settings(conf: cfg.ConfigOpts, registry: MetricRegistry) -> QosSettings:
    """The settings of a configuration.

    :raises ConfigError: naming section and option of what contradicts itself.
    """
    classes = parse_classes(conf)
    return QosSettings(
        build_rules(conf, registry, classes),
        classes,
        conf.qos.interval,
        conf.qos.evict_grace,
        _evict_command(conf),
    )


def build_rules(conf: cfg.ConfigOpts, registry: MetricRegistry, classes: QosClasses) -> QosRules:
    """What decisions go by.

    :raises ConfigError: naming section and option of what contradicts itself.
    """
    return QosRules(
        registry,
        parse_watermarks(conf, registry, classes),
        ThrottleSteps(conf.qos.step / 100, conf.qos.min_share / 100),
        conf.qos.margin / 100,
    )


def _evict_command(conf: cfg.ConfigOpts) -> GuestCommand | None:
    if conf.qos.evict_command is None:
        return None
    try:
        return guest_command(conf.qos.evict_command, conf.qos.evict_command_timeout)
    except ValueError as error:
        raise ConfigError(f"[qos] evict_command: {error}") from error
