"""A host's page lists its PCI devices with node, path and holders, whatever the attributes are."""

import pytest

from placement.read_model.provider import Inventory, Provider
from placement_extras.console import host


def provider(number, attributes, used=0):
    inventories = {"CUSTOM_GPU": Inventory(1, 0, 1, 1, 1, 1.0)}
    return Provider(
        *(number, f"00000000-0000-0000-0000-{number:012}", f"h_{number}", 0, None, 1, 0.0),
        *(inventories, {"CUSTOM_GPU": used}, frozenset(), frozenset()),
        attributes=attributes,
    )


def view(one, *children):
    stock = host.InventoryStock("CUSTOM_GPU", one.inventories["CUSTOM_GPU"], one.used["CUSTOM_GPU"])
    return host.ProviderNodeView(one, (stock,), (), (), children)


@pytest.mark.parametrize(
    ("attributes", "shown"),
    [
        ({"numa_node": 1.0, "pci_path": "pci0000:80"}, ("1", "pci0000:80")),
        ({"pci_path": 5.0}, ("", "5.0")),
        ({"numa_node": "<b>"}, ("<b>", "")),
    ],
)
def test_a_device_is_listed_with_its_place_and_holders(attributes, shown):
    gpu, other = provider(2, attributes, used=1), provider(3, {"memory_tier": 2.0})
    held = [
        host.ConsumerHolding("a", None, "p", ((other, "CUSTOM_GPU", 1),)),
        host.ConsumerHolding("b", None, "p", ((gpu, "CUSTOM_GPU", 1),)),
    ]
    (row,) = host.device_rows(view(provider(1, {}), view(gpu), view(other)), held)
    assert (row.provider, row.node, row.path, row.holders) == (gpu, *shown, (2,))


def test_a_page_lists_a_bounded_number_of_devices():
    devices = [view(provider(number, {"numa_node": 0.0})) for number in range(2, 200)]
    assert len(host.device_rows(view(provider(1, {}), *devices), [])) == host.MAX_DEVICES
