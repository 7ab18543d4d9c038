"""Section ``[capacity]``: unused shared CPUs and memory, and whether they are promised to other guests."""

from typing import Any, Final

from oslo_config import cfg

GROUP = "capacity"

OPTS: Final = [
    cfg.StrOpt(
        "mode",
        default="off",
        choices=[
            ("off", "the agent measures nothing for it, and makes no providers"),
            ("preview", "the agent measures and reports it, and reserves the whole inventory"),
            ("act", "the agent offers the unused part: it adjusts reserved"),
        ],
        help="Whether the unused part of the shared CPUs is offered as CUSTOM_RECLAIMED_VCPU, on a"
        " provider below that of each NUMA node. Guests of class BE that hold it run on what others leave.",
    ),
    cfg.BoolOpt(
        "memory",
        default=False,
        help="Whether mode is also about the memory that guests leave unused, as CUSTOM_RECLAIMED_MEMORY_MB"
        " on the same providers. A guest cannot wait for memory that another one uses: give such guests a"
        " limit (memory_high of [qos_class:BE]), and have a watermark of memory_usage evict them.",
    ),
    cfg.StrOpt(
        "steal",
        default="off",
        choices=[
            ("off", "steal time is not measured for it"),
            ("preview", "the agent measures and reports it, and reserves nothing"),
            ("act", "the agent reserves as many VCPU as the hypervisor takes away"),
        ],
        help="Whether fewer VCPU are offered on a host that is a virtual machine itself, as its"
        " hypervisor may give the CPUs to others. No effect beside nova-compute, which has VCPU on its"
        " own provider.",
    ),
    cfg.ListOpt(
        "collectors",
        default=[],
        help="Collectors of installed packages (entry points compute_agent.capacity) that report amounts of"
        " resource classes. An amount without a report, or with too old a report, is reserved. They run"
        " inside the agent.",
    ),
    cfg.FloatOpt(
        "sigma",
        default=4.0,
        min=0.0,
        max=20.0,
        help="Standard deviations above the mean below which the use of all other guests together is"
        " expected."
        " It applies to the last two hours, and to the hourly peaks of the last day.",
    ),
    cfg.FloatOpt(
        "percentile",
        default=85.0,
        min=1.0,
        max=100.0,
        help="Percentile of the hourly peaks of the last day that counts as the use of a guest.",
    ),
    cfg.FloatOpt(
        "margin",
        default=5.0,
        min=0.0,
        max=1000.0,
        help="Percent to add to the sum of these peaks.",
    ),
    cfg.FloatOpt(
        "burst",
        default=1.0,
        min=0.0,
        max=100.0,
        help="Percent of hours in which the largest guest is assumed to use all CPUs that it may, whatever it"
        " used in the last day.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make section [capacity] known to ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [(GROUP, OPTS)]
