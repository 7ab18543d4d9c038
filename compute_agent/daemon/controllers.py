"""Which controllers there are on this host, as the configuration says."""

from __future__ import annotations

from oslo_config import cfg

from compute_agent.controllers.base import Controller
from compute_agent.controllers.cpuset import CpusetController
from compute_agent.controllers.resctrl import ResctrlController
from compute_agent.drivers.base import Driver
from compute_agent.qos.classes import parse_classes
from compute_agent.resctrl.control import Control


def build_controllers(
    conf: cfg.ConfigOpts, driver: Driver, control: Control | None = None
) -> tuple[Controller, ...]:
    """The controllers in the order in which they act. `control` is the mount of resctrl, if there is one.

    Raises ConfigError.
    """
    controllers: list[Controller] = [CpusetController(driver)]
    if control is not None and control.writable and control.platform.caches:
        classes = {name: one.wish for name, one in parse_classes(conf).classes.items()}
        controllers.append(ResctrlController(driver, control, classes))
    return tuple(controllers)
