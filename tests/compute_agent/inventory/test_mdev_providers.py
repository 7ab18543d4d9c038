"""Tests of mediated devices (vGPUs), which have one provider, with the class and amount that Nova reports."""

from dataclasses import replace

import os_traits
import pytest

from compute_agent.agent.configured_host import build_host_state
from compute_agent.drivers.libvirt.domain_metadata import describe_domain
from compute_agent.host.pci_devices import MdevType, PciDevice, read_pci_devices
from compute_agent.inventory.derive import InventorySettings, derive_provider_tree
from compute_agent.inventory.device_providers import offer_devices, with_devices
from compute_agent.inventory.device_spec import parse_device_specs
from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree, device_of
from compute_agent.model.cpuset import CpuSets
from compute_agent.model.messages import ConfigError
from compute_agent.promises.facts import cards_of
from compute_agent.promises.verdict import device_faults
from compute_agent.report.held_amounts import without_foreign_devices
from compute_agent.report.plan import ReportedProvider
from tests.compute_agent.agent.cache_agent import host_tree
from tests.compute_agent.host.pci_trees import FakeDevice, make_pci_tree
from tests.compute_agent.inventory.machines import machine

ROOT = "00000000-0000-0000-0000-000000000007"
GPU = "0000:81:00.0"
UUID = "4b20d080-1b54-4048-85b3-a6a62d165c01"
SPEC = '{"vendor_id": "10de", "mdev_type": "nvidia-35"}'


def gpu(*, available: int = 3, made: tuple[str, ...] = (UUID,), address: str = GPU) -> PciDevice:
    types = (
        MdevType("nvidia-35", "GRID A100-5C", available, made),
        MdevType("nvidia-36", "GRID A100-10C", 0),
    )
    return PciDevice(address, "10de", "2331", 0x030200, numa_node=1, mdev_types=types)


def tree_of(specs: list[str], devices: list[PciDevice]) -> ProviderTree:
    topology = machine(nodes=2, l3=2, cores=2)
    sets = CpuSets(dedicated=topology.online, shared=frozenset(), emulator=frozenset())
    tree = derive_provider_tree(topology, sets, InventorySettings("numa"), ROOT, "host")
    return with_devices(tree, offer_devices(parse_device_specs(specs), devices).providers, topology)[0]


def test_existing_and_possible_devices_are_counted() -> None:
    tree = tree_of([SPEC], [gpu()])
    (node,) = tree.device_providers
    assert node.name == "host_pci_0000_81_00_0"
    assert device_of(node.name) == node.device == GPU
    assert node.inventories == {"VGPU": ProviderInventory(total=4, max_unit=4)}
    parent = tree.get(node.parent or "")
    assert parent is not None
    assert parent.numa_nodes == {1}


def test_class_and_amount_can_be_chosen() -> None:
    spec = '{"mdev_type": "nvidia-35", "resource_class": "vgpu-5c", "max_instances": 2}'
    (offered,) = offer_devices(parse_device_specs([spec]), [gpu()]).providers
    assert (offered.resource_class, offered.amount) == ("CUSTOM_VGPU_5C", 2)


def test_other_cards_are_not_selected() -> None:
    offer = offer_devices(parse_device_specs([SPEC]), [PciDevice(GPU, "10de", "2331")])
    assert offer.providers == ()
    assert "selects no PCI device" in offer.warnings[0]


def test_a_card_with_devices_of_another_type_is_named() -> None:
    offer = offer_devices(parse_device_specs([SPEC]), [gpu(available=0, made=())])
    assert offer.providers == ()
    assert offer.warnings[0].endswith("because it has devices of another type: it is not offered")


@pytest.mark.parametrize(
    "entry", ['{"max_instances": 2}', '{"mdev_type": "a", "max_instances": 0}', '{"mdev_type": 5}']
)
def test_wrong_values_are_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match="device_spec"):
        parse_device_specs([entry])


@pytest.mark.parametrize("spec", [SPEC, '{"vendor_id": "10de"}'])
def test_vgpus_of_nova_are_not_offered_twice(spec: str) -> None:
    tree = tree_of([spec], [gpu()])
    novas = ReportedProvider(
        "other", "host_pci_0000_81_00_0", ROOT, 1, traits=frozenset({os_traits.OWNER_NOVA})
    )
    left, (sentence,) = without_foreign_devices(tree, {"other": novas})
    assert left.device_providers == ()
    assert sentence.startswith(f"{GPU}: nova-compute reports them")


def functions(made: dict[int, str] | None = None, *, room: int = 1) -> list[PciDevice]:
    """A card and four virtual functions that can each make mediated devices. ``made`` are the existing
    mediated devices.
    """
    card = PciDevice(GPU, "10de", "2331", 0x030200, numa_node=1, max_virtual=4, iommu_group=1)
    found = [replace(card, root_complex="pci0000:80", bridges=("0000:80:01.0",))]
    for number in range(4):
        has = (made[number],) if made and number in made else ()
        types = (MdevType("nvidia-35", "", 0 if has else room, has),)
        address = f"0000:81:01.{number}"
        found.append(
            replace(found[0], address=address, max_virtual=0, physical_function=GPU, mdev_types=types)
        )
    return found


def with_cards(tree: ProviderTree) -> ProviderTree:
    return replace(tree, cards={f"0000:81:01.{number}": GPU for number in range(4)})


def test_each_virtual_function_has_its_provider_as_in_nova() -> None:
    tree = tree_of([SPEC], functions())
    assert [node.name for node in tree.device_providers] == [f"host_pci_0000_81_01_{n}" for n in range(4)]
    assert {node.inventories["VGPU"].total for node in tree.device_providers} == {1}
    # Functions of one card have no common switch.
    assert {node.parent for node in tree.device_providers} <= {node.uuid for node in tree.nodes[1:3]}
    assert not any("SWITCH" in trait or "PCIE" in trait for node in tree.nodes for trait in node.traits)


def test_the_limit_of_a_card_keeps_functions_with_devices() -> None:
    spec = '{"mdev_type": "nvidia-35", "max_instances": 2}'
    offer = offer_devices(parse_device_specs([spec]), functions({3: UUID}))
    assert [each.address for each in offer.providers] == ["0000:81:01.0", "0000:81:01.3"]
    # The card is full: functions without room are not offered, and need no sentence.
    offer = offer_devices(parse_device_specs([SPEC]), functions({3: UUID}, room=0))
    assert ([each.address for each in offer.providers], offer.warnings) == (["0000:81:01.3"], ())
    offer = offer_devices(parse_device_specs([SPEC]), functions(room=0))
    assert len(offer.warnings) == 1
    assert f"{GPU} can have no device of the type nvidia-35" in offer.warnings[0]


def test_a_whole_card_and_vgpus_of_its_functions_are_not_both_offered() -> None:
    offer = offer_devices(parse_device_specs([SPEC, f'{{"address": "{GPU}"}}']), functions())
    assert offer.providers == ()
    assert f"selects {GPU} and its virtual function 0000:81:01.0" in offer.warnings[0]


@pytest.mark.parametrize(
    ("spec", "novas"),
    [
        (SPEC, "host_pci_0000_81_01_2"),
        (SPEC, f"host_{GPU}"),
        ('{"address": "0000:81:01.*"}', "host_pci_0000_81_01_2"),
        (f'{{"address": "{GPU}", "product_id": "2331"}}', "host_pci_0000_81_01_2"),
    ],
)
def test_a_card_is_novas_whichever_of_its_functions_nova_reports(spec: str, novas: str) -> None:
    devices = functions()
    if spec.startswith('{"address": "0000:81:00'):
        devices = [devices[0], *(replace(each, product_id="2332") for each in devices[1:])]
    tree = with_cards(tree_of([spec], devices))
    assert tree.device_providers
    reported = ReportedProvider("other", novas, ROOT, 1, traits=frozenset({os_traits.OWNER_NOVA}))
    left, (sentence,) = without_foreign_devices(tree, {"other": reported})
    assert left.device_providers == ()
    assert "nova-compute reports them to Placement" in sentence


def test_the_agent_knows_the_cards_of_virtual_functions(tmp_path, load) -> None:
    root = tmp_path / "host"
    host_tree(root)
    function = "0000:81:01.0"
    path = ("0000:80:01.0",)
    make_pci_tree(
        root, [FakeDevice((*path, GPU), virtual=(function,), max_virtual=1), FakeDevice((*path, function))]
    )
    (root / "sys/bus/pci/devices" / function / "mdev_supported_types/nvidia-35").mkdir(parents=True)
    types = root / "sys/bus/pci/devices" / function / "mdev_supported_types/nvidia-35"
    (types / "available_instances").write_text("1\n")
    ini = f"[host]\nroot = {root}\n[pci]\nnova_config =\ndevice_spec = {SPEC}\n"
    tree = build_host_state(load(ini)).tree
    assert [node.device for node in tree.device_providers] == [function]
    assert tree.card_of(function) == tree.card_of(GPU) == GPU


def test_a_mediated_device_counts_for_its_virtual_function() -> None:
    devices = functions({3: UUID})
    tree = tree_of([SPEC], devices)
    cards = cards_of(tree, lambda: devices)
    assert device_faults({"0000:81:01.3": 1}, {UUID}, cards) == []
    assert device_faults({"0000:81:01.2": 1}, {UUID}, cards) != []


def test_types_and_devices_are_read(tmp_path) -> None:
    make_pci_tree(tmp_path, [FakeDevice(("0000:80:01.0", GPU))])
    folder = tmp_path / "sys/bus/pci/devices" / GPU / "mdev_supported_types/nvidia-35"
    (folder / "devices" / UUID).mkdir(parents=True)
    (folder / "devices" / "power").mkdir()
    (folder / "available_instances").write_text("3\n")
    device = next(each for each in read_pci_devices(tmp_path) if each.address == GPU)
    assert device.mdev_types == (MdevType("nvidia-35", "", 3, (UUID,)),)


def test_the_definition_of_a_domain_is_compared_with_its_allocation() -> None:
    hostdev = f"<hostdev type='mdev'><source><address uuid='{UUID.upper()}'/></source></hostdev>"
    domain = f"<domain><uuid>{ROOT}</uuid><name>a</name><vcpu>1</vcpu><memory>1</memory>"
    has = describe_domain(f"{domain}<devices>{hostdev}<hostdev type='mdev'/></devices></domain>").devices
    assert has == {UUID}
    node = ProviderNode("host_pci_0000_81_00_0", "a", ROOT, device=GPU, device_class="VGPU")
    cards = cards_of(ProviderTree((ProviderNode("host", ROOT, None), node)), lambda: [gpu()])
    assert device_faults({GPU: 1}, has, cards) == []
    assert device_faults({}, has, cards) == [f"it has 1 of {GPU}, and holds 0"]


def test_whole_cards_and_functions_of_one_class_are_named() -> None:
    whole = PciDevice("0000:81:00.0", "8086", "1572", max_virtual=8, iommu_group=1)
    card = PciDevice("0000:82:00.0", "8086", "1572", max_virtual=8, iommu_group=2)
    function = PciDevice("0000:82:02.0", "8086", "154c", physical_function=card.address, iommu_group=3)
    specs = parse_device_specs(
        [
            '{"address": "0000:81:00.0", "resource_class": "nic"}',
            '{"product_id": "154c", "resource_class": "nic"}',
        ]
    )
    offer = offer_devices(specs, [whole, card, function])
    assert len(offer.providers) == 2
    assert any("CUSTOM_NIC has whole cards and virtual functions" in each for each in offer.warnings)
