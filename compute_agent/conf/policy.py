"""Section ``[policy]``: the policy that chooses CPUs for guests."""

from typing import Final

from oslo_config import cfg

FOLLOW: Final = "follow"
"""The policy of hosts on which another program, such as Nova, pins guests."""
DEFAULT_POLICY: Final = "topology-aware"
"""The default policy of hosts on which no other program pins guests."""

POLICY_OPTS: Final = [
    cfg.StrOpt(
        "name",
        choices=[
            ("none", "the agent does not change CPUs of guests"),
            ("static", "guests get dedicated CPUs in the order of their numbers"),
            (
                "static-plus",
                "as static; floating guests may also use dedicated CPUs that no guest holds",
            ),
            (
                "static-pools",
                "as static, for guests in pools ([cpu_pool:NAME]); other guests get no dedicated CPUs",
            ),
            (
                "topology-aware",
                "a guest gets CPUs in few NUMA nodes and caches, and whole cores and caches"
                " stay free for the next guest",
            ),
            (
                FOLLOW,
                "guests stay where another program, such as Nova, pins them; the agent only controls caches,"
                " memory bandwidth, weights and watermarks. The agent then refuses [policy] rebalance = true"
                " and [guests] unplaced = refuse, and [guests] unallocated has no effect",
            ),
        ],
        help=f"Choice of dedicated CPUs. Default: {FOLLOW} if nova-compute owns the root provider, because"
        f" Nova then pins guests; else {DEFAULT_POLICY}.",
    ),
    cfg.BoolOpt(
        "rebalance",
        default=False,
        help="Whether the agent moves running guests to better dedicated CPUs that have become free. The"
        " agent moves at most one guest in each interval of [guests] reconcile_interval. The gain of the move"
        " must be at least rebalance_gain.",
    ),
    cfg.FloatOpt(
        "rebalance_gain",
        default=2.0,
        min=0.5,
        help="Minimum gain of a move, in points. A guest gains 1 point for each L3 domain that it no longer"
        " uses. It gains 3 more points for each NUMA node, and 6 more points for each package. The guest"
        " gains 1 point for each core that it no longer shares with another guest, and 4 points for each CPU"
        " that is no longer in cpu_dedicated_set. A move of memory to other NUMA nodes costs 2 points.",
    ),
    cfg.BoolOpt(
        "load_aware",
        default=False,
        help="Whether the agent considers the load of dedicated CPUs when it chooses CPUs for a guest. The"
        " agent learns the mean CPU use of each guest for each hour of the week. For a guest with less than a"
        " day of measurements, the agent uses the mean CPU use over load_minutes. If other criteria are"
        " equal, a guest shares cores with guests that are busy at other hours. The option also changes the"
        " gain of moves (see rebalance_gain). A move after which two guests no longer share a core gains 0 to"
        " 4 points instead of 1. The number is 4 times the share of time in which both guests are busy, in"
        " the 24 hours of the week in which they are busiest together. If the agent has learned these hours"
        " for all guests of the cores, a sixteenth of rebalance_gain is enough for a move. If no such move"
        " exists, the agent separates guests that are busy together now.",
    ),
    cfg.FloatOpt(
        "load_minutes",
        default=5.0,
        min=1.0,
        help="Minutes over which the agent averages the CPU use of a guest. The agent ignores the use of"
        " guests that have run for a shorter time.",
    ),
]

SECTIONS: Final = {"policy": POLICY_OPTS}
