"""Section ``[resctrl]``: limits of cache ways and memory bandwidth with the kernel's file system resctrl."""

from typing import Final

from oslo_config import cfg

OPTS: Final = [
    cfg.BoolOpt(
        "mount",
        default=False,
        help="Whether the agent mounts resctrl at /sys/fs/resctrl. If resctrl is already mounted, the agent"
        " uses this mount unchanged.",
    ),
    cfg.StrOpt(
        "mount_options",
        default="",
        help="Mount options of resctrl, separated by commas. With cdp, code and data have separate masks"
        " of cache ways. With mba_MBps, bandwidth limits are in MB/s, and the kernel enforces these"
        " limits. mba_MBps needs the option memory_bandwidth_gbps.",
    ),
    cfg.IntOpt(
        "shared_ways",
        default=2,
        min=1,
        help="Number of ways of each L3 cache that no guest gets exclusively. QoS classes and processes of"
        " the host can always use these ways. The inventory of LLC has these ways as its reserved amount. The"
        " agent keeps more ways shared if the processor requires this, or if devices fill more ways.",
    ),
    cfg.StrOpt(
        "group_prefix",
        default="compute-agent.",
        regex=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z",
        help="Prefix of the names of the agent's resctrl groups. The agent lists groups with other names, but"
        " never changes them. Change the prefix only while no guest runs: after a change, the agent no longer"
        " changes groups with the former prefix.",
    ),
    cfg.FloatOpt(
        "memory_bandwidth_gbps",
        min=0.1,
        help="Full memory bandwidth (100 percent) of one L3 domain, in 10^9 bytes a second. The"
        " option applies only if the kernel accepts absolute values: on AMD, and with mba_MBps. On AMD the"
        " default is the maximum that the kernel shows. With mba_MBps the option is required.",
    ),
]

SECTIONS: Final = {"resctrl": OPTS}
