"""What guests leave unused of the shared CPUs, and whether it is promised to others."""

from typing import Any, Final

from oslo_config import cfg

GROUP = "capacity"

OPTS: Final = [
    cfg.StrOpt(
        "mode",
        default="off",
        choices=[
            ("off", "nothing is measured for it, and there are no providers"),
            ("preview", "it is measured and told, and all that the providers have is reserved"),
            ("act", "what is left is promised: reserved moves"),
        ],
        help="Whether what guests leave unused of the shared CPUs is offered as CUSTOM_RECLAIMED_VCPU, on a"
        " provider below that of each NUMA node. Guests of class BE that hold it run on what others leave.",
    ),
    cfg.BoolOpt(
        "memory",
        default=False,
        help="Whether mode is also about the memory that guests leave unused, as CUSTOM_RECLAIMED_MEMORY_MB"
        " on the same providers. Who needs memory that another one has cannot wait: give those a limit"
        " (memory_high of [qos_class:BE]), and have a watermark of memory_usage evict them.",
    ),
    cfg.StrOpt(
        "steal",
        default="off",
        choices=[
            ("off", "steal time is not measured for it"),
            ("preview", "it is measured and told, and nothing is withheld"),
            ("act", "as many CPUs as a hypervisor takes are reserved of VCPU"),
        ],
        help="Whether fewer VCPU are sold on a host that is a virtual machine itself, as its hypervisor runs"
        " others in a part of the time. No effect beside nova-compute, which has VCPU on its own provider.",
    ),
    cfg.ListOpt(
        "collectors",
        default=[],
        help="Collectors of installed packages (entry points compute_agent.capacity) that tell how much there"
        " is of resource classes. What they do not tell, or told too long ago, is reserved. They run inside"
        " the agent.",
    ),
    cfg.FloatOpt(
        "sigma",
        default=4.0,
        min=0.0,
        max=20.0,
        help="Standard deviations above the mean that the use by all others together is expected to stay"
        " below; of the last two hours, and of the hourly peaks of the last day.",
    ),
    cfg.FloatOpt(
        "percentile",
        default=85.0,
        min=1.0,
        max=100.0,
        help="Percent of the hours of the last day of which each guest's peak counts.",
    ),
    cfg.FloatOpt(
        "margin",
        default=5.0,
        min=0.0,
        max=1000.0,
        help="Percent that are added to the sum of these peaks.",
    ),
    cfg.FloatOpt(
        "burst",
        default=1.0,
        min=0.0,
        max=100.0,
        help="Percent of hours in which the largest guest is taken to use all CPUs that it may, whatever it"
        " did in the last day.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make section [capacity] known to ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [(GROUP, OPTS)]
