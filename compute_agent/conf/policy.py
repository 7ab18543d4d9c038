"""Section ``[policy]``: the choice of CPUs for guests."""

from typing import Any, Final

from oslo_config import cfg

FOLLOW: Final = "follow"
"""The policy of hosts where another program, such as Nova, pins guests."""
DEFAULT_POLICY: Final = "topology-aware"
"""The default policy of all other hosts."""

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
            ("static-pools", "as static, for guests in pools ([cpu_pool:NAME]); other guests have no place"),
            ("topology-aware", "few zones for the guest, whole cores and caches for the next one"),
            (
                FOLLOW,
                "guests stay where another program pins them, such as Nova, and the agent acts on cache,"
                " memory bandwidth, weights and watermarks by where they are; [policy] rebalance = true and"
                " [guests] unplaced = refuse are refused with it, and [guests] unallocated has no effect",
            ),
        ],
        help=f"Choice of dedicated CPUs. Default: {FOLLOW} if nova-compute owns the root provider, as"
        f" Nova then"
        f" pins guests, else {DEFAULT_POLICY}.",
    ),
    cfg.BoolOpt(
        "rebalance",
        default=False,
        help="Whether running guests on dedicated CPUs move to better places that became free: at most one"
        " guest each reconcile_interval, and only for a gain of rebalance_gain or more.",
    ),
    cfg.FloatOpt(
        "rebalance_gain",
        default=2.0,
        min=0.5,
        help="Minimum gain of a move. Each L3 domain that the guest does not cross any more counts 1, each"
        " NUMA node 3 more, each package 6 more. Each core that it shared with another guest counts 1. Each"
        " CPU that is not in cpu_dedicated_set any more counts 4. Memory that moves to other NUMA nodes"
        " counts"
        " -2.",
    ),
    cfg.BoolOpt(
        "load_aware",
        default=False,
        help="Whether the use of dedicated CPUs counts, measured over load_minutes. New guests then get"
        " threads beside the least busy ones, if other criteria are equal. With rebalance, a core of two"
        " guests counts 4 times the use of the less busy one (1 for a thread that is always busy) in place of"
        " 1.",
    ),
    cfg.FloatOpt(
        "load_minutes",
        default=5.0,
        min=1.0,
        help="Minutes over which use is averaged. The use of a guest counts after it has run that long.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the section known to ``conf``."""
    conf.register_opts(POLICY_OPTS, group="policy")


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options of the section, for the sample file."""
    return [("policy", POLICY_OPTS)]
