"""Tests of devices below a common switch or root complex: they get a common provider if their node has
several of these.
"""

import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.host.pci_devices import PciDevice, read_pci_devices
from compute_agent.host.reader import read_topology
from compute_agent.inventory.derive import InventorySettings, derive_provider_tree
from compute_agent.inventory.device_providers import (
    junctions_of,
    nearest_cpu_nodes,
    offer_devices,
    with_devices,
)
from compute_agent.inventory.device_spec import parse_device_specs
from compute_agent.inventory.provider_tree import ProviderTree, device_of
from compute_agent.model.cpuset import CpuSets
from tests.compute_agent.host.captured import ARCHIVES, unpack
from tests.compute_agent.host.pci_hosts import GPU, NIC, clustered_host, device, superchip_host, switched_host
from tests.compute_agent.inventory.machines import machine

ROOT = str(uuid.UUID(int=7))
SPECS = parse_device_specs(
    ['{"vendor_id": "10de", "resource_class": "gpu"}', '{"vendor_id": "15b3", "resource_class": "nic"}']
)


def tree_of(devices: list[PciDevice], shape: str = "numa", **fields: object) -> ProviderTree:
    topology = machine(**{"packages": 2, "cores": 4, **fields})  # type: ignore[arg-type]
    sets = CpuSets(dedicated=topology.online, shared=frozenset(), emulator=frozenset())
    tree = derive_provider_tree(topology, sets, InventorySettings(shape), ROOT, "h")
    return with_devices(tree, offer_devices(SPECS, devices).providers, topology)[0]


def ancestors(tree: ProviderTree) -> dict[str, list[str]]:
    """The names of the providers above each device by its address, the innermost first."""
    by_uuid = {node.uuid: node for node in tree.nodes}

    def above(parent: str | None) -> list[str]:
        return [by_uuid[parent].name, *above(by_uuid[parent].parent)] if parent else []

    return {node.device: above(node.parent) for node in tree.nodes if node.inventories and node.device}


def traits_of(tree: ProviderTree) -> dict[str, set[str]]:
    return {
        node.name: {trait.removeprefix("CUSTOM_PCIE_") for trait in node.traits if "PCIE" in trait}
        for node in tree.nodes
    }


@pytest.mark.parametrize("gpus", [8, 16])
def test_gpus_and_nics_are_below_their_switches(gpus: int) -> None:
    devices = switched_host(gpus)
    tree = tree_of(devices)
    above = ancestors(tree)
    for each in devices:
        switch = f"h_NUMA_{each.numa_node}_{each.bridges[1]}_SWITCH"
        assert above[each.address] == [switch, f"h_NUMA_{each.numa_node}", "h"]
        assert traits_of(tree)[switch] == {"ROOT", "SWITCH"}
    assert len([node for node in tree.nodes if node.name.endswith("_SWITCH")]) == gpus // 2
    assert all(not device_of(node.name) for node in tree.nodes if not node.inventories)


def test_a_node_with_one_switch_stands_for_it() -> None:
    tree = tree_of(switched_host(4))
    assert {tuple(each) for each in ancestors(tree).values()} == {("h_NUMA_0", "h"), ("h_NUMA_1", "h")}
    assert traits_of(tree)["h_NUMA_0"] == {"ROOT", "SWITCH"}


def test_switches_of_one_root_complex_are_below_it() -> None:
    port, switch = "pci0000:80/0000:80:01.0", "0000:81:00.0"
    tree = tree_of(
        [
            device(f"{port}/{switch}/0000:82:00.0/0000:83:00.0", GPU, 1),
            device(f"{port}/{switch}/0000:82:01.0/0000:84:00.0", NIC, 1),
            device("pci0000:80/0000:80:02.0/0000:85:00.0", NIC, 1),
            device("pci0000:a0/0000:a0:02.0/0000:a5:00.0", NIC, 1),
        ]
    )
    root, below = "h_NUMA_1_0000:80_ROOT", "h_NUMA_1_0000:81:00.0_SWITCH"
    assert ancestors(tree) == {
        "0000:83:00.0": [below, root, "h_NUMA_1", "h"],
        "0000:84:00.0": [below, root, "h_NUMA_1", "h"],
        "0000:85:00.0": [root, "h_NUMA_1", "h"],
        "0000:a5:00.0": ["h_NUMA_1", "h"],
    }
    assert traits_of(tree)[root] == {"ROOT"}
    assert traits_of(tree)[below] == {"SWITCH"}
    names = [node.uuid for node in tree.nodes]
    assert all(
        node.parent is None or names.index(node.parent) < names.index(node.uuid) for node in tree.nodes
    )


@pytest.mark.parametrize("shape", ["flat", "beside"])
def test_switches_are_below_a_root_that_has_no_nodes(shape: str) -> None:
    tree = tree_of(switched_host(8), shape)
    assert {tuple(each) for each in ancestors(tree).values()} == {
        (f"h_0000:{bus}:00.0_SWITCH", "h") for bus in ("11", "21", "31", "41")
    }


def test_functions_of_one_card_share_no_switch() -> None:
    tree = tree_of([device(f"pci0000:80/0000:80:01.0/0000:81:00.{n}", NIC, 1) for n in range(2)])
    assert {tuple(each) for each in ancestors(tree).values()} == {("h_NUMA_1", "h")}
    assert not any(traits_of(tree).values())


def test_gpus_with_memory_nodes_are_below_the_nodes_of_their_cpus() -> None:
    memory = {2 + number * 8: 1 << 20 for number in range(4)}
    nodes = [0, 1, *memory]
    near = {2: 0, 10: 0, 18: 1, 26: 1}
    distances = {
        one: {other: 10 if one == other else 80 if other == near.get(one) else 120 for other in nodes}
        for one in nodes
    }
    tree = tree_of(superchip_host(), more_nodes=memory, distances=distances)
    assert [above[0] for above in ancestors(tree).values()] == [
        "h_NUMA_0",
        "h_NUMA_0",
        "h_NUMA_1",
        "h_NUMA_1",
    ]


def test_devices_of_clustered_sockets_are_below_their_own_nodes() -> None:
    tree = tree_of(clustered_host(), nodes=2, l3_spans_nodes=True)
    above = ancestors(tree)
    assert [names[0] for names in above.values()] == [f"h_NUMA_{n}" for n in (0, 0, 1, 2, 2, 3)]
    assert traits_of(tree)["h_NUMA_0"] == {"ROOT"}
    assert traits_of(tree)["h_NUMA_1"] == set()


parts = st.lists(st.sampled_from("abc"), max_size=4)
places = st.lists(st.tuples(st.sampled_from("rs"), parts), min_size=1, max_size=8)


@given(places)
def test_junctions_are_the_last_common_parts_of_two_paths(drawn: list[tuple[str, list[str]]]) -> None:
    # Each bridge has its whole path as its name, as addresses are unique.
    paths = {
        f"{number}.0": tuple("".join([root, *way[:end]]) for end in range(len(way) + 1))
        for number, (root, way) in enumerate(drawn)
    }
    expected: dict[str, set[tuple[str, ...]]] = {address: set() for address in paths}
    commons = set()
    for one in paths:
        shared = [
            max((path[:end] for end in range(len(path) + 1) if path[:end] == paths[one][:end]), key=len)
            for other, path in paths.items()
            if other != one
        ]
        commons.add(max(shared, key=len, default=()))
    for address, path in paths.items():
        expected[address] = {each for each in commons if each and path[: len(each)] == each}
    chains = junctions_of(paths)
    assert {address: set(chain) for address, chain in chains.items()} == expected
    assert all(list(chain) == sorted(chain, key=len) for chain in chains.values())


@pytest.mark.slow
@pytest.mark.parametrize("archive", ARCHIVES or [None], ids=lambda each: each.name if each else "none")
def test_all_devices_of_captured_machines_have_a_place(tmp_path: Path, archive: Path | None) -> None:
    if archive is None:
        pytest.skip("there are no captured machines")
    captured = unpack(archive, tmp_path)
    topology, devices = read_topology(captured), read_pci_devices(captured)
    sets = CpuSets(dedicated=topology.online, shared=frozenset(), emulator=frozenset())
    tree = derive_provider_tree(topology, sets, InventorySettings("numa"), ROOT, "h")
    offered = offer_devices(parse_device_specs(["{}"]), devices).providers
    found, _ = with_devices(tree, offered, topology)
    assert sorted(ancestors(found)) == [each.address for each in offered]
    assert (
        len({node.name for node in found.nodes})
        == len({node.uuid for node in found.nodes})
        == len(found.nodes)
    )
    homes = nearest_cpu_nodes(topology)
    for each in offered:
        if each.numa_node in homes and len(topology.numa_nodes) > 1:
            assert f"h_NUMA_{homes[each.numa_node]}" in ancestors(found)[each.address]
