"""The resctrl of this host, as the configuration wants it to be used."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oslo_config import cfg

from compute_agent.inventory.resctrl import CachePlatform, cache_platform
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

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostResctrl:
    """The mount of this host, as far as there is one; ``off`` says why guests are not controlled with it."""

    control: ResctrlHandle | None
    off: str = ""


def open_resctrl(conf: cfg.ConfigOpts, acting: bool = False) -> HostResctrl:
    """The mount that the configuration wants to be used.

    ``acting`` is for the daemon, which mounts it if the configuration says so, and has to be able to write.
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
        return HostResctrl(control, f"{mount.path} is not mounted, but a copy of one")
    if not control.platform.cache_ids:
        return HostResctrl(control, "the processor can limit neither cache ways nor bandwidth")
    return HostResctrl(control)


def offered(control: ResctrlHandle | None, classes: Mapping[str, ShareSpec]) -> CachePlatform | None:
    """What inventories have to know of the mount. ``classes`` are the shares of the QoS classes."""
    if control is None:
        return None
    try:
        present = read_groups(control.files)
    except (ResctrlError, BadSchemataError) as error:
        LOG.error("Cache ways and bandwidth cannot be offered: %s", error)
        return None
    return cache_platform(control.build_layout(present), present, classes)


def signature(conf: cfg.ConfigOpts) -> Any:
    """Something that changes when a mount comes or goes, or a group that is not the agent's."""
    mount = find_mount(Path(conf.host.root))
    if mount is None:
        return None
    files = ResctrlFilesystem(mount.path)
    try:
        names = files.list_folders()
    except ResctrlError as error:
        return mount, error.errno
    foreign = (n for n in names if n not in NOT_GROUPS and not n.startswith(conf.resctrl.group_prefix))
    return mount, tuple((name, files.read_optional(group_path(name, "mode"))) for name in foreign)
