"""Cache ways and memory bandwidth of guests, through the kernel's resctrl filesystem."""

from typing import Any, Final

from oslo_config import cfg

GROUP = "resctrl"

OPTS: Final = [
    cfg.BoolOpt(
        "mount",
        default=False,
        help="Mount resctrl at /sys/fs/resctrl where it is not mounted. What is mounted is used as it is.",
    ),
    cfg.StrOpt(
        "mount_options",
        default="",
        help="Options to mount it with, separated by commas: cdp (code and data apart), mba_MBps (bandwidth"
        " limits in MB/s that the kernel keeps by itself; needs memory_bandwidth_gbps).",
    ),
    cfg.IntOpt(
        "shared_ways",
        default=2,
        min=1,
        help="Cache ways of each L3 cache that are never given to one guest alone: classes and the rest of"
        " the host live there when all others are taken. Reserved in the inventory of LLC. Raised to what"
        " the processor needs, and to hold the ways that devices fill where it can.",
    ),
    cfg.StrOpt(
        "group_prefix",
        default="compute-agent.",
        regex=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z",
        help="What the names of the agent's groups begin with. All other groups are listed, but never"
        " touched. To be changed while no guest runs: groups of the former prefix are somebody else's.",
    ),
    cfg.FloatOpt(
        "memory_bandwidth_gbps",
        min=0.1,
        help="What 100 percent of memory bandwidth is in each L3 domain, in 10^9 bytes a second, where the"
        " kernel wants absolute values: AMD (by default the maximum that the kernel shows) and mba_MBps"
        " (needed there).",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make section [resctrl] known to ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [(GROUP, OPTS)]
