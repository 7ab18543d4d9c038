"""Pools of CPUs that only some guests use: a section ``[cpu_pool:NAME]`` for each."""

from typing import Any, Final

from oslo_config import cfg

from compute_agent.model.cpuset import CPU_POOL

OPTS: Final = [
    cfg.StrOpt(
        "cpus",
        help="CPUs of the pool, such as 4-7,12; each is in cpu_dedicated_set or in cpu_shared_set, and in no"
        " other pool. The pool offers those of cpu_dedicated_set as PCPU, and those of cpu_shared_set as"
        " VCPU; the zone around it offers them no longer.",
    ),
    cfg.IntOpt(
        "dedicated_cpus",
        default=0,
        min=0,
        help="Number of CPUs of cpu_dedicated_set in the pool, in place of cpus. They are whole cores of"
        " one NUMA node, from its end; the agent takes the first node with enough.",
    ),
    cfg.IntOpt(
        "shared_cpus", default=0, min=0, help="Number of CPUs of cpu_shared_set in the pool, chosen likewise."
    ),
    cfg.BoolOpt(
        "per_node",
        default=False,
        help="Whether the pool gets dedicated_cpus and shared_cpus from each NUMA node with CPUs, not from"
        " one.",
    ),
    cfg.IntOpt(
        "max_cpus",
        min=1,
        help="Maximum number of CPUs on which floating guests of the pool run: shared CPUs of the pool, and"
        " dedicated CPUs of its zones while no guest holds them. By default the shared CPUs of the pool.",
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
