"""Opens the state folder, the resctrl mount and the driver of this host, and checks them."""

from __future__ import annotations

import errno
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from oslo_config import cfg
from prometheus_client import Gauge

from compute_agent.drivers.base import GuestDriver, split_names
from compute_agent.drivers.factory import (
    DriverLock,
    choose_driver,
    count_guests,
    libvirtd_is_usable,
    lock_for,
    open_drivers,
)
from compute_agent.files import UnsafeFileError, check_folder, secure_folder
from compute_agent.inventory.resctrl import CachePlatform, cache_platform
from compute_agent.model.messages import ConfigError
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.state import StateFile
from compute_agent.resctrl.filesystem import ResctrlError, ResctrlFilesystem
from compute_agent.resctrl.groups import NOT_GROUPS, group_path, read_groups
from compute_agent.resctrl.mount import (
    NoMountError,
    ResctrlHandle,
    ResctrlOptions,
    find_mount,
    open_handle,
    open_mount,
)
from compute_agent.resctrl.schemata import BadSchemataError
from compute_agent.resctrl.share_spec import ShareSpec

STATE_FILE: Final = "state.json"
GUESTS_FOLDER: Final = "guests"

_OPTION: Final = "[DEFAULT] state_path"
_NEEDED: Final = "the agent needs a folder there that it can write to"


def check_state_folder(conf: cfg.ConfigOpts) -> str:
    """The reason why this user cannot use the state folder; empty if it is usable. Nothing is left behind.

    The agent often runs as another user, which can have the missing rights.

    :raises ConfigError: an agent of any user would refuse the folder.
    """
    folder = Path(conf.state_path)
    if reason := _folder_fault(folder, check_folder):
        return reason
    # An absent folder can be created if the user can write to its closest existing parent.
    there = next(part for part in (folder.absolute(), *folder.absolute().parents) if part.exists())
    try:
        # Only an attempt shows this: root has access to each folder, but the kernel creates none in /proc.
        tempfile.TemporaryDirectory(dir=there).cleanup()
    except OSError as error:
        # The mode of the folder causes EACCES. Other errors, such as EPERM in /sys, concern all users.
        if error.errno == errno.EACCES:
            return f"{_OPTION} = {folder}: user {os.geteuid()} cannot write to {there}; {_NEEDED}"
        raise ConfigError(f"{_OPTION} = {folder}: {there}: {error.strerror}; {_NEEDED}") from error
    return ""


def make_state_folder(conf: cfg.ConfigOpts) -> Path:
    """Create the state folder if it is absent, and return its path.

    :raises ConfigError: the folder cannot be used, or other users can write to it.
    """
    folder = Path(conf.state_path)
    if reason := _folder_fault(folder, secure_folder):
        raise ConfigError(reason)
    return folder


def _folder_fault(folder: Path, see_to: Callable[[Path], None]) -> str:
    """The reason why this user cannot use the state folder, or its folder of guests; empty if it can.

    :param see_to: checks a folder. make_state_folder() passes a function that also creates a missing folder.
    :raises ConfigError: no user can use the folders, or other users can write there.
    """
    try:
        for part in (folder, folder / GUESTS_FOLDER):
            see_to(part)
    except PermissionError as error:
        return f"{_OPTION} = {folder}: {error}; {_NEEDED}"
    except UnsafeFileError as error:
        raise ConfigError(f"{_OPTION} = {folder}: {error}") from error
    except OSError as error:
        raise ConfigError(f"{_OPTION} = {folder}: {error}; {_NEEDED}") from error
    return ""


LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostResctrl:
    """The resctrl mount of this host.

    :ivar control: the mount; None means that resctrl is not mounted, or that this user cannot read it (or
        write to it, if the caller is the agent).
    :ivar off: the reason why the agent does not control caches; empty if it controls them.
    """

    control: ResctrlHandle | None
    off: str = ""


def open_resctrl(conf: cfg.ConfigOpts, acting: bool = False) -> HostResctrl:
    """Open the resctrl mount according to the configuration.

    :param acting: whether the caller is the agent. The agent must be able to write to resctrl, and mounts
        resctrl if the configuration says so.
    """
    root, options = Path(conf.host.root), conf.resctrl
    try:
        mount = open_mount(root, acting and options.mount, options.mount_options)
        if acting and not mount.captured and not os.access(mount.path, os.W_OK):
            return HostResctrl(None, f"{mount.path} cannot be written by this user")
        choices = ResctrlOptions(options.group_prefix, options.shared_ways, options.memory_bandwidth_gbps)
        control = open_handle(mount, choices, root)
    except (NoMountError, ResctrlError, BadSchemataError) as error:
        return HostResctrl(None, str(error))
    if not control.writable:
        return HostResctrl(control, f"{mount.path} is a copy of resctrl, and not a mount")
    if not control.platform.cache_ids:
        return HostResctrl(control, "the processor can limit neither cache ways nor bandwidth")
    return HostResctrl(control)


def offered_platform(control: ResctrlHandle | None, classes: Mapping[str, ShareSpec]) -> CachePlatform | None:
    """The caches and the memory bandwidth that inventories offer; None if resctrl cannot be read.

    ``classes`` are the shares of the QoS classes.
    """
    if control is None:
        return None
    try:
        present = read_groups(control.files)
    except (ResctrlError, BadSchemataError) as error:
        LOG.error("Cache ways and bandwidth cannot be offered: %s", error)
        return None
    return cache_platform(control.build_layout(present), present, classes)


def resctrl_signature(conf: cfg.ConfigOpts) -> Any:
    """A value that differs after each change of the resctrl mount or of groups of other programs."""
    mount = find_mount(Path(conf.host.root))
    if mount is None:
        return None
    files = ResctrlFilesystem(mount.path)
    try:
        names = files.list_folders()
    except ResctrlError as error:
        return mount, error.errno
    # For groups of other programs, only the mode matters: a locked group takes cache ways away from all other
    # groups.
    foreign = (n for n in names if n not in NOT_GROUPS and not n.startswith(conf.resctrl.group_prefix))
    return mount, tuple((name, files.read_optional(group_path(name, "mode"))) for name in foreign)


@dataclass(frozen=True, slots=True)
class HostDriver:
    """A driver of guests, with the locks that keep other agents from managing the same guests.

    ``notice`` is a message about an unusual choice of the driver; empty for a usual choice.
    """

    driver: GuestDriver
    locks: Sequence[DriverLock]
    notice: str

    @property
    def status(self) -> str:
        """``up`` if the service of the driver (libvirtd) answers, otherwise ``away`` with the reason."""
        return f"away: {outage}" if (outage := self.driver.outage_reason) else "up"

    def close(self) -> None:
        """Close the driver and release its locks. Guests continue to run."""
        self.driver.close()
        for lock in self.locks:
            lock.release()


def _is_up(driver: GuestDriver, name: str) -> float:
    return float(name not in driver.outage_reasons())


def open_host_driver(
    conf: cfg.ConfigOpts, state: StateFile, folder: Path, holder: str, metrics: AgentMetrics, host: str = ""
) -> HostDriver:
    """Choose, lock and open the driver of this host, or its drivers.

    :param folder: the folder with the records of guests that are plain processes.
    :param holder: a description of this agent, for the error of another agent that finds the lock held.
    :param host: the name of the host's resource provider.
    :raises DriverError: the driver cannot be opened, or another agent manages its guests.
    :raises OSError: the lock file or a record cannot be read or written.
    """
    last = state.state
    choice = choose_driver(
        conf.guests.drivers,
        libvirtd_is_usable(conf.libvirt.uri),
        last.driver,
        count_guests(guest.driver for guest in last.guests.values()),
    )
    names = split_names(choice.name)
    LOG.info("The agent manages guests of driver %s", " and ".join(names))
    if choice.notice:
        LOG.warning("The drivers of guests need attention: %s", choice.notice)
    locks = {name: lock_for(name, conf, holder) for name in names}
    try:
        driver = open_drivers(conf, folder, locks, host)
    except BaseException:
        for lock in locks.values():
            lock.release()
        raise
    try:
        state.keep_driver(choice.name)
    except OSError as error:
        LOG.error(
            "The agent cannot store its choice of drivers: %s; it tries again with the next guest", error
        )
        metrics.state_failures.inc()
    Gauge(
        "compute_agent_driver_up",
        "1 if the services that run the guests of all drivers (such as libvirtd) answer, otherwise 0.",
        registry=metrics.registry,
    ).set_function(lambda: not driver.outage_reason)
    each = Gauge(
        "compute_agent_guest_driver_up",
        "1 if the service that runs the guests of this driver answers, otherwise 0.",
        ["driver"],
        registry=metrics.registry,
    )
    for name in names:
        each.labels(name).set_function(partial(_is_up, driver, name))
    return HostDriver(driver, tuple(locks.values()), choice.notice)
