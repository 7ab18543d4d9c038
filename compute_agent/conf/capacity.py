"""Section ``[capacity]``: whether unused shared CPUs and unused memory are offered to other guests."""

from typing import Any, Final

from oslo_config import cfg

GROUP = "capacity"

OPTS: Final = [
    cfg.StrOpt(
        "mode",
        default="off",
        choices=[
            ("off", "the agent neither measures unused CPUs nor makes providers for them"),
            (
                "preview",
                "the agent measures and reports the unused part, and reserves the whole inventory,"
                " so that no guest can get it",
            ),
            ("act", "the agent offers the unused part by changing the reserved amount of the inventory"),
        ],
        help="Whether the unused part of the shared CPUs is offered as CUSTOM_RECLAIMED_VCPU, on a child of"
        " each NUMA node's provider. Guests of class BE that hold CUSTOM_RECLAIMED_VCPU run on CPU time"
        " that other guests do not use.",
    ),
    cfg.BoolOpt(
        "memory",
        default=False,
        help="Whether the option mode also applies to memory that guests leave unused. This memory is"
        " offered as CUSTOM_RECLAIMED_MEMORY_MB on the same providers. Memory cannot be shared like CPU"
        " time: so give guests that hold it a limit (memory_high of [qos_class:BE]), and set a"
        " watermark of memory_usage that evicts them.",
    ),
    cfg.BoolOpt(
        "cold_memory",
        default=False,
        help="Whether the agent looks for memory that guests do not use. It has the kernel reclaim 1/2000 of"
        " the memory of a guest in 6 seconds (memory.reclaim of cgroup v2), unless the guest waits for"
        " memory. Memory in swap that a guest has not missed for 10 minutes then counts as unused for"
        " the option memory. The host needs swap. Guests above [qos] highest_class and guests with"
        " dedicated CPUs are left alone.",
    ),
    cfg.FloatOpt(
        "cold_pressure",
        default=0.1,
        min=0.01,
        max=10.0,
        help="Percent of the time in which a guest waits for memory and from which on cold_memory takes no"
        " memory from it. A larger value finds more cold memory and slows guests down more.",
    ),
    cfg.StrOpt(
        "steal",
        default="off",
        choices=[
            ("off", "the agent does not measure stolen time"),
            ("preview", "the agent measures and reports stolen time, and reserves nothing"),
            ("act", "the agent reserves as many VCPU as the hypervisor takes away"),
        ],
        help="Whether the agent offers fewer VCPU if the host is a virtual machine and its hypervisor takes"
        " CPU time away. The option has no effect beside nova-compute, which owns the inventory of VCPU.",
    ),
    cfg.ListOpt(
        "collectors",
        default=[],
        help="Collectors of installed packages (entry points compute_agent.capacity) that report amounts of"
        " resource classes. If a report is missing or too old, the agent reserves the whole amount of the"
        " class. Collectors run inside the agent.",
    ),
    cfg.FloatOpt(
        "sigma",
        default=4.0,
        min=0.0,
        max=20.0,
        help="Number of standard deviations. The agent expects that all other guests together use less"
        " CPU time than their mean plus this number of deviations. The agent computes mean and"
        " deviation from the last two hours, and from the hourly peaks of the last day.",
    ),
    cfg.FloatOpt(
        "percentile",
        default=85.0,
        min=1.0,
        max=100.0,
        help="Percentile of a guest's hourly peaks in the last day. The agent takes this value as the CPU"
        " use of the guest.",
    ),
    cfg.FloatOpt(
        "margin",
        default=5.0,
        min=0.0,
        max=1000.0,
        help="Percent that the agent adds to the sum of the guests' peaks (see percentile).",
    ),
    cfg.FloatOpt(
        "burst",
        default=1.0,
        min=0.0,
        max=100.0,
        help="Reserve for rare peaks that one day of measurements does not show: the agent assumes that the"
        " largest guest uses all its CPUs in this percentage of hours. A larger value, up to 50, lowers the"
        " offer.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of section ``[capacity]`` with ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file and for checks of names."""
    return [(GROUP, OPTS)]
