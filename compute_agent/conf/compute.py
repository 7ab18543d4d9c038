"""Options of inventories: CPU sets, allocation ratios, reserved amounts, and the shape of the provider tree.

Options that also exist in Nova have the names and defaults of Nova. So an operator can copy these options
from nova.conf.
"""

from typing import Final

from oslo_config import cfg

_RATIO: Final = (
    "If this option is set, the agent writes its value again after another client has changed the ratio in"
    " Placement. If the option is not set, or 0, the agent keeps the ratio in Placement."
)
_RESERVED: Final = (
    "If this option is set, the agent writes its value again after another client has changed the reserved"
    " amount in Placement. If the option is not set, the agent keeps the changed amount."
)

DEFAULT_OPTS: Final = [
    cfg.FloatOpt(
        "cpu_allocation_ratio",
        help="Number of VCPU offered for each CPU of cpu_shared_set. The ratio of PCPU is always 1.0."
        f" {_RATIO}",
    ),
    cfg.FloatOpt(
        "ram_allocation_ratio",
        help=f"Allocation ratio of MEMORY_MB; above 1.0 the host offers more memory than it has. {_RATIO}",
    ),
    cfg.FloatOpt(
        "disk_allocation_ratio",
        help=f"Allocation ratio of DISK_GB; above 1.0 the host offers more disk space than it has. {_RATIO}",
    ),
    cfg.FloatOpt(
        "initial_cpu_allocation_ratio",
        default=4.0,
        help="Allocation ratio of a new inventory of VCPU, if cpu_allocation_ratio is not set.",
    ),
    cfg.FloatOpt(
        "initial_ram_allocation_ratio",
        default=1.0,
        help="Allocation ratio of a new inventory of MEMORY_MB, if ram_allocation_ratio is not set.",
    ),
    cfg.FloatOpt(
        "initial_disk_allocation_ratio",
        default=1.0,
        help="Allocation ratio of a new inventory of DISK_GB, if disk_allocation_ratio is not set.",
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
        help=f"Disk space kept for the host, in MiB. The agent rounds the value up to GiB. {_RESERVED}",
    ),
    cfg.IntOpt(
        "reserved_host_cpus",
        default=0,
        min=0,
        deprecated_for_removal=True,
        deprecated_reason="CPUs in neither cpu_dedicated_set nor cpu_shared_set belong to the host.",
        help="Number of VCPU kept for the host. The option cannot be combined with [compute]"
        " cpu_dedicated_set or cpu_shared_set.",
    ),
    cfg.StrOpt(
        "vcpu_pin_set",
        deprecated_for_removal=True,
        deprecated_reason="cpu_dedicated_set and cpu_shared_set separate pinned from floating guests.",
        help="CPUs that the agent offers as VCPU and also as PCPU. If cpu_shared_set is also set, the agent"
        " offers the CPUs of vcpu_pin_set only as VCPU, and emulator threads run on the CPUs of"
        " cpu_shared_set. The option cannot be combined with cpu_dedicated_set.",
    ),
]

COMPUTE_OPTS: Final = [
    cfg.StrOpt(
        "cpu_dedicated_set",
        help="CPUs that the agent offers as PCPU, such as 4-12,^8,15. Each of these CPUs runs one guest CPU."
        " If neither this option nor cpu_shared_set nor [DEFAULT] vcpu_pin_set is set, the agent offers all"
        " online CPUs as VCPU.",
    ),
    cfg.StrOpt(
        "cpu_shared_set",
        help="CPUs that the agent offers as VCPU, such as 0-3,16. Emulator threads of guests also run on"
        " these CPUs. CPUs that are neither in this set nor in cpu_dedicated_set belong to the host.",
    ),
    cfg.StrOpt(
        "provider_tree",
        choices=[
            ("flat", "PCPU, VCPU, MEMORY_MB and DISK_GB on the root"),
            ("numa", "PCPU, VCPU and MEMORY_MB on a child for each NUMA node, DISK_GB on the root"),
            ("l3", "as numa, with PCPU and VCPU on the L3 domains inside the NUMA nodes"),
            (
                "beside",
                "nova-compute owns the root; the agent's providers below it offer the resources that"
                " nova-compute does not offer",
            ),
        ],
        help="Shape of the provider tree: whether the inventories are on the root provider, or on providers"
        " of NUMA nodes or L3 domains below it. With beside, the root belongs to nova-compute, and all"
        " providers of the agent are below it. LLC and MBA are always on the provider of their L3 domain."
        " Default: beside if nova-compute owns the provider of this host, else numa. If nova-compute will"
        " run on the host later, set the option to beside before the agent starts for the first time.",
    ),
    cfg.StrOpt(
        "resource_provider_name",
        help="Name of the root provider. Default: the name that the provider already has. At the first start"
        " the default is the host's fully qualified domain name. If the value changes, the agent renames the"
        " provider. On a host with nova-compute, the value must be the host's name in `openstack hypervisor"
        " list`, and the default is the name that libvirt reports (`virsh hostname`).",
    ),
    cfg.StrOpt(
        "provider_config_location",
        help="Folder with files *.yaml in the format of Nova's provider.yaml (schema 1.0). The agent adds"
        " the inventories and traits of these files to the providers of this host. Default: none. Use"
        " /etc/nova/provider_config only on hosts without nova-compute. If a file is invalid for Nova, the"
        " agent does not start. A running agent ignores a file that becomes invalid.",
    ),
    cfg.IntOpt(
        "memory_overhead",
        default=64,
        min=0,
        help="Memory in MiB that a process guest can use in addition to its MEMORY_MB before the kernel kills"
        " the guest (memory.max of its cgroup). Memory that the kernel itself uses for the guest counts"
        " towards memory.max.",
    ),
    cfg.BoolOpt(
        "huge_pages",
        default=False,
        help="Whether huge pages of the host are offered to guests, as CUSTOM_HUGE_PAGES_2MB and similar"
        " classes on the provider of their NUMA node. The inventory of MEMORY_MB then does not contain this"
        " memory. While the allocations of guests exceed this smaller inventory of MEMORY_MB, the agent does"
        " not offer huge pages yet.",
    ),
    cfg.MultiStrOpt(
        "reserved_huge_pages",
        default=[],
        help="Huge pages kept for the host, such as node:0,size:2048,count:64. Repeat the option for each"
        " NUMA node and size. A size is in KiB, or 2MB or 1GB. The option has an effect only with [compute]"
        " huge_pages = true.",
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
        help="Seconds between two heartbeats. A heartbeat is a time that the agent writes to Placement, in"
        " attributes of its first provider. The console marks hosts without recent heartbeats. 0 disables"
        " heartbeats, and the console then cannot show whether an agent runs. Heartbeats do not change"
        " which hosts Placement chooses.",
    ),
    cfg.IntOpt(
        "neighbours_interval",
        default=600,
        min=0,
        help="Seconds between two reports of memory bandwidth and cache use to Placement, as attributes of"
        " the agent's first provider. The attributes have the use of each L3 cache, the guests with the"
        " largest use, and the guests that the agent limits. The page Neighbours of the console shows"
        " these attributes. Each report is one write to Placement. A host without counters of caches and"
        " without limited guests reports nothing. 0 disables the reports. The attributes do not change"
        " which hosts Placement chooses.",
    ),
    cfg.BoolOpt(
        "report_positions",
        default=False,
        help="Whether the agent reports the CPUs and cache ways of guests, and the thresholds of watermarks,"
        " to Placement. The reports are attributes of the agent's first provider (mostly the root provider)."
        " The console draws them."
        " Each start or end of a guest then causes one more write to Placement. The attributes do not change"
        " which hosts Placement chooses.",
    ),
]

SECTIONS: Final = {"DEFAULT": DEFAULT_OPTS, "compute": COMPUTE_OPTS}
