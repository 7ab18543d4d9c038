"""A host's page lists its PCI devices with node, path and holders, whatever the attributes are."""

from http import HTTPStatus

import pytest

from placement.read_model.provider import Inventory, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement_extras.console import devices, host
from tests.placement.running import Admin
from tests.placement_extras.console import world
from tests.placement_extras.console.pages import read_answer


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
    (row,) = devices.list_devices(view(provider(1, {}), view(gpu), view(other)), held).rows
    assert (row.provider, row.node, row.path, row.holders) == (gpu, *shown, (2,))


def test_a_page_lists_a_bounded_number_of_devices_and_counts_all():
    views = [view(provider(number, {"numa_node": 0.0})) for number in range(2, 200)]
    found = devices.list_devices(view(provider(1, {}), *views), [])
    assert (len(found.rows), found.count) == (devices.MAX_DEVICES, 198)


def test_devices_of_all_hosts_are_counted_by_class():
    snapshot = ModelSnapshot(
        [
            provider(1, {}),
            provider(2, {"numa_node": 0.0}, used=1),
            provider(3, {"pci_path": "pci0000:80", "numa_node": 1.0}),
            provider(4, {"memory_tier": 2.0}),
        ]
    )
    assert devices.device_stocks(snapshot) == [devices.DeviceStock("CUSTOM_GPU", 2, 1, 1, 1)]


def test_pages_show_the_devices_of_a_host_and_of_all_hosts(app, client):
    admin = Admin(app)
    path = f"/ext/v1/resource_providers/{world.uuid_of('compute-1_NUMA0_L3_0')}/attributes"

    def put(attributes):
        generation = admin("GET", path).json["resource_provider_generation"]
        body = {"resource_provider_generation": generation, "attributes": attributes}
        assert admin("PUT", path, json=body).status_code == HTTPStatus.OK

    assert "PCI devices" not in read_answer(client, "capacity")
    put({"numa_node": 0.0, "pci_path": "pci0000:80"})
    try:
        assert (
            "PCI devices of all hosts PCI devices by resource class Class Used Hosts with a free one"
            in read_answer(client, "capacity")
        )
        shown = read_answer(client, f"providers/{world.uuid_of('compute-1')}")
        assert "pci0000:80" in shown
        assert "are listed" not in shown
    finally:
        put({})
