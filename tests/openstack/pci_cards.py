"""The PCI cards of two hosts, and the options of Nova about them.

Each host has three equal cards, an accelerator with a trait, and a card with two virtual functions.
"""

import json
from typing import Any, Final

CARD: Final = "CUSTOM_PCI_8086_1528"
"""Resource class of the equal cards."""
FUNCTION: Final = "CUSTOM_PCI_8086_1515"
"""Resource class of the virtual functions."""
ACCELERATOR: Final = "CUSTOM_ACCELERATOR"
CARDS: Final = 3
"""Number of equal cards of a host."""

_VENDOR: Final = "8086"
_CARD: Final = "1528"
_FUNCTION: Final = "1515"
_SPECIAL: Final = "0000:84:00.0"
_PARENT: Final = "0000:85:00.0"


def _device(address: str, product: str = _CARD, kind: str = "type-PCI", parent: str | None = None) -> dict:
    return {
        "address": address,
        "parent_addr": parent,
        "dev_type": kind,
        "vendor_id": _VENDOR,
        "product_id": product,
        "label": f"label_{_VENDOR}_{product}",
        "dev_id": f"pci_{address.translate(str.maketrans(':.', '__'))}",
        "numa_node": 0,
    }


DEVICES: Final[list[dict[str, Any]]] = [
    *(_device(f"0000:{0x81 + number:02x}:00.0") for number in range(CARDS)),
    _device(_SPECIAL),
    *(_device(f"0000:85:10.{each}", _FUNCTION, "type-VF", _PARENT) for each in (0, 2)),
]
"""What a driver reports about the devices of its host."""

_SPECS: Final = [
    # the first one that matches a device applies
    {"address": _SPECIAL, "resource_class": "accelerator", "traits": "near_memory", "live_migratable": "yes"},
    {"vendor_id": _VENDOR, "product_id": _CARD},
    {"vendor_id": _VENDOR, "product_id": _FUNCTION},
]
_ALIASES: Final = [
    {"name": "card", "device_type": "type-PCI", "vendor_id": _VENDOR, "product_id": _CARD},
    {"name": "function", "device_type": "type-VF", "vendor_id": _VENDOR, "product_id": _FUNCTION},
    {
        "name": "accelerator",
        "resource_class": "accelerator",
        "traits": "near_memory",
        "live_migratable": "yes",
    },
]
_OPTIONS: Final = """\
[DEFAULT]
update_resources_interval = -1
[filter_scheduler]
enabled_filters = ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,PciPassthroughFilter
pci_in_placement = true
[pci]
report_in_placement = true
"""
NOVA: Final = _OPTIONS + "".join(
    f"{option} = {json.dumps(each)}\n"
    for option, values in (("device_spec", _SPECS), ("alias", _ALIASES))
    for each in values
)
"""Lines of the configuration of all services of Nova."""
