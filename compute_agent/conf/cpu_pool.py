"""Parts of the host's CPUs that some guests have to themselves: a section ``[cpu_pool:NAME]`` for each."""

from typing import Any, Final

from oslo_config import cfg

from compute_agent.model.cpuset import CPU_POOL

OPTS: Final = [
    cfg.StrOpt(
        "cpus",
        help="CPUs of the pool, such as 4-7,12; each is in cpu_dedicated_set or in cpu_shared_set and in no"
        " other pool. Those of cpu_dedicated_set are offered as PCPU, those of cpu_shared_set as VCPU of the"
        " pool, and no more as those of the zone around it.",
    ),
    cfg.IntOpt(
        "dedicated_cpus",
        default=0,
        min=0,
        help="In place of cpus: so many CPUs of cpu_dedicated_set of one NUMA node, the first that has them;"
        " whole cores, from the end of the node.",
    ),
    cfg.IntOpt("shared_cpus", default=0, min=0, help="Likewise, so many CPUs of cpu_shared_set."),
    cfg.BoolOpt(
        "per_node", default=False, help="Whether every NUMA node with CPUs gives the pool so many CPUs."
    ),
    cfg.IntOpt(
        "max_cpus",
        min=1,
        help="CPUs that guests of the pool which float may use altogether: shared ones of the pool, and"
        " dedicated ones of its zones that nobody holds, until somebody does. By default those of the pool.",
    ),
    cfg.ListOpt(
        "guest_classes",
        default=[],
        help="Classes of guests that the pool takes, such as LSR, LS; by default all.",
    ),
    cfg.IntOpt(
        "max_guests", min=1, help="Guests that the pool takes at the same time; by default any number."
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Nothing: the sections are known once the files have been read."""


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [(f"{CPU_POOL}NAME", OPTS)]
