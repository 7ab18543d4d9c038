"""Section ``[resctrl]``: cache ways and memory bandwidth through the kernel's resctrl filesystem."""

from typing import Any, Final

from oslo_config import cfg

GROUP = "resctrl"

OPTS: Final = [
    cfg.BoolOpt(
        "mount",
        default=False,
        help="Whether the agent mounts resctrl at /sys/fs/resctrl. An existing mount is used unchanged.",
    ),
    cfg.StrOpt(
        "mount_options",
        default="",
        help="Options of the mount, separated by commas: cdp (separate masks for code and data), mba_MBps"
        " (bandwidth limits in MB/s that the kernel controls; needs memory_bandwidth_gbps).",
    ),
    cfg.IntOpt(
        "shared_ways",
        default=2,
        min=1,
        help="Ways of each L3 cache that no guest gets exclusively. Classes and the rest of the host use them"
        " when all others are taken. They are reserved in the inventory of LLC. The agent raises the"
        " number to"
        " the minimum of the processor, and to include the ways that devices fill, if possible.",
    ),
    cfg.StrOpt(
        "group_prefix",
        default="compute-agent.",
        regex=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z",
        help="Prefix of the names of the agent's groups. Other groups are listed, but never changed."
        " Change it"
        " only while no guest runs: groups of the former prefix then belong to another program.",
    ),
    cfg.FloatOpt(
        "memory_bandwidth_gbps",
        min=0.1,
        help="Memory bandwidth of each L3 domain, in 10^9 bytes a second, that counts as 100 percent. It"
        " applies where the kernel takes absolute values: on AMD (default: the maximum that the kernel shows)"
        " and with mba_MBps (which needs it).",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make section [resctrl] known to ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [(GROUP, OPTS)]
