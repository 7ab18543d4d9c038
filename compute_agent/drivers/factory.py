"""Which driver this host has."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

from oslo_config import cfg

from compute_agent.drivers.base import Driver
from compute_agent.drivers.cgroup import CgroupRoot
from compute_agent.drivers.libvirt.driver import LibvirtDriver
from compute_agent.drivers.process import ProcessDriver

LOG = logging.getLogger(__name__)

LIBVIRT_SOCKETS = (Path("/run/libvirt/libvirt-sock"), Path("/run/libvirt/virtqemud-sock"))


def open_driver(conf: cfg.ConfigOpts, folder: Path) -> Driver:
    """The driver of the configuration. Process guests are recorded in ``folder``.

    Raises DriverError for one that cannot be had, OSError.
    """
    name = conf.guests.driver or default_name()
    LOG.info("Guests are those of driver %s", name)
    if name == LibvirtDriver.name:
        return LibvirtDriver(conf.libvirt.uri)
    groups = CgroupRoot.open(Path(conf.cgroup.root)) if conf.cgroup.root else None
    return ProcessDriver(folder, groups)


def default_name() -> str:
    """The name of the driver to use where none is configured."""
    usable = importlib.util.find_spec("libvirt") is not None and any(map(Path.exists, LIBVIRT_SOCKETS))
    return LibvirtDriver.name if usable else ProcessDriver.name
