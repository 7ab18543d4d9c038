"""What watermarks have to work with on this host: what can be measured, and who can be throttled."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from oslo_config import cfg

from compute_agent.daemon.cache_control import HostResctrl
from compute_agent.drivers.factory import unlimited
from compute_agent.host import kernel_files
from compute_agent.model.resource import BLOCKIO, CACHE_WAYS, CPU_QUOTA, MEMORY_BANDWIDTH
from compute_agent.resctrl.monitoring import LOCAL_BYTES, OCCUPANCY, TOTAL_BYTES
from compute_agent.resctrl.mount import ResctrlHandle

_EVENTS: Final = {"memory_bandwidth": {TOTAL_BYTES, LOCAL_BYTES}, "llc_occupancy": {OCCUPANCY}}
"""By metric the counters of which it needs one."""

_PRESSURES: Final = ("cpu", "memory", "io")


def unmeasured_metrics(conf: cfg.ConfigOpts, control: ResctrlHandle | None) -> dict[str, str]:
    """By metric of watermarks that cannot be measured here the reason, and what to do.

    ``control`` is the mount of resctrl, if there is one.
    """
    found = {}
    monitoring = control.platform.monitoring if control is not None and control.writable else None
    for metric, events in _EVENTS.items():
        if monitoring is None or not events & monitoring.features:
            found[metric] = "no resctrl is mounted here that counts it (see [resctrl] mount)"
        elif conf.monitoring.interval == 0:
            found[metric] = "[monitoring] interval is 0, so that it is not measured"
    for resource in _PRESSURES:
        path = str(Path(conf.host.root) / "proc/pressure" / resource)
        try:
            kernel_files.read(path)
        except OSError as error:
            found[f"{resource}_pressure"] = (
                f"the kernel tells no pressures ({path}: {error.strerror}): it needs CONFIG_PSI, and psi=1"
            )
    return found


def unusable_levers(conf: cfg.ConfigOpts, resctrl: HostResctrl, driver: str) -> dict[str, str]:
    """By lever that throttles nobody here the reason, and what to do.

    ``driver`` is the name of that of the guests.
    """
    found = {}
    platform = None if resctrl.control is None or resctrl.off else resctrl.control.platform
    why = f" ({resctrl.off})" if resctrl.off else ""
    if platform is None or platform.l3 is None:
        found[CACHE_WAYS] = f"cache ways cannot be limited here{why}"
    if platform is None or platform.mb is None:
        found[MEMORY_BANDWIDTH] = f"memory bandwidth cannot be limited here{why}"
    if reason := unlimited(driver, conf):
        found[CPU_QUOTA] = reason
        found[BLOCKIO] = reason
    return found
