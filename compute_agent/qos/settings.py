"""The configuration as rules."""

from __future__ import annotations

from oslo_config import cfg

from compute_agent.inventory.cpu_sets import ConfigError
from compute_agent.qos.classes import Classes
from compute_agent.qos.evictor import Stop, command_stop
from compute_agent.qos.levers import Steps
from compute_agent.qos.metrics import Registry
from compute_agent.qos.rules import Rules
from compute_agent.qos.waterlines import parse_waterlines


def build_rules(conf: cfg.ConfigOpts, registry: Registry, classes: Classes) -> Rules:
    """What decisions go by. Raises ConfigError naming section and option of what contradicts itself."""
    return Rules(
        registry,
        parse_waterlines(conf, registry, classes),
        Steps(conf.qos.step / 100, conf.qos.min_share / 100),
        conf.qos.margin / 100,
    )


def build_stop(conf: cfg.ConfigOpts, default: Stop) -> Stop:
    """How guests are made to leave: the operator's command, or ``default``. Raises ConfigError."""
    if conf.qos.evict_command is None:
        return default
    try:
        return command_stop(conf.qos.evict_command, conf.qos.evict_command_timeout)
    except ValueError as error:
        raise ConfigError(f"[qos] evict_command: {error}") from error
