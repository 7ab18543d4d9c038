"""From the ini file and the system to what inventories are derived from."""

import os
import socket
from pathlib import Path

from oslo_config import cfg

from compute_agent.inventory.cpu_sets import CpuOptions
from compute_agent.inventory.derive import Settings

_GIB = 1024**3


def cpu_options(conf: cfg.ConfigOpts) -> CpuOptions:
    """The options that name CPUs."""
    return CpuOptions(
        cpu_dedicated_set=conf.compute.cpu_dedicated_set,
        cpu_shared_set=conf.compute.cpu_shared_set,
        vcpu_pin_set=conf.vcpu_pin_set,
        reserved_host_cpus=conf.reserved_host_cpus,
    )


def settings(conf: cfg.ConfigOpts) -> Settings:
    """The options that shape inventories, with the size of the file system of the state path as it is now."""
    return Settings(
        provider_tree=conf.compute.provider_tree,
        cpu_allocation_ratio=conf.cpu_allocation_ratio,
        ram_allocation_ratio=conf.ram_allocation_ratio,
        disk_allocation_ratio=conf.disk_allocation_ratio,
        reserved_host_memory_mb=conf.reserved_host_memory_mb,
        reserved_host_disk_mb=conf.reserved_host_disk_mb,
        disk_gb=disk_gb(Path(conf.state_path)),
    )


def root_name(conf: cfg.ConfigOpts) -> str:
    """Name of the root provider: the option's, else the host's fully qualified domain name, or its plain name
    where resolving gives nothing better than `localhost`.
    """
    if conf.compute.resource_provider_name:
        return str(conf.compute.resource_provider_name)
    name = socket.getfqdn()
    return socket.gethostname() if name.split(".")[0].startswith("localhost") else name


def disk_gb(path: Path) -> int:
    """Size in GiB, rounded down, of the file system that `path` is on, or would be on once it is made."""
    # os.path.exists() is also for those who may not look into a folder: it is not there for them.
    existing = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))
    status = os.statvfs(existing)
    return status.f_blocks * status.f_frsize // _GIB
