"""Tests of reading PCI devices from the kernel's files. The agent never guesses the NUMA node of a device."""

from pathlib import Path

import pytest

from compute_agent.host.pci_devices import MdevType, PciDevice, pci_addresses, read_pci_devices
from tests.compute_agent.host.captured import ARCHIVES, unpack
from tests.compute_agent.host.pci_trees import FakeDevice, make_pci_tree

PORT, SWITCH = "0000:80:02.0", "0000:81:00.0"
GPU, VF = "0000:82:00.0", "0000:82:00.4"


def read_one(root: Path, address: str) -> PciDevice:
    return next(device for device in read_pci_devices(root) if device.address == address)


def test_a_device_is_read_with_its_way_to_the_root_complex(tmp_path: Path) -> None:
    make_pci_tree(tmp_path, [FakeDevice((PORT, SWITCH, GPU), node=1, iommu_group=7)])
    gpu = read_one(tmp_path, GPU)
    assert (gpu.vendor_id, gpu.product_id, gpu.class_code) == ("10de", "2331", 0x030200)
    assert (gpu.numa_node, gpu.iommu_group) == (1, 7)
    assert (gpu.root_complex, gpu.bridges) == ("pci0000:80", (PORT, SWITCH))
    assert not gpu.is_bridge
    assert not gpu.is_virtual
    assert not gpu.is_physical
    assert read_one(tmp_path, SWITCH).is_bridge
    assert pci_addresses(tmp_path) == (PORT, SWITCH, GPU)


@pytest.mark.parametrize(
    ("switch", "port", "node"), [(2, 3, 2), (None, 3, 3), (None, None, None)], ids=["switch", "port", "none"]
)
def test_a_device_without_a_node_has_the_node_of_its_nearest_bridge(
    tmp_path: Path, switch: int | None, port: int | None, node: int | None
) -> None:
    bridges = [
        FakeDevice((PORT,), class_code="060400", node=port),
        FakeDevice((PORT, SWITCH), class_code="060400", node=switch),
    ]
    make_pci_tree(tmp_path, [*bridges, FakeDevice((PORT, SWITCH, GPU), node=None)])
    assert read_one(tmp_path, GPU).numa_node == node


def test_virtual_functions_know_their_physical_function_and_share_its_node(tmp_path: Path) -> None:
    card = FakeDevice((PORT, GPU), node=1, virtual=(VF,), max_virtual=8)
    make_pci_tree(tmp_path, [card, FakeDevice((PORT, VF), product="2332", node=None)])
    physical, virtual = read_one(tmp_path, GPU), read_one(tmp_path, VF)
    assert physical.max_virtual == 8
    assert physical.is_physical
    assert not physical.is_virtual
    assert virtual.is_virtual
    assert (virtual.physical_function, virtual.numa_node) == (GPU, 1)


def test_a_link_with_fewer_lanes_is_degraded(tmp_path: Path) -> None:
    make_pci_tree(tmp_path, [FakeDevice((PORT, GPU), width=8), FakeDevice((PORT, SWITCH), width=0)])
    assert read_one(tmp_path, GPU).link.is_degraded
    assert not read_one(tmp_path, SWITCH).link.is_degraded


def test_types_of_virtual_gpus_and_models_of_disks_are_read(tmp_path: Path) -> None:
    make_pci_tree(tmp_path, [FakeDevice((PORT, GPU)), FakeDevice((PORT, VF)), FakeDevice((PORT, SWITCH))])
    files = {
        f"{GPU}/mdev_supported_types/nvidia-35/name": "GRID A100-5C",
        f"{GPU}/mdev_supported_types/nvidia-35/available_instances": "8",
        f"{GPU}/mdev_supported_types/nvidia-36/available_instances": "x",
        f"{VF}/nvidia/current_vgpu_type": "0",
        f"{SWITCH}/nvme/nvme3/model": "Fast disk  ",
        f"{SWITCH}/nvme/nvme3/serial": "S12\x1b[1m",
    }
    for name, text in files.items():
        path = tmp_path / "sys/bus/pci/devices" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    types = [MdevType("nvidia-35", "GRID A100-5C", 8), MdevType("nvidia-36", "", 0)]
    assert read_one(tmp_path, GPU).mdev_types == tuple(types)
    assert (read_one(tmp_path, GPU).vgpu_type, read_one(tmp_path, VF).vgpu_type) == (None, 0)
    assert read_one(tmp_path, SWITCH).model == "Fast disk S12\N{REPLACEMENT CHARACTER}[1m"


@pytest.mark.parametrize("content", ["", "0x", "hello", "0x10de" * 9, "\0\0", "-1"])
def test_odd_files_leave_the_device_out_and_raise_nothing(tmp_path: Path, content: str) -> None:
    make_pci_tree(tmp_path, [FakeDevice((PORT, GPU)), FakeDevice((PORT, SWITCH))])
    folder = tmp_path / "sys/bus/pci/devices" / GPU
    (folder / "vendor").write_text(content)
    assert GPU not in {device.address for device in read_pci_devices(tmp_path)}
    for name in ("numa_node", "class", "max_link_width", "current_link_speed"):
        (folder.parent / SWITCH / name).write_text(content)
    assert read_one(tmp_path, SWITCH).class_code == 0


def test_a_host_without_pci_has_no_devices(tmp_path: Path) -> None:
    assert read_pci_devices(tmp_path) == ()
    assert pci_addresses(tmp_path) == ()


@pytest.mark.slow
@pytest.mark.parametrize("archive", ARCHIVES or [None], ids=lambda each: each.name if each else "none")
def test_captured_machines_are_read(tmp_path: Path, archive: Path | None) -> None:
    if archive is None:
        pytest.skip("there are no captured machines")
    machine = unpack(archive, tmp_path)
    devices = read_pci_devices(machine)
    for device in devices:
        stated = (machine / "sys/bus/pci/devices" / device.address / "numa_node").read_text().strip()
        assert stated == "-1" or device.numa_node == int(stated)
    if archive.name.startswith("fakepcilocalities"):
        assert len(devices) == 30
        assert {device.numa_node for device in devices} >= {0, 1}
