"""Section ``[policy]``: where guests go."""

from typing import Any, Final

from oslo_config import cfg

FOLLOW: Final = "follow"
"""The policy of a host whose guests somebody else pins."""
DEFAULT_POLICY: Final = "topology-aware"
"""The policy of all others."""

POLICY_OPTS: Final = [
    cfg.StrOpt(
        "name",
        choices=[
            ("none", "touch nothing"),
            ("static", "dedicated CPUs in order"),
            (
                "static-plus",
                "the same, and floating guests may use dedicated CPUs while no guest holds them",
            ),
            ("static-pools", "as static, for guests in pools ([cpu_pool:NAME]); others have no place"),
            ("topology-aware", "few zones for the guest, whole cores and caches for the next one"),
            (
                FOLLOW,
                "guests stay where another program pins them, such as Nova, and the agent acts on cache,"
                " memory bandwidth, weights and watermarks by where they are; [policy] rebalance = true and"
                " [guests] unplaced = refuse are refused with it, and [guests] unallocated has no effect",
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


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the section known to ``conf``."""
    conf.register_opts(POLICY_OPTS, group="policy")


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options of the section, for the sample file."""
    return [("policy", POLICY_OPTS)]
