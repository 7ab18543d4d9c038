"""Tests of the PCI devices on a host's page, with NUMA node, path and holders, for any attributes."""

import gc
import weakref
from dataclasses import replace

import pytest

from placement.exceptions import Unavailable
from placement.policies import rest
from placement.read_model.provider import Inventory
from placement.read_model.snapshot import ModelSnapshot
from placement_extras.console import capacity, devices, host
from placement_extras.console.fleet import HostResults
from placement_extras.console.page_request import PageRequest
from tests.placement_extras.console import world
from tests.placement_extras.console.pages import read_answer
from tests.placement_extras.console.providers import provider

PATH = {"pci_path": "pci0000:80"}


def card(number, attributes, used=0, reserved=0, root=1):
    inventories = {"CUSTOM_GPU": Inventory(1, reserved, 1, 1, 1, 1.0)}
    return provider(number, attributes, root=root, inventories=inventories, used={"CUSTOM_GPU": used})


@pytest.mark.parametrize(
    ("attributes", "shown"),
    [
        ({"numa_node": 1.0, "pci_path": "pci0000:80"}, ("1", "pci0000:80")),
        ({"pci_path": 5.0}, ("", "5.0")),
        ({"numa_node": "<b>", "pci_path": ""}, ("<b>", "")),
    ],
)
def test_a_device_is_listed_with_its_place_and_holders(attributes, shown):
    gpu, other = card(2, attributes, used=1), card(3, {"numa_node": 2.0})
    held = [
        host.ConsumerHolding("a", None, "p", ((other, "CUSTOM_GPU", 1),)),
        host.ConsumerHolding("b", None, "p", ((gpu, "CUSTOM_GPU", 1),)),
    ]
    (row,) = devices.list_devices([card(1, {}), gpu, other], held).rows
    assert (row.provider, row.node, row.path, row.holders) == (gpu, *shown, (2,))
    assert [(stock.resource_class, stock.used) for stock in row.stocks] == [("CUSTOM_GPU", 1)]


def test_a_page_lists_a_bounded_number_of_devices_and_counts_all():
    found = devices.list_devices([card(number, PATH) for number in range(2, 600)], [])
    assert (len(found.rows), found.count) == (devices.MAX_DEVICES, 598)


def test_devices_of_all_hosts_are_counted_by_class():
    snapshot = ModelSnapshot(
        [
            card(1, {}),
            card(2, PATH, used=1),
            card(3, {**PATH, "numa_node": 1.0}),
            # more is reserved than there is, which takes nothing from other devices
            card(4, PATH, reserved=5),
            # a NUMA node is no device
            card(5, {"numa_node": 2.0}),
            card(6, PATH, used=1, root=6),
        ]
    )
    assert devices.list_stocks(snapshot, HostResults(devices.count_devices)) == [
        devices.DeviceStock("CUSTOM_GPU", 3, 2, 2, 1)
    ]


def test_only_changed_hosts_are_counted_again():
    counted = []

    def count_devices(tree):
        counted.append(tree.root.id)
        return devices.count_devices(tree)

    snapshot = ModelSnapshot([card(root, PATH, root=root) for root in (1, 2, 3)])
    census = HostResults(count_devices)
    assert devices.list_stocks(snapshot, census) == [devices.DeviceStock("CUSTOM_GPU", 3, 0, 3, 3)]
    snapshot = snapshot.copy()
    snapshot.put(card(2, PATH, used=1, root=2))
    assert devices.list_stocks(snapshot, census) == [devices.DeviceStock("CUSTOM_GPU", 3, 1, 3, 2)]
    assert counted == [1, 2, 3, 2]
    # the device moves below another root, which keeps its attributes
    snapshot.put(replace(snapshot.providers[3], parent_id=1, root_id=1))
    assert devices.list_stocks(snapshot, census) == [devices.DeviceStock("CUSTOM_GPU", 3, 1, 2, 1)]
    tree = weakref.ref(snapshot.whole_trees()[1])
    del snapshot
    gc.collect()
    assert tree() is None


@pytest.fixture
def device(tell):
    """The name of a provider that is a PCI device during the test."""
    name = "compute-1_NUMA0_L3_0"
    tell(name, {"numa_node": 0.0, **PATH})
    return name


def test_pages_show_the_devices_of_a_host_and_of_all_hosts(device, client):
    assert (
        "PCI devices of all hosts PCI devices by resource class Class Used Hosts with a free one"
        in read_answer(client, "capacity")
    )
    shown = read_answer(client, f"providers/{world.uuid_of('compute-1')}")
    assert "pci0000:80" in shown
    assert "are listed" not in shown


def test_pages_without_devices_show_none(client):
    assert "PCI devices" not in read_answer(client, "capacity")
    assert "PCI devices" not in read_answer(client, f"providers/{world.uuid_of('compute-1')}")


def test_a_device_on_another_page_of_providers_is_listed(device, client, monkeypatch):
    monkeypatch.setattr(host, "PER_PAGE", 1)
    for number in ("1", "2", "4"):
        shown = read_answer(client, f"providers/{world.uuid_of('compute-1')}", providers=number)
        assert "pci0000:80" in shown


def test_a_page_without_the_right_to_see_allocations_says_so_of_holders(device, client, monkeypatch):
    may_use = PageRequest.may_use

    def may_not_see(visit, *rules):
        return rest.LIST_PROVIDER_ALLOCATIONS not in rules and may_use(visit, *rules)

    used = devices.InventoryStock("LLC", Inventory(15, 1, 1, 15, 1, 1.0), 1)
    monkeypatch.setattr(devices, "stocks_of", lambda _: (used,))
    path = f"providers/{world.uuid_of('compute-1')}"
    assert "consumers on another page of the list" in read_answer(client, path, holders="9")
    monkeypatch.setattr(PageRequest, "may_use", may_not_see)
    shown = read_answer(client, path)
    assert "consumers that you may not see" in shown
    assert "another page" not in shown


def test_an_outage_after_the_count_loses_no_answer(device, client, monkeypatch):
    ask_api = capacity.ask_api

    def be_away(_):
        raise Unavailable("The database is away.")

    def ask_before_outage(*arguments, **options):
        answer = ask_api(*arguments, **options)
        monkeypatch.setattr(PageRequest, "pinned_model", be_away)
        return answer

    monkeypatch.setattr(capacity, "ask_api", ask_before_outage)
    shown = read_answer(client, "capacity", flavors="small=resources=PCPU:1")
    assert "Guests that fit" in shown
    assert "PCI devices of all hosts" in shown
