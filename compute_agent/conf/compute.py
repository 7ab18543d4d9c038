"""What the host offers to guests: CPU sets, ratios, reserves, and the shape of the provider tree.

Options are named as in Nova.
"""

from typing import Any, Final

from oslo_config import cfg

_RATIO: Final = (
    "Set here it is put back whenever somebody sets another one through the API; not set, or 0, the ratio"
    " that Placement has stays."
)
_RESERVED: Final = (
    "Set here it is put back whenever somebody sets another amount through the API; not set, theirs stays."
)

DEFAULT_OPTS: Final = [
    cfg.FloatOpt(
        "cpu_allocation_ratio",
        help="How many VCPU a CPU of cpu_shared_set is sold as. Never applied to PCPU, whose ratio is 1.0."
        f" {_RATIO}",
    ),
    cfg.FloatOpt("ram_allocation_ratio", help=f"Overcommit of MEMORY_MB. {_RATIO}"),
    cfg.FloatOpt("disk_allocation_ratio", help=f"Overcommit of DISK_GB. {_RATIO}"),
    cfg.FloatOpt(
        "initial_cpu_allocation_ratio",
        default=4.0,
        help="What a new inventory of VCPU begins with where cpu_allocation_ratio is not set.",
    ),
    cfg.FloatOpt(
        "initial_ram_allocation_ratio",
        default=1.0,
        help="What a new inventory of MEMORY_MB begins with where ram_allocation_ratio is not set.",
    ),
    cfg.FloatOpt(
        "initial_disk_allocation_ratio",
        default=1.0,
        help="What a new inventory of DISK_GB begins with where disk_allocation_ratio is not set.",
    ),
    cfg.IntOpt(
        "reserved_host_memory_mb",
        default=512,
        min=0,
        help=f"Memory kept for the host, in MiB. {_RESERVED}",
    ),
    cfg.IntOpt(
        "reserved_host_disk_mb",
        default=0,
        min=0,
        help=f"Disk space kept for the host, in MiB; rounded up to GiB. {_RESERVED}",
    ),
    cfg.IntOpt(
        "reserved_host_cpus",
        default=0,
        min=0,
        deprecated_for_removal=True,
        deprecated_reason="CPUs in neither cpu_dedicated_set nor cpu_shared_set belong to the host.",
        help="VCPU kept for the host. Cannot be combined with [compute] cpu_dedicated_set or cpu_shared_set.",
    ),
    cfg.StrOpt(
        "vcpu_pin_set",
        deprecated_for_removal=True,
        deprecated_reason="cpu_dedicated_set and cpu_shared_set tell pinned and floating guests apart.",
        help="CPUs that back both VCPU and PCPU; only VCPU where cpu_shared_set is set as well, which then"
        " serves emulator threads. Cannot be combined with cpu_dedicated_set.",
    ),
]

COMPUTE_OPTS: Final = [
    cfg.StrOpt(
        "cpu_dedicated_set",
        help="CPUs that back PCPU, one guest CPU each, such as 4-12,^8,15. Where neither this nor"
        " cpu_shared_set is set, all online CPUs back VCPU.",
    ),
    cfg.StrOpt(
        "cpu_shared_set",
        help="CPUs that back VCPU and serve emulator threads, such as 0-3,16. CPUs in neither set belong to"
        " the host.",
    ),
    cfg.StrOpt(
        "provider_tree",
        choices=[
            ("flat", "PCPU, VCPU, MEMORY_MB and DISK_GB on the root"),
            ("numa", "PCPU, VCPU and MEMORY_MB on a child for each NUMA node, DISK_GB on the root"),
            ("l3", "as numa, with PCPU and VCPU on the L3 domains inside the NUMA nodes"),
            ("beside", "the root is nova-compute's; below it what nova-compute does not offer"),
        ],
        help="Where inventories sit. LLC and MBA are always on the provider of their L3 domain. Unless set:"
        " beside where nova-compute is found to own the provider of this host, else numa. Set it to beside"
        " before the agent starts on a host that is to get a nova-compute.",
    ),
    cfg.StrOpt(
        "resource_provider_name",
        help="Name of the root provider; by default the one that it had last, and at first the host's fully"
        " qualified domain name. Another value renames it. Beside nova-compute it is the name that the"
        " hypervisor has in Nova, and by default as libvirt has it.",
    ),
    cfg.StrOpt(
        "provider_config_location",
        help="Folder with files *.yaml in the format of Nova's provider.yaml (schema 1.0), whose inventories"
        " and traits are added to the providers of this host; /etc/nova/provider_config where Nova itself"
        " does not run. Files that Nova would refuse stop the start, or leave all as it was while the agent"
        " runs.",
    ),
    cfg.IntOpt(
        "memory_overhead",
        default=64,
        min=0,
        help="MiB that a process guest may use beyond what it holds of MEMORY_MB before the kernel kills it"
        " (memory.max of its cgroup): what the kernel itself needs for it counts as its own there.",
    ),
    cfg.BoolOpt(
        "huge_pages",
        default=False,
        help="Whether huge pages of the host are offered to guests, as CUSTOM_HUGE_PAGES_2MB and its like on"
        " the provider of their NUMA node. MEMORY_MB is then what is beside them, as soon as guests hold no"
        " more than that.",
    ),
    cfg.MultiStrOpt(
        "reserved_huge_pages",
        default=[],
        help="Huge pages kept for the host, such as node:0,size:2048,count:64 for each NUMA node and size;"
        " sizes in KiB, or as 2MB or 1GB. With [compute] huge_pages = true.",
    ),
    cfg.IntOpt(
        "update_resources_interval",
        default=60,
        min=1,
        help="Seconds between two comparisons of what the host has with what Placement knows.",
    ),
    cfg.IntOpt(
        "heartbeat_interval",
        default=0,
        min=0,
        help="Seconds after which Placement is told again that the agent lives, in attributes of its first"
        " provider, for the console to show hosts whose agent is silent. Each is a write, with the next"
        " report: 600 is one each ten minutes. 0 tells nothing: then a host looks the same to Placement"
        " whether its agent lives or not. Nothing is decided by it.",
    ),
    cfg.BoolOpt(
        "report_positions",
        default=False,
        help="Whether Placement is told which CPUs and ways of caches guests have, and at what watermarks"
        " act, in attributes of the agent's first provider, for the console to draw. Each guest that comes"
        " or goes is then a write more, with the next report. Nothing is decided by it.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the options of [DEFAULT] and [compute] that inventories come from known to ``conf``."""
    conf.register_opts(DEFAULT_OPTS)
    conf.register_opts(COMPUTE_OPTS, group="compute")


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [("DEFAULT", DEFAULT_OPTS), ("compute", COMPUTE_OPTS)]
