"""Which controllers there are on this host, as the configuration says."""

from __future__ import annotations

from oslo_config import cfg

from compute_agent.controllers.base import Controller
from compute_agent.controllers.cpuset import CpusetController
from compute_agent.drivers.base import Driver


def build_controllers(conf: cfg.ConfigOpts, driver: Driver) -> tuple[Controller, ...]:
    """The controllers in the order in which they act. Raises ConfigError."""
    return (CpusetController(driver),)
