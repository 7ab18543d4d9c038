"""Pools of CPUs that only some guests use: a section ``[cpu_pool:NAME]`` for each."""

from typing import Any, Final

from oslo_config import cfg

from compute_agent.model.cpuset import CPU_POOL

OPTS: Final = [
    cfg.StrOpt(
        "cpus",
        help="CPUs of the pool, such as 4-7,12. Each one is in cpu_dedicated_set or in cpu_shared_set, and in"
        " no other pool. They are offered as PCPU or VCPU of the pool, and not of the zone around it any"
        " more.",
    ),
    cfg.IntOpt(
        "dedicated_cpus",
        default=0,
        min=0,
        help="In place of cpus: number of CPUs of cpu_dedicated_set. They come from the first NUMA node with"
        " enough of them, as whole cores from the end of the node.",
    ),
    cfg.IntOpt("shared_cpus", default=0, min=0, help="In place of cpus: number of CPUs of cpu_shared_set."),
    cfg.BoolOpt(
        "per_node", default=False, help="Whether each NUMA node with CPUs gives these numbers of CPUs."
    ),
    cfg.IntOpt(
        "max_cpus",
        min=1,
        help="CPUs that all floating guests of the pool together may use: shared ones of the pool, and"
        " dedicated ones of its zones while no guest holds them. Default: the CPUs of the pool.",
    ),
    cfg.ListOpt(
        "guest_classes",
        default=[],
        help="Classes of guests that the pool takes, such as LSR, LS. Default: all.",
    ),
    cfg.IntOpt("max_guests", min=1, help="Guests that the pool takes at the same time. Default: any number."),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register nothing: register_sections() of ``qos`` does, after the files have been read."""


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [(f"{CPU_POOL}NAME", OPTS)]
