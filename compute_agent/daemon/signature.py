"""What the agent looks at every second, to see whether configuration or host have changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from oslo_config import cfg

from compute_agent.conf import written
from compute_agent.daemon import cache_control
from compute_agent.fleet.kept import KEPT
from compute_agent.host.kernel_files import read_optional
from compute_agent.inventory.provider_files import files_in

_HUGE_PAGES: Final = "node/node*/hugepages/hugepages-*/nr_hugepages"


def host_signature(conf: cfg.ConfigOpts) -> tuple[Any, ...]:
    """Something cheap to ask for that changes when the host does.

    It changes with a configuration file, that of the fleet and those that add to providers, with what CPUs
    and NUMA nodes are online, with the pools of huge pages where these are offered, and with what others have
    in resctrl.
    """
    system = Path(conf.host.root) / "sys/devices/system"
    pools = sorted(system.glob(_HUGE_PAGES)) if conf.compute.huge_pages else ()
    return (
        *((path, _stamp(path)) for path in (*written.files_of(conf), *_other_files(conf))),
        *(read_optional(f"{system}/{name}") for name in ("cpu/online", "node/online")),
        *(read_optional(str(pool)) for pool in pools),
        cache_control.signature(conf),
    )


def _other_files(conf: cfg.ConfigOpts) -> tuple[Path, ...]:
    """Those that add to providers, and what is kept of the fleet, of which there may be nothing so far."""
    of_fleet = (Path(conf.state_path) / KEPT,) if conf.fleet.group else ()
    location = conf.compute.provider_config_location
    try:
        return (*of_fleet, *(files_in(location) if location else ()))
    except OSError:
        return of_fleet  # told when it is read


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
