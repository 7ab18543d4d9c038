"""CPUs that are kept for some guests: a section ``[cpu_pool:NAME]`` for each pool."""

from typing import Final

from oslo_config import cfg

from compute_agent.model.cpuset import CPU_POOL

OPTS: Final = [
    cfg.StrOpt(
        "cpus",
        help="CPUs of the pool, such as 4-7,12. Each CPU must be in cpu_dedicated_set or in cpu_shared_set,"
        " and must not be in another pool. The pool offers CPUs of cpu_dedicated_set as PCPU, and CPUs of"
        " cpu_shared_set as VCPU. The parent of the pool's provider then no longer offers these CPUs.",
    ),
    cfg.IntOpt(
        "dedicated_cpus",
        default=0,
        min=0,
        help="Number of CPUs of cpu_dedicated_set in the pool, as an alternative to the option cpus. The"
        " agent chooses CPUs in the first NUMA node that has enough CPUs for dedicated_cpus and for"
        " shared_cpus. CPUs of other pools do not count. The agent takes whole cores where possible. Within"
        " the node, it starts with the highest CPU numbers.",
    ),
    cfg.IntOpt(
        "shared_cpus",
        default=0,
        min=0,
        help="Number of CPUs of cpu_shared_set in the pool. The agent chooses these CPUs in the same way as"
        " for the option dedicated_cpus.",
    ),
    cfg.BoolOpt(
        "per_node",
        default=False,
        help="Whether the pool gets dedicated_cpus and shared_cpus from each NUMA node, instead of from one"
        " node.",
    ),
    cfg.IntOpt(
        "max_cpus",
        min=1,
        help="Maximum number of CPUs on which the guests of the pool run that have no dedicated CPUs"
        " (floating guests). If max_cpus is above the number of shared CPUs in the pool, floating guests also"
        " run on dedicated CPUs that no guest holds. These CPUs are in the zones of the pool (NUMA nodes or"
        " caches). Default: the number of shared CPUs of the pool.",
    ),
    cfg.ListOpt(
        "guest_classes",
        default=[],
        help="QoS classes of the guests that the pool accepts, such as LSR, LS. Default: guests of all"
        " classes.",
    ),
    cfg.IntOpt(
        "max_guests", min=1, help="Maximum number of guests in the pool at the same time. Default: no limit."
    ),
]

SECTIONS: Final = {f"{CPU_POOL}NAME": OPTS}
