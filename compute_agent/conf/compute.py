"""Options of inventories: CPU sets, ratios, reserves, and the shape of the provider tree.

They have the names and the defaults of Nova's, so that a nova.conf can be copied.
"""

from typing import Any, Final

from oslo_config import cfg

_RATIO: Final = (
    "If it is set, the agent restores it after a change through the API. If it is not set, or 0, the ratio in"
    " Placement stays."
)
_RESERVED: Final = (
    "If it is set, the agent restores it after a change through the API. If it is not set, such a change"
    " stays."
)

DEFAULT_OPTS: Final = [
    cfg.FloatOpt(
        "cpu_allocation_ratio",
        help="VCPU offered for each CPU of cpu_shared_set. Never applied to PCPU, which has the ratio 1.0."
        f" {_RATIO}",
    ),
    cfg.FloatOpt("ram_allocation_ratio", help=f"Overcommit of MEMORY_MB. {_RATIO}"),
    cfg.FloatOpt("disk_allocation_ratio", help=f"Overcommit of DISK_GB. {_RATIO}"),
    cfg.FloatOpt(
        "initial_cpu_allocation_ratio",
        default=4.0,
        help="Ratio of a new inventory of VCPU, if cpu_allocation_ratio is not set.",
    ),
    cfg.FloatOpt(
        "initial_ram_allocation_ratio",
        default=1.0,
        help="Ratio of a new inventory of MEMORY_MB, if ram_allocation_ratio is not set.",
    ),
    cfg.FloatOpt(
        "initial_disk_allocation_ratio",
        default=1.0,
        help="Ratio of a new inventory of DISK_GB, if disk_allocation_ratio is not set.",
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
        deprecated_reason="cpu_dedicated_set and cpu_shared_set separate pinned from floating guests.",
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
        help="Providers that have the inventories. LLC and MBA are always on the provider of their L3 domain."
        " Default: beside if nova-compute owns the provider of this host, else numa. On a host that is to get"
        " a nova-compute later, set it to beside before the agent starts.",
    ),
    cfg.StrOpt(
        "resource_provider_name",
        help="Name of the root provider. Default: its last name, and at first the host's fully qualified"
        " domain name. Another value renames the provider. Beside nova-compute it is the name of the"
        " hypervisor in Nova, by default the one of libvirt.",
    ),
    cfg.StrOpt(
        "provider_config_location",
        help="Folder with files *.yaml in the format of Nova's provider.yaml (schema 1.0). Their inventories"
        " and traits are added to the providers of this host. Default: none;"
        " /etc/nova/provider_config is possible where Nova itself does not run. A file that Nova would refuse"
        " prevents the start of the agent. While the agent runs, such a file changes nothing.",
    ),
    cfg.IntOpt(
        "memory_overhead",
        default=64,
        min=0,
        help="MiB that a process guest may use above its MEMORY_MB before the kernel kills it (memory.max of"
        " its cgroup). The kernel's own memory for the guest counts there, too.",
    ),
    cfg.BoolOpt(
        "huge_pages",
        default=False,
        help="Whether huge pages of the host are offered to guests, as CUSTOM_HUGE_PAGES_2MB and similar"
        " classes on the provider of their NUMA node. MEMORY_MB then shrinks to the other memory, as soon as"
        " guests hold no more than that.",
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
        help="Seconds between two comparisons of the host with Placement.",
    ),
    cfg.IntOpt(
        "heartbeat_interval",
        default=0,
        min=0,
        help="Seconds between two signs of life of the agent in Placement, as attributes of its first"
        " provider. The console shows hosts without recent ones. Each is a write with the next report. 0"
        " writes none: then Placement cannot show whether an agent runs. No decision depends on it.",
    ),
    cfg.BoolOpt(
        "report_positions",
        default=False,
        help="Whether the CPUs and cache ways of guests and the lines of watermarks are reported to"
        " Placement,"
        " as attributes of the agent's first provider. The console draws them. Each start or end of a guest"
        " is then another write with the next report. No decision depends on it.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the options of inventories in [DEFAULT] and [compute] known to ``conf``."""
    conf.register_opts(DEFAULT_OPTS)
    conf.register_opts(COMPUTE_OPTS, group="compute")


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [("DEFAULT", DEFAULT_OPTS), ("compute", COMPUTE_OPTS)]
