"""Section ``[capacity]``: whether unused shared CPUs and unused memory are offered to other guests."""

from typing import Final

from oslo_config import cfg

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
        help="Whether the agent offers the unused part of the shared CPUs as CUSTOM_RECLAIMED_VCPU, on a"
        " child provider of each NUMA node's provider. Guests of class BE (best effort) can hold"
        " CUSTOM_RECLAIMED_VCPU. These guests use CPU time that other guests leave unused.",
    ),
    cfg.BoolOpt(
        "memory",
        default=False,
        help="Whether the option mode also applies to memory that guests leave unused. This memory is"
        " offered as CUSTOM_RECLAIMED_MEMORY_MB on the same providers. The agent cannot take memory back"
        " as quickly as CPU time. So limit the guests that hold CUSTOM_RECLAIMED_MEMORY_MB (memory_high of"
        " [qos_class:BE]), and set a watermark of memory_usage that evicts these guests.",
    ),
    cfg.BoolOpt(
        "cold_memory",
        default=False,
        help="Whether the agent looks for memory that guests do not use. Every 6 seconds, the agent tells the"
        " kernel to move up to 1/2000 of a guest's memory to swap (memory.reclaim of cgroup v2). If the guest"
        " waits for memory, the amount is smaller. After 10 minutes in which a guest has not waited for"
        " memory, all of its memory in swap counts as unused for the option memory. The host needs swap, of"
        " which at least a quarter is free. The agent moves only the memory of guests that have no dedicated"
        " CPUs and a class up to [qos] highest_class.",
    ),
    cfg.FloatOpt(
        "cold_pressure",
        default=0.1,
        min=0.01,
        max=10.0,
        help="Share of time, in percent. If a guest waits for memory during this share of time or more, the"
        " option cold_memory moves none of its memory. With a larger value the agent finds more unused"
        " memory, and slows guests down more.",
    ),
    cfg.StrOpt(
        "steal",
        default="off",
        choices=[
            ("off", "the agent does not measure stolen time"),
            ("preview", "the agent measures and reports stolen time, and reserves nothing"),
            ("act", "the agent reserves as many VCPU as the hypervisor takes away"),
        ],
        help="Whether the agent offers fewer VCPU if the host is a virtual machine, and its hypervisor takes"
        " CPU time away from it (stolen time). The option has no effect on a host with nova-compute, which"
        " owns the inventory of VCPU.",
    ),
    cfg.ListOpt(
        "collectors",
        default=[],
        help="Names of collectors. A collector is a function of an installed package (entry point"
        " compute_agent.capacity) that reports amounts of resource classes. If a report is missing or too"
        " old, the agent reserves the whole amount of the resource class. Collectors run inside the agent.",
    ),
    cfg.FloatOpt(
        "sigma",
        default=4.0,
        min=0.0,
        max=20.0,
        help="Safety margin, as a number of standard deviations. The agent expects that the host and all"
        " guests without CUSTOM_RECLAIMED_VCPU use at most their mean CPU time plus this number of"
        " standard deviations. The agent computes mean and standard deviation of the last two hours, and"
        " also of the hourly peaks of the last day.",
    ),
    cfg.FloatOpt(
        "percentile",
        default=85.0,
        min=1.0,
        max=100.0,
        help="Percentile of the hourly peaks of a guest in the last day. The agent takes this percentile as"
        " the peak use of the guest when it adds the peak uses of all guests (see margin).",
    ),
    cfg.FloatOpt(
        "margin",
        default=5.0,
        min=0.0,
        max=1000.0,
        help="Margin, in percent, that the agent adds to the sum of the peak uses of all guests. The option"
        " percentile defines the peak use of a guest. The agent makes several estimates of the future use,"
        " of which this sum is one, and expects the largest.",
    ),
    cfg.FloatOpt(
        "burst",
        default=1.0,
        min=0.0,
        max=100.0,
        help="For this share of hours, in percent, the estimate assumes that the largest guest uses all its"
        " CPUs. With this assumption, the estimate of future use contains rare peaks that one day of"
        " measurements does not show. A larger value, up to 50, lowers the offer.",
    ),
]

SECTIONS: Final = {"capacity": OPTS}
