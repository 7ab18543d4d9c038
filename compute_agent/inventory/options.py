"""Reads the input of inventories from the ini file and the system."""

import os
import socket
from pathlib import Path
from typing import Final

from oslo_config import cfg

from compute_agent.inventory import host_identity
from compute_agent.inventory.cpu_sets import CpuOptions
from compute_agent.inventory.derive import CONFIGURABLE, InventorySettings
from compute_agent.inventory.memory import parse_reserved
from compute_agent.inventory.provider_files import ProviderConfigs, read_provider_configs

_GIB: Final = 1024**3


def cpu_options(conf: cfg.ConfigOpts) -> CpuOptions:
    """The values of the options that name CPUs."""
    return CpuOptions(
        cpu_dedicated_set=conf.compute.cpu_dedicated_set,
        cpu_shared_set=conf.compute.cpu_shared_set,
        vcpu_pin_set=conf.vcpu_pin_set,
        reserved_host_cpus=conf.reserved_host_cpus,
    )


DEFAULT_SHAPE: Final = "numa"
"""The shape of the tree if the ini file names no shape and the root belongs to the agent."""


def settings(conf: cfg.ConfigOpts) -> InventorySettings:
    """The options for inventories, and the present size of the file system with the state folder.

    :raises ConfigError: an entry of reserved_huge_pages is wrong.
    """
    return InventorySettings(
        provider_tree=conf.compute.provider_tree or DEFAULT_SHAPE,
        # A ratio of 0 counts as not set, as in Nova.
        cpu_allocation_ratio=conf.cpu_allocation_ratio or conf.initial_cpu_allocation_ratio,
        ram_allocation_ratio=conf.ram_allocation_ratio or conf.initial_ram_allocation_ratio,
        disk_allocation_ratio=conf.disk_allocation_ratio or conf.initial_disk_allocation_ratio,
        reserved_host_memory_mb=conf.reserved_host_memory_mb,
        reserved_host_disk_mb=conf.reserved_host_disk_mb,
        disk_gb=disk_gb(Path(conf.state_path)),
        huge_pages=conf.compute.huge_pages,
        reclaimed=conf.capacity.mode != "off",
        reclaimed_memory=conf.capacity.mode != "off" and conf.capacity.memory,
        reserved_huge_pages=parse_reserved(conf.compute.reserved_huge_pages),
        configured=frozenset(name for name in CONFIGURABLE if _is_set(conf, name)),
    )


def provider_configs(conf: cfg.ConfigOpts) -> ProviderConfigs:
    """The additional inventories and traits in the provider files.

    :raises ConfigError: a file is wrong.
    """
    return read_provider_configs(conf.compute.provider_config_location or "")


def _is_set(conf: cfg.ConfigOpts, option: str) -> bool:
    """Whether the ini file sets an option of ``[DEFAULT]``. A ratio of 0 counts as not set, as in Nova."""
    found = conf.get_location(option)
    is_ratio = option.endswith("_ratio")
    return found is not None and found.location.is_user_controlled and not (is_ratio and not conf[option])


def root_name(conf: cfg.ConfigOpts) -> str:
    """The name of the root provider: from the option, else the name at the last start, else the host's name.

    :raises IdentityError: the file with the name used before is damaged.
    """
    if conf.compute.resource_provider_name:
        return str(conf.compute.resource_provider_name)
    return _kept_name(conf) or host_name()


def host_name() -> str:
    """The host's fully qualified domain name, or its plain name if that is ``localhost``."""
    name = socket.getfqdn()
    return socket.gethostname() if name.split(".")[0].startswith("localhost") else name


def hypervisor_name(conf: cfg.ConfigOpts) -> str:
    """The name of this host's provider in Nova: from the option, or else the name of the hypervisor.

    The name of the hypervisor is derived as in libvirt's virConnectGetHostname. If the host's name contains a
    domain or begins with localhost, the function returns the host's name. Otherwise the function returns the
    canonical name from the resolver. If the resolver fails, or the canonical name begins with localhost, the
    function returns the host's name, too.
    """
    if conf.compute.resource_provider_name:
        return str(conf.compute.resource_provider_name)
    name = socket.gethostname()
    if "." in name or name.startswith("localhost"):
        return name
    try:
        found = socket.getaddrinfo(name, None, flags=socket.AI_CANONNAME)
    except OSError:
        # libvirt, too, uses the host's name if the resolver fails.
        return name
    canonical = next((entry[3] for entry in found if entry[3]), name)
    return name if canonical.startswith("localhost") else canonical


def name_warning(conf: cfg.ConfigOpts) -> str:
    """A warning about a changed name of the host or provider; empty if nothing changed.

    :raises IdentityError: the file with the name used before is damaged.
    """
    kept, configured = _kept_name(conf), conf.compute.resource_provider_name
    if configured:
        if kept in ("", configured):
            return ""
        return f"The provider {kept} is renamed to {configured}, as [compute] resource_provider_name says"
    if kept in ("", found := host_name()):
        return ""
    return (
        f"This host is called {found} now; its provider keeps the name {kept}. To rename it, set [compute]"
        f" resource_provider_name = {found}. If [DEFAULT] state_path was copied from host {kept}, empty"
        " that folder"
    )


def _kept_name(conf: cfg.ConfigOpts) -> str:
    try:
        return host_identity.kept_name(Path(conf.state_path))
    except OSError:
        return ""  # The agent's commands can be run by users that are not allowed to read the state folder.


def disk_gb(path: Path) -> int:
    """The size in GiB, rounded down, of the file system of ``path``. The path need not exist yet."""
    # os.path.exists() is used, because it returns False instead of an error for folders that the user cannot
    # read.
    existing = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))
    status = os.statvfs(existing)
    return status.f_blocks * status.f_frsize // _GIB
