"""Section ``[pci]``: the PCI devices that guests can have."""

from typing import Final

from oslo_config import cfg

OPTS: Final = [
    cfg.MultiStrOpt(
        "device_spec",
        default=[],
        help="PCI devices that the host offers, in the format of Nova's option: a JSON object, or a list of"
        " objects. The keys vendor_id, product_id and address select devices. The keys resource_class and"
        " traits describe the providers of these devices. The first object that matches a device applies to"
        " it. Each device has a provider below the provider of its NUMA node. So one query can ask for a"
        " device together with CPUs and memory of the same node. The agent does not offer devices that"
        " nova-compute reports.",
    ),
    cfg.MultiStrOpt(
        "device_set",
        default=[],
        help="Devices that a guest gets only together, such as a partition of an NVSwitch: a JSON object with"
        " a name and addresses. The agent puts the providers of exactly these devices below a provider with"
        " the trait CUSTOM_<name>. A set can contain another set. Sets that overlap in another way have no"
        " effect, and the agent logs a warning about them.",
    ),
    cfg.MultiStrOpt(
        "nova_config",
        default=["/etc/nova/nova.conf"],
        help="Configuration files of nova-compute. The agent reads device_spec and report_in_placement of"
        " their section pci when it starts, when it reloads and when the files change. The agent does not"
        " offer devices that nova-compute gives to guests without Placement, because two guests could get"
        " the same device. If the agent cannot read a file or one of its entries, it offers no devices."
        " The agent ignores a missing file. If the option is empty, the agent reads no file.",
    ),
    cfg.StrOpt(
        "nodes",
        default="none",
        choices=[
            ("none", "the agent does not change the providers that nova-compute reports"),
            ("attributes", "the provider of each device gets the attributes numa_node and pci_path"),
        ],
        help="Whether the agent adds the NUMA node and the PCI path to providers of PCI devices that"
        " nova-compute reports. Nova does not remove these attributes. The option needs the service of"
        " this project, because OpenStack Placement has no attributes of providers.",
    ),
]

SECTIONS: Final = {"pci": OPTS}
