"""Tests of detecting the kind of memory of NUMA nodes, on captured machines and from each kind of file.

Nodes 0 and 1 of these machines have CPUs, node 2 has no CPUs.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from compute_agent.host.reader import read_topology
from compute_agent.inventory.derive import InventorySettings, derive_provider_tree
from compute_agent.model.cpuset import CpuSets
from tests.compute_agent.host.captured import ARCHIVES, SHARED, unpack

NODE = "sys/devices/system/node"
TIERS = "sys/devices/virtual/memory_tiering"
DRAM = {0: "dram", 1: "dram"}


def machine(root: Path, files: Mapping[str, str], links: Mapping[str, str] | None = None) -> Path:
    told = {
        "sys/devices/system/cpu/online": "0-3",
        f"{NODE}/node0/cpulist": "0-1",
        f"{NODE}/node1/cpulist": "2-3",
        f"{NODE}/node2/cpulist": "",
        **{f"{NODE}/node{node}/meminfo": f"Node {node} MemTotal: 4096 kB" for node in range(3)},
        **files,
    }
    for path, target in (links or {}).items():
        link = root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    for path, text in told.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return root


def types(root: Path) -> dict[int, str]:
    return {node: kind.value for node, kind in read_topology(root).memory_types.items()}


def speed(node: int, bandwidth: int, latency: int = 0, access: int = 1) -> dict[str, str]:
    folder = f"{NODE}/node{node}/access{access}/initiators"
    return {f"{folder}/read_bandwidth": str(bandwidth), f"{folder}/read_latency": str(latency)}


def dax(device: str) -> tuple[dict[str, str], dict[str, str]]:
    """Make NUMA node 2 the memory of a DAX device with this path below sys/devices."""
    links = {"sys/bus/dax/devices/dax1.0": f"../../../devices/{device}/dax1.0"}
    return {
        f"sys/devices/{device}/dax1.0/target_node": "2",
        "sys/bus/dax/drivers/kmem/dax1.0": "",
        "sys/bus/dax/drivers/kmem/bind": "",
    }, links


CXL = {"sys/bus/cxl/devices/mem0/serial": "0x1"}
REGION = "platform/ACPI0017:00/root0/decoder0.0/region0/dax_region0"
NVDIMMS = "LNXSYSTM:00/LNXSYBUS:00/ACPI0012:00/ndbus0/region5/dax5.1"
DRAM_SPEED = {**speed(0, 1000, 100), **speed(1, 1000, 100)}
DRAM_TIER = {f"{TIERS}/memory_tier4/nodelist": "0-1"}


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({}, None),
        (CXL, None),
        ({**DRAM_SPEED, **speed(2, 2000)}, "hbm"),
        ({**DRAM_SPEED, **speed(2, 1999)}, None),
        ({**speed(0, 1000, access=0), **speed(2, 4000, access=0)}, "hbm"),
        ({**DRAM_SPEED, **speed(2, 500)}, None),
        ({**DRAM_SPEED, **CXL, **speed(2, 500)}, "cxl"),
        ({**DRAM_SPEED, **CXL, **speed(2, 1000, 250)}, "cxl"),
        ({**DRAM_SPEED, **CXL, **speed(2, 1000, 100)}, None),
        ({**DRAM_TIER, f"{TIERS}/memory_tier3/nodelist": "2"}, "hbm"),
        ({**DRAM_TIER, f"{TIERS}/memory_tier22/nodelist": "2"}, None),
        ({**DRAM_TIER, **CXL, f"{TIERS}/memory_tier22/nodelist": "2"}, "cxl"),
        ({**CXL, f"{TIERS}/memory_tier22/nodelist": "2"}, None),
        ({"proc/driver/nvidia/gpus/0004:05:00.0/numa_status": "Node:      2\nStatus:    online"}, "gpu"),
        ({"proc/driver/nvidia/gpus/0004:05:00.0/numa_status": "Node: two\nStatus: online"}, None),
        (speed(2, -5, -5), None),
        ({f"{NODE}/node2/access1/initiators/read_bandwidth": "fast"}, None),
        ({f"{NODE}/node2/meminfo": "Node 2 MemTotal: 0 kB", **DRAM_SPEED, **speed(2, 9000)}, None),
    ],
)
def test_files_show_the_kind_of_a_node_without_cpus(
    tmp_path: Path, files: Mapping[str, str], kind: str | None
) -> None:
    assert types(machine(tmp_path, files)) == DRAM | ({} if kind is None else {2: kind})


@pytest.mark.parametrize(
    ("device", "files", "kind"),
    [
        (NVDIMMS, {}, "pmem"),
        (NVDIMMS, {**DRAM_SPEED, **speed(2, 5000)}, "pmem"),
        (REGION, {}, "cxl"),
        ("platform/hmem.0", {}, None),
        ("platform/hmem.0", {**DRAM_SPEED, **speed(2, 5000)}, "hbm"),
    ],
)
def test_memory_of_a_device_has_the_kind_of_the_device(
    tmp_path: Path, device: str, files: Mapping[str, str], kind: str | None
) -> None:
    told, links = dax(device)
    assert types(machine(tmp_path, {**told, **files}, links)) == DRAM | ({} if kind is None else {2: kind})


def test_a_device_without_memory_is_ignored(tmp_path: Path) -> None:
    told, links = dax(NVDIMMS)
    del told["sys/bus/dax/drivers/kmem/dax1.0"]
    assert types(machine(tmp_path, told, links)) == DRAM


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        (
            "fakeheteromemtiers",
            {0: "dram", 1: "dram", 2: "hbm", 4: "hbm", 6: "pmem", 8: "pmem", 9: "pmem"},
        ),
        ("nvidiagpunumanodes", {0: "dram", 8: "dram", **dict.fromkeys(range(250, 256), "gpu")}),
        ("memorysidecaches", dict.fromkeys(range(4), "dram")),
        ("fakepcilocalities", dict.fromkeys(range(4), "dram")),
    ],
)
def test_memory_of_captured_machines(unpacked: Path, name: str, kinds: dict[int, str]) -> None:
    archive = next((path for path in ARCHIVES if path.name == f"{name}.tar.bz2"), None)
    if archive is None:
        pytest.skip(f"no captured machine {name} in {SHARED}/topologies")
    topology = read_topology(unpack(archive, unpacked))
    assert {node: kind.value for node, kind in topology.memory_types.items()} == kinds
    tree = derive_provider_tree(
        topology,
        CpuSets(frozenset(), topology.online, topology.online),
        InventorySettings(reserved_host_memory_mb=512),
        "11111111-0000-4000-8000-000000000001",
        "h",
    )
    offered = {
        node.name: (node.inventories["MEMORY_MB"].reserved, node.traits)
        for node in tree.nodes
        if "MEMORY_MB" in node.inventories
    }
    assert {name: traits - {"HW_NUMA_ROOT"} for name, (_, traits) in offered.items()} == {
        f"h_NUMA_{node}": {f"CUSTOM_MEMORY_TIER_{kind.upper()}"} for node, kind in kinds.items()
    }
    kept = {name: reserved for name, (reserved, _) in offered.items() if reserved}
    with_cpus = {f"h_NUMA_{node.id}" for node in topology.numa_nodes if node.cpus}
    assert sum(kept.values()) == 512
    assert kept.keys() <= with_cpus
