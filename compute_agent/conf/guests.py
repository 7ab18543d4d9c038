"""Which guests the agent looks after, where they go, and how often that is compared with the kernel."""

from typing import Any, Final

from oslo_config import cfg

from compute_agent.conf.duration import DurationType

FOLLOW: Final = "follow"
"""The policy of a host whose guests somebody else pins."""
DEFAULT_POLICY: Final = "topology-aware"
"""The policy of all others."""

GUESTS_OPTS: Final = [
    cfg.StrOpt(
        "driver",
        choices=[
            ("libvirt", "QEMU domains of the libvirtd on this host"),
            ("process", "plain processes, started by the agent or adopted"),
        ],
        help="What a guest is on this host. Unless set: what it was when the agent ran last; at first libvirt"
        " where libvirt-python is installed and the libvirtd of [libvirt] uri has its socket, else process. A"
        " host without process guests comes to have domains by itself when libvirtd does; everything else"
        " takes this option, and a restart.",
    ),
    cfg.StrOpt(
        "unallocated",
        default="shared",
        choices=[("shared", "they go to the shared CPUs"), ("ignore", "they are left where they are")],
        help="What happens to guests that hold no allocation of this host. Either way they are reported.",
    ),
    cfg.StrOpt(
        "unplaced",
        default="shared",
        choices=[
            ("shared", "they run on the shared CPUs, or where there are none on CPUs that no guest holds"),
            ("refuse", "the same, but one that starts and has no place is stopped at once"),
        ],
        help="What happens to guests for which there are no CPUs: over-allocated ones, and on hosts without"
        " cpu_shared_set those without an allocation. None of them ever runs on CPUs that another guest"
        " holds, unless guests hold all CPUs of the host. Those that run already are never stopped.",
    ),
    cfg.BoolOpt(
        "confirm_claims",
        default=False,
        help="Whether the agent confirms claims of guests that run and that would expire (expires_in of POST"
        " /ext/v1/claims). Otherwise it only says that they do, and whoever started the guest has to.",
    ),
    cfg.FloatOpt(
        "stop_timeout",
        default=10.0,
        min=0.0,
        help="Seconds that a guest has to end after it was asked to, before it is killed.",
    ),
    cfg.FloatOpt(
        "reconcile_interval",
        default=10.0,
        min=0.1,
        help="Seconds between two comparisons of all guests with the kernel, in which drift is repaired.",
    ),
    cfg.Opt(
        "log_retention",
        type=DurationType(),
        default="7d",
        help="How long the output of process guests is kept after their end: seconds, or a number with m, h,"
        " d or w. It is in guests/UUID.log in [DEFAULT] state_path.",
    ),
    cfg.IntOpt(
        "log_max_mb",
        default=512,
        min=0,
        help="Size in MB that the output of process guests that have ended may take; the oldest goes when"
        " there is more.",
    ),
    cfg.IntOpt(
        "log_guest_mb",
        default=64,
        min=1,
        help="Size in MB that the output of one process guest may take, while it runs and after its end:"
        " looked at each second, and of more only the last MB (of a smaller size, the last half) stays.",
    ),
]

POLICY_OPTS: Final = [
    cfg.StrOpt(
        "name",
        choices=[
            ("none", "touch nothing"),
            ("static", "dedicated CPUs in order"),
            (
                "static-plus",
                "the same, and who floats may use dedicated CPUs that nobody holds, until somebody does",
            ),
            ("static-pools", "as static, for guests in pools ([cpu_pool:NAME]); others have no place"),
            ("topology-aware", "few zones for the guest, whole cores and caches for the next one"),
            (
                FOLLOW,
                "guests stay where somebody else pins them, such as Nova, and the agent acts on cache, memory"
                " bandwidth, weights and watermarks by where they are; [policy] rebalance = true and [guests]"
                " unplaced = refuse are refused with it, and [guests] unallocated has no effect",
            ),
        ],
        help=f"How dedicated CPUs are chosen. Unless set: {FOLLOW} where the root provider is nova-compute's,"
        f" as positions are Nova's there, else {DEFAULT_POLICY}.",
    ),
    cfg.BoolOpt(
        "rebalance",
        default=False,
        help="Whether running guests on dedicated CPUs are moved to better places that became free: at most"
        " one guest each reconcile_interval, and only if it gains rebalance_gain.",
    ),
    cfg.FloatOpt(
        "rebalance_gain",
        default=2.0,
        min=0.5,
        help="What the move of a guest has to gain. Each L3 domain that it crosses no more counts 1, each"
        " NUMA node 3 more, each package 6 more, each core that it shared with another guest 1, each CPU that"
        " is not in cpu_dedicated_set any more 4; memory that has to be moved to other NUMA nodes counts 2"
        " against it.",
    ),
    cfg.BoolOpt(
        "load_aware",
        default=False,
        help="Whether it counts how busy guests with dedicated CPUs keep them, measured over load_minutes:"
        " new guests get the threads beside the least busy ones where it makes no other difference, and with"
        " rebalance a core of which two guests have threads counts 4 times the use of the less busy of the"
        " two (1 for a thread that is always busy), in place of 1.",
    ),
    cfg.FloatOpt(
        "load_minutes",
        default=5.0,
        min=1.0,
        help="Minutes over which use is averaged; a guest has to run as long before its use counts.",
    ),
]

LIBVIRT_OPTS: Final = [
    cfg.StrOpt("uri", default="qemu:///system", help="Where libvirtd is; it has to be on this host."),
]

CGROUP_OPTS: Final = [
    cfg.StrOpt(
        "root",
        help="Folder of a delegated cgroup v2 group; each process guest gets a group of its own below it."
        " Without it, or where it is not writable, process guests are pinned by scheduler affinity alone.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make sections [guests], [policy], [libvirt] and [cgroup] known to ``conf``."""
    for group, options in list_opts():
        conf.register_opts(options, group=group)


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [
        ("guests", GUESTS_OPTS),
        ("policy", POLICY_OPTS),
        ("libvirt", LIBVIRT_OPTS),
        ("cgroup", CGROUP_OPTS),
    ]
