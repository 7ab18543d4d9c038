"""Tests of providers of PCI devices below their NUMA node, so that one query finds a device and CPUs of its
node.
"""

import uuid
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from compute_agent import conf as agent_conf
from compute_agent.agent.configured_host import build_host_state
from compute_agent.host.pci_devices import PciDevice, PciLink
from compute_agent.inventory.derive import InventorySettings, derive_provider_tree
from compute_agent.inventory.device_providers import nearest_cpu_nodes, offer_devices, with_devices
from compute_agent.inventory.device_spec import parse_device_specs
from compute_agent.inventory.provider_tree import (
    ProviderInventory,
    ProviderNode,
    ProviderTree,
    child_uuid,
    device_of,
)
from compute_agent.model.cpuset import CpuSets
from compute_agent.model.messages import ConfigError
from compute_agent.report.held_amounts import beside_held
from compute_agent.report.plan import OwnedNames, ReportedProvider
from compute_agent.report.reporter import HostReporter
from tests.compute_agent.host.pci_trees import FakeDevice, make_pci_tree
from tests.compute_agent.inventory.machines import machine

ROOT = str(uuid.UUID(int=7))
GPU = '{"vendor_id": "10de", "resource_class": "gpu", "traits": "nvlink"}'
ANY_NIC = '{"vendor_id": "8086", "product_id": "154c"}'


def gpu(address: str, node: int | None = 0) -> PciDevice:
    return PciDevice(address, "10de", "2331", 0x030200, numa_node=node, iommu_group=3)


def card(address: str, *virtual: str, node: int | None = 1) -> list[PciDevice]:
    """A network card and its virtual functions. The kernel shows no NUMA node of the card."""
    physical = PciDevice(address, "8086", "1572", 0x020000, node, max_virtual=8, iommu_group=4)
    functions = [
        PciDevice(each, "8086", "154c", 0x020000, node, physical_function=address, iommu_group=5)
        for each in virtual
    ]
    return [physical, *functions]


def tree_of(shape: str, specs: list[str], devices: list[PciDevice], **fields: object) -> ProviderTree:
    topology = machine(nodes=2, l3=2, cores=2, **fields)  # type: ignore[arg-type]
    sets = CpuSets(dedicated=topology.online, shared=frozenset(), emulator=frozenset())
    tree = derive_provider_tree(topology, sets, InventorySettings(shape), ROOT, "host")
    offer = offer_devices(parse_device_specs(specs), devices)
    return with_devices(tree, offer.providers, topology)[0]


def device_nodes(tree: ProviderTree) -> dict[str, ProviderNode]:
    return {node.name: node for node in tree.nodes if node.device}


@pytest.mark.parametrize("shape", ["flat", "numa", "l3"])
def test_a_device_is_below_its_node_and_keeps_its_uuid_in_each_shape(shape: str) -> None:
    tree = tree_of(shape, [GPU], [gpu("0000:0a:00.0"), gpu("0000:8a:00.0", node=1)])
    found = device_nodes(tree)
    assert sorted(found) == ["host_0000:0A:00.0", "host_0000:8A:00.0"]
    parents = {name: tree.get(node.parent or "") for name, node in found.items()}
    names = [parent.name for parent in parents.values() if parent is not None]
    assert names == (["host", "host"] if shape == "flat" else ["host_NUMA_0", "host_NUMA_1"])
    first = found["host_0000:0A:00.0"]
    assert first.uuid == child_uuid(ROOT, "PCI_0000:0a:00.0")
    assert first.traits == {"CUSTOM_NVLINK"}
    assert {name: (one.total, one.max_unit) for name, one in first.inventories.items()} == {
        "CUSTOM_GPU": (1, 1)
    }
    assert device_of(first.name) == "0000:0a:00.0"


def test_virtual_functions_are_counted_on_their_card() -> None:
    virtual = ["0000:81:02.0", "0000:81:02.1", "0000:81:02.2"]
    (found,) = device_nodes(tree_of("numa", [ANY_NIC], card("0000:81:00.0", *virtual))).values()
    assert found.name == "host_0000:81:00.0"
    assert {name: one.total for name, one in found.inventories.items()} == {"CUSTOM_PCI_8086_154C": 3}


BOTH = '{"vendor_id": "8086"}'
APART = ['{"address": "0000:81:02.0", "traits": "fast"}', ANY_NIC]


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        ([BOTH, GPU], "selects 0000:81:00.0 and its virtual function 0000:81:02.0"),
        ([*APART, GPU], "0000:81:02.0 and 0000:81:02.1 different classes or traits"),
        (['{"product_id": "154c", "one_time_use": "1"}', GPU], "one_time_use for 0000:81:02.0"),
    ],
)
def test_a_card_with_a_conflict_is_left_out_and_the_others_are_offered(specs: list[str], reason: str) -> None:
    devices = [*card("0000:81:00.0", "0000:81:02.0", "0000:81:02.1"), gpu("0000:0a:00.0")]
    offer = offer_devices(parse_device_specs(specs), devices)
    assert [each.address for each in offer.providers] == ["0000:0a:00.0"]
    (warning,) = offer.warnings
    assert reason in warning


def test_devices_of_neutron_have_no_provider() -> None:
    spec = '{"product_id": "154c", "physical_network": "net1"}'
    assert not device_nodes(tree_of("numa", [spec], card("0000:81:00.0", "0000:81:02.0")))


def test_a_device_without_a_node_is_below_the_root_and_reported() -> None:
    topology = machine(nodes=2, cores=2)
    sets = CpuSets(dedicated=topology.online, shared=frozenset(), emulator=frozenset())
    tree = derive_provider_tree(topology, sets, InventorySettings("numa"), ROOT, "host")
    offer = offer_devices(parse_device_specs([GPU]), [gpu("0000:0a:00.0", node=None)])
    found, (warning,) = with_devices(tree, offer.providers, topology)
    assert device_nodes(found)["host_0000:0A:00.0"].parent == ROOT
    assert "does not show the NUMA node of 0000:0a:00.0" in warning


def test_the_only_node_of_a_host_is_the_node_of_its_devices() -> None:
    topology = machine(nodes=1, cores=2)
    sets = CpuSets(dedicated=topology.online, shared=frozenset(), emulator=frozenset())
    tree = derive_provider_tree(topology, sets, InventorySettings("numa"), ROOT, "host")
    offer = offer_devices(parse_device_specs([GPU]), [gpu("0000:0a:00.0", node=None)])
    found, warnings = with_devices(tree, offer.providers, topology)
    assert warnings == ()
    assert device_nodes(found)["host_0000:0A:00.0"].parent == child_uuid(ROOT, "NUMA_0")


def test_a_device_on_a_node_without_cpus_is_below_the_nearest_node_with_cpus() -> None:
    distances = {0: {0: 10, 1: 20, 2: 80}, 1: {0: 20, 1: 10, 2: 40}, 2: {0: 80, 1: 40, 2: 10}}
    tree = tree_of("numa", [GPU], [gpu("0000:0a:00.0", node=2)], more_nodes={2: 1 << 20}, distances=distances)
    (found,) = device_nodes(tree).values()
    assert found.parent == child_uuid(ROOT, "NUMA_1")


def test_nodes_at_equal_distances_lead_to_the_first() -> None:
    distances = {2: {0: 40, 1: 40, 2: 10}}
    topology = machine(nodes=2, cores=2, more_nodes={2: 1, 3: 1}, distances=distances)
    assert nearest_cpu_nodes(topology) == {0: 0, 1: 1, 2: 0}


def test_devices_that_need_the_operator_are_reported() -> None:
    narrow = PciDevice("0000:0a:00.0", "10de", "2331", link=PciLink(32.0, 8, 32.0, 16))
    iommu, lanes = offer_devices(parse_device_specs([GPU]), [narrow]).warnings
    assert "0000:0a:00.0 cannot be given to domains, since the IOMMU is off" in iommu
    assert "0000:0a:00.0 x8 of x16" in lanes


@pytest.mark.parametrize(
    ("managed", "driver", "is_told"),
    [("no", "nvidia", True), ("no", "", True), ("no", "mlx5_vfio_pci", False), ("yes", "nvidia", False)],
)
def test_a_device_without_a_driver_of_vfio_is_reported_if_libvirt_binds_none(
    managed: str, driver: str, is_told: bool
) -> None:
    device = replace(gpu("0000:0a:00.0"), driver=driver)
    offer = offer_devices(parse_device_specs([f'{{"managed": "{managed}"}}']), [device])
    assert ["0000:0a:00.0" in each for each in offer.warnings] == [True] * is_told


def test_an_entry_without_a_device_is_named_once() -> None:
    specs = parse_device_specs([GPU, '[{"vendor_id": "1000"}, {"address": "0000:0a:00.0"}]'])
    devices = [gpu("0000:0a:00.0"), gpu("0000:8a:00.0")]
    first, second = offer_devices(specs, devices).warnings
    assert '{"vendor_id": "1000"} selects no PCI device of this host' in first
    assert '{"address": "0000:0a:00.0"} selects no PCI device' in second


def test_a_virtual_gpu_without_a_type_is_reported() -> None:
    (warning,) = offer_devices(
        parse_device_specs([GPU]), [replace(gpu("0000:0a:00.0"), vgpu_type=0)]
    ).warnings
    assert "0000:0a:00.0 have no vGPU type" in warning


def test_a_name_without_room_for_an_address_is_refused() -> None:
    topology = machine(nodes=1, cores=1)
    tree = ProviderTree((ProviderNode("h" * 190, ROOT, None),))
    offer = offer_devices(parse_device_specs([GPU]), [gpu("0000:0a:00.0")])
    with pytest.raises(ConfigError, match="203 characters are more than 200"):
        with_devices(tree, offer.providers, topology)


@pytest.mark.parametrize("held", [0, 2])
def test_a_card_that_is_gone_is_reserved_while_guests_hold_it(held: int) -> None:
    before = tree_of("numa", [ANY_NIC], card("0000:81:00.0", "0000:81:02.0", "0000:81:02.1", "0000:81:02.2"))
    after = tree_of("numa", [ANY_NIC], [])
    reported = {
        node.uuid: ReportedProvider(node.uuid, node.name, node.parent, 1, node.inventories, node.traits)
        for node in before.nodes
    }
    owned = {node.uuid: OwnedNames(frozenset(node.inventories), node.traits) for node in before.nodes}
    amounts = {child_uuid(ROOT, "PCI_0000:81:00.0"): held}
    tree, waiting = beside_held(after, reported, owned, lambda each, name: amounts.get(each, 0))
    found = device_nodes(tree)
    if not held:
        assert not found
        return
    inventory = found["host_0000:81:00.0"].inventories["CUSTOM_PCI_8086_154C"]
    assert (inventory.total, inventory.reserved) == (3, 3)
    assert "2 CUSTOM_PCI_8086_154C are held: all of it is reserved" in " ".join(waiting.all_sentences)


def report_beside(
    before: ProviderTree, after: ProviderTree, held: dict[str, int], reserved: int = 0
) -> tuple[dict[str, tuple[int, int]], str]:
    """The total and reserved units of devices by class after a changed tree was reported, and the messages.

    :param held: the amounts of devices that guests hold, by class.
    """
    reported = {
        node.uuid: ReportedProvider(
            node.uuid,
            node.name,
            node.parent,
            1,
            {name: replace(one, reserved=reserved) for name, one in node.inventories.items()},
            node.traits,
        )
        for node in before.nodes
    }
    owned = {node.uuid: OwnedNames(frozenset(node.inventories), node.traits) for node in before.nodes}
    devices = {node.uuid for node in before.nodes if node.device}
    tree, waiting = beside_held(
        after, reported, owned, lambda each, name: held.get(name, 0) if each in devices else 0
    )
    found = [node.inventories for node in tree.nodes if node.device]
    return {name: (one.total, one.reserved) for each in found for name, one in each.items()}, " ".join(
        waiting.all_sentences
    )


def test_a_held_device_is_not_offered_under_another_class() -> None:
    device = [gpu("0000:0a:00.0")]
    before, after = tree_of("numa", [GPU], device), tree_of("numa", [GPU.replace("gpu", "h100")], device)
    found, sentences = report_beside(before, after, {"CUSTOM_GPU": 1})
    assert found == {"CUSTOM_H100": (1, 1), "CUSTOM_GPU": (1, 1)}
    assert "1 CUSTOM_GPU are held" in sentences
    assert "Until then all CUSTOM_H100 is reserved, too" in sentences
    # The report after that knows both classes.
    both = {name: ProviderInventory(1, max_unit=1) for name in found}
    reported = replace(before, nodes=tuple(replace(node, inventories=both) for node in before.nodes))
    assert report_beside(reported, after, {"CUSTOM_GPU": 1})[0] == found
    assert report_beside(reported, after, {"CUSTOM_H100": 1}) == ({"CUSTOM_H100": (1, 0)}, "")


def test_the_functions_of_a_held_card_are_not_offered() -> None:
    devices = card("0000:81:00.0", "0000:81:02.0", "0000:81:02.1")
    before = tree_of("numa", ['{"vendor_id": "8086", "product_id": "1572"}'], devices)
    after = tree_of("numa", [ANY_NIC], devices)
    found, _ = report_beside(before, after, {"CUSTOM_PCI_8086_1572": 1})
    assert found == {"CUSTOM_PCI_8086_154C": (2, 2), "CUSTOM_PCI_8086_1572": (1, 1)}


ONE_USE = '{"vendor_id": "10de", "resource_class": "gpu", "one_time_use": "yes"}'


def test_a_used_device_for_one_use_stays_used_when_it_is_gone() -> None:
    before, gone = tree_of("numa", [ONE_USE], [gpu("0000:0a:00.0")]), tree_of("numa", [ONE_USE], [])
    found, sentences = report_beside(before, gone, {}, reserved=1)
    assert found == {"CUSTOM_GPU": (1, 1)}
    assert "it goes when reserved of its inventory is set to 0 through the API" in sentences
    assert report_beside(before, gone, {}) == ({}, "")


@pytest.mark.parametrize(("reserved", "held"), [(1, {}), (0, {"CUSTOM_GPU": 1})])
def test_a_used_device_for_one_use_stays_used_under_another_class(
    reserved: int, held: dict[str, int]
) -> None:
    device = [gpu("0000:0a:00.0")]
    before, after = tree_of("numa", [ONE_USE], device), tree_of("numa", [ONE_USE.replace("gpu", "b")], device)
    found, _ = report_beside(before, after, held, reserved)
    assert found["CUSTOM_B"] == (1, 1)


@pytest.mark.parametrize(("reserved", "held", "becomes"), [(0, 0, 0), (0, 1, 1), (1, 1, 1), (1, 0, 1)])
def test_a_device_for_one_use_stays_reserved_once_it_was_held(reserved: int, held: int, becomes: int) -> None:
    tree = tree_of("numa", ['{"vendor_id": "10de", "one_time_use": "yes"}'], [gpu("0000:0a:00.0")])
    (node,) = device_nodes(tree).values()
    there = {name: replace(one, reserved=reserved) for name, one in node.inventories.items()}
    reported = {node.uuid: ReportedProvider(node.uuid, node.name, node.parent, 1, there, node.traits)}
    owned = {node.uuid: OwnedNames(frozenset(there), node.traits)}
    found, waiting = beside_held(tree, reported, owned, lambda each, name: held if each == node.uuid else 0)
    (inventory,) = device_nodes(found)[node.name].inventories.values()
    assert inventory.reserved == becomes
    assert len(waiting.devices) == becomes


TOGETHER = {
    "numa": "resources_cpu=PCPU:2&resources_gpu=CUSTOM_GPU:1&same_subtree=_cpu,_gpu",
    "l3": "resources_cpu=PCPU:2&resources_gpu=CUSTOM_GPU:1&required_node=HW_NUMA_ROOT"
    "&same_subtree=_node,_cpu,_gpu",
}
"""Queries for a device and CPUs of one node, by the shape of the tree."""


@pytest.fixture(params=TOGETHER)
def shape(request):
    return request.param


@pytest.fixture
def host(tmp_path, write_ini, shape):
    """The ini file of a host with two nodes of two L3 caches each. Both GPUs are on the second node."""
    root = tmp_path / "host"
    cpu = root / "sys/devices/system/cpu"
    for number in range(8):
        cache = cpu / f"cpu{number}/cache/index3"
        cache.mkdir(parents=True)
        peers = f"{number // 2 * 2}-{number // 2 * 2 + 1}"
        for name, text in {"level": "3", "type": "Unified", "shared_cpu_list": peers}.items():
            (cache / name).write_text(f"{text}\n")
    (cpu / "online").write_text("0-7\n")
    for node, cpus in ((0, "0-3"), (1, "4-7")):
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
        (folder / "meminfo").write_text(f"Node {node} MemTotal: 8388608 kB\n")
    (root / "sys/devices/system/node/online").write_text("0-1\n")
    make_pci_tree(
        root,
        [
            FakeDevice((f"0000:8{slot}:02.0", f"0000:9{slot}:0{port}.0", address), vendor=product, node=1)
            for slot in range(2)
            for port, (product, address) in enumerate(
                [("10de", f"0000:a{slot}:00.0"), ("15b3", f"0000:b{slot}:00.0")]
            )
        ],
    )
    return write_ini(
        name="host.ini",
        compute=f"cpu_dedicated_set = 0-7\nprovider_tree = {shape}\nresource_provider_name = host",
        host=f"root = {root}",
        pci=f'device_spec = {GPU}\ndevice_spec = {{"vendor_id": "15b3", "resource_class": "nic"}}',
    )


def test_one_query_finds_a_device_with_cpus_of_its_node(host, shape, client, live_placement):
    host_state = build_host_state(agent_conf.load(config_files=[str(host)]), root_uuid=ROOT)
    HostReporter(client, {}, lambda owned: None).report_tree(host_state.tree)
    node_of = {node.uuid: min(node.numa_nodes, default=None) for node in host_state.tree.nodes}
    names = {node.uuid: node.name for node in host_state.tree.nodes}

    def candidates(query):
        answer = requests.get(
            f"{live_placement.url}/allocation_candidates?{query}&group_policy=none",
            headers={"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.39"},
            timeout=30,
        )
        assert answer.status_code == 200, answer.text
        return [one["allocations"] for one in answer.json()["allocation_requests"]]

    both = "resources_gpu=CUSTOM_GPU:1&resources_nic=CUSTOM_NIC:1"
    joined = candidates(f"{both}&required_switch=CUSTOM_PCIE_ROOT&same_subtree=_switch,_gpu,_nic")
    pairs = {tuple(sorted(device_of(names[each])[5:7] for each in one)) for one in joined}
    assert pairs == {("a0", "b0"), ("a1", "b1")}
    assert len(joined) == 2
    assert len(candidates(both)) == 4

    together = TOGETHER[shape]
    places = 1 if shape == "numa" else 2
    found = candidates(together)
    assert len(found) == 2 * places
    assert {node_of[each] for one in found for each in one} == {1}
    assert len(candidates("resources_cpu=PCPU:2&resources_gpu=CUSTOM_GPU:1")) == 4 * places
    assert not candidates(together.replace("PCPU:2", "PCPU:5"))


@pytest.mark.parametrize("nodes", ["none", "attributes"])
def test_a_host_beside_nova_offers_devices_and_knows_the_nodes_of_others(
    tmp_path: Path, write_ini, nodes
) -> None:
    make_pci_tree(tmp_path / "host", [FakeDevice(("0000:80:02.0", "0000:a0:00.0"), node=0)])
    ini = write_ini(
        compute="provider_tree = beside",
        host=f"root = {tmp_path / 'host'}",
        pci=f"device_spec = {GPU}\nnodes = {nodes}",
    )
    tree = build_host_state(agent_conf.load(config_files=[str(ini)]), root_uuid=ROOT).tree
    (device,) = device_nodes(tree).values()
    assert device.parent == tree.root.uuid
    assert device.attributes["pci_path"] == "pci0000:80/0000:80:02.0"
    assert ("0000:a0:00.0" in tree.device_attributes) == (nodes == "attributes")
