"""Tests of how much more of a class a consumer may take on this host, and from which provider."""

from dataclasses import replace

import pytest

from compute_agent.inventory.cpu_sets import CpuOptions, resolve_cpu_sets
from compute_agent.inventory.derive import InventorySettings, derive_provider_tree
from compute_agent.report.capacity import CpuLocation, FreeCapacity
from tests.compute_agent.inventory.machines import machine

ROOT = "11111111-0000-4000-8000-000000000000"
HOST = derive_provider_tree(
    machine(nodes=1, cores=8, threads=1),
    resolve_cpu_sets(CpuOptions(), machine(nodes=1, cores=8, threads=1)),
    InventorySettings(provider_tree="flat"),
    ROOT,
    "h",
    None,
)
ON_FOUR = CpuLocation(floating=frozenset({0, 1, 2, 3}))


def free(held=None, **changed):
    """The free capacity of a host with these fields of its VCPU inventory."""
    (node,) = HOST.nodes
    inventory = replace(node.inventories["VCPU"], **changed)
    return FreeCapacity(HOST, {ROOT: {"VCPU": inventory}}, held or {})


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({"total": 8, "reserved": 0, "allocation_ratio": 1.0, "max_unit": 8}, 8),
        ({"total": 8, "reserved": 3, "allocation_ratio": 1.0, "max_unit": 8}, 5),
        ({"total": 8, "reserved": 2, "allocation_ratio": 2.0, "max_unit": 100}, 12),
        ({"total": 8, "reserved": 0, "allocation_ratio": 0.4, "max_unit": 8}, 3),
        ({"total": 8, "reserved": 0, "allocation_ratio": 4.0, "max_unit": 6}, 6),
    ],
)
def test_the_largest_amount_is_that_of_placement(fields, most):
    assert free(**fields).fit_amounts({}, {"VCPU": most}, ON_FOUR) == {"VCPU": {ROOT: most}}
    assert "there is no room for" in free(**fields).fit_amounts({}, {"VCPU": most + 1}, ON_FOUR)


def test_held_amounts_are_not_free_and_returned_ones_are():
    fields = {"total": 8, "reserved": 1, "allocation_ratio": 1.0, "max_unit": 8}
    capacity = free({"other": {ROOT: {"VCPU": 4}}}, **fields)
    assert capacity.fit_amounts({}, {"VCPU": 3}, ON_FOUR) == {"VCPU": {ROOT: 3}}
    assert capacity.fit_amounts({}, {"VCPU": 4}, ON_FOUR) == "there is no room for 4 VCPU (free: h 3)"
    capacity.take_amount(ROOT, "VCPU", 1)
    assert capacity.fit_amounts({}, {"VCPU": 3}, ON_FOUR) == "there is no room for 3 VCPU (free: h 2)"
    capacity.take_amount(ROOT, "VCPU", -3)
    assert capacity.fit_amounts({}, {"VCPU": 5}, ON_FOUR) == {"VCPU": {ROOT: 5}}


def test_max_unit_counts_what_the_consumer_holds_already():
    fields = {"total": 8, "reserved": 0, "allocation_ratio": 1.0, "max_unit": 4}
    capacity = free({"me": {ROOT: {"VCPU": 3}}}, **fields)
    assert capacity.fit_amounts({ROOT: {"VCPU": 3}}, {"VCPU": 1}, ON_FOUR) == {"VCPU": {ROOT: 1}}
    assert (
        capacity.fit_amounts({ROOT: {"VCPU": 3}}, {"VCPU": 2}, ON_FOUR)
        == "there is no room for 2 VCPU (free: h 5, but at most 4 in one allocation)"
    )


def test_a_class_that_is_not_reported_yet_has_none_left():
    capacity = FreeCapacity(HOST, {}, {})
    assert capacity.fit_amounts({}, {"VCPU": 1}, ON_FOUR) == "there is no room for 1 VCPU (free: h 0)"


NODES = machine(nodes=2, cores=4)
"""CPUs 0-3 and 4-7, the first two of each dedicated."""
PARTED = derive_provider_tree(
    NODES,
    resolve_cpu_sets(CpuOptions(cpu_dedicated_set="0-1,4-5", cpu_shared_set="2-3,6-7"), NODES),
    InventorySettings(provider_tree="numa", cpu_allocation_ratio=1.0, reserved_host_memory_mb=0),
    ROOT,
    "h",
    None,
)
UUIDS = {node.uuid: node.name for node in PARTED.nodes}


def parted(amounts, location, held=None):
    """The amounts that are taken from each NUMA node, by name, if others hold amounts of the first node."""
    holding = {uuid: held for uuid, name in UUIDS.items() if name == "h_NUMA_0" and held}
    capacity = FreeCapacity(
        PARTED, {node.uuid: node.inventories for node in PARTED.nodes}, {"other": holding}
    )
    found = (
        capacity.fit_together({}, amounts, location)
        if isinstance(location, frozenset)
        else capacity.fit_amounts({}, amounts, location)
    )
    if isinstance(found, str):
        return found
    return {name: {UUIDS[uuid]: part for uuid, part in parts.items()} for name, parts in found.items()}


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        (CpuLocation(own=frozenset({0, 1})), {"PCPU": {"h_NUMA_0": 2}}),
        (CpuLocation(own=frozenset({0, 5})), {"PCPU": {"h_NUMA_0": 1, "h_NUMA_1": 1}}),
        (CpuLocation(own=frozenset({4, 5})), {"PCPU": {"h_NUMA_1": 2}}),
        (CpuLocation(own=frozenset({4, 5}), floating=frozenset({2, 3})), {"PCPU": {"h_NUMA_1": 2}}),
        (CpuLocation(floating=frozenset({6, 7})), {"PCPU": {"h_NUMA_1": 2}}),
        (CpuLocation(own=frozenset({4, 5}), floating=frozenset({2, 3})), {"VCPU": {"h_NUMA_0": 2}}),
        (CpuLocation(own=frozenset({4, 5})), {"VCPU": {"h_NUMA_1": 2}}),
        (CpuLocation(own=frozenset({4, 5}), floating=frozenset({2, 3})), {"MEMORY_MB": {"h_NUMA_1": 2}}),
        (CpuLocation(), {"PCPU": {"h_NUMA_0": 2}}),
    ],
)
def test_a_class_is_taken_where_those_cpus_are_that_it_is_about(location, expected):
    """VCPU is taken from the zone where the guest floats. Other classes are taken where its own CPUs are, if
    it has any.
    """
    ((name, _),) = expected.items()
    assert parted({name: 2}, location) == expected


def test_missing_amounts_at_the_guests_location_come_from_elsewhere():
    here = CpuLocation(own=frozenset({0, 1}))
    assert parted({"PCPU": 2}, here, {"PCPU": 1}) == {"PCPU": {"h_NUMA_0": 1, "h_NUMA_1": 1}}
    assert parted({"PCPU": 3}, here, {"PCPU": 1}) == {"PCPU": {"h_NUMA_0": 1, "h_NUMA_1": 2}}
    assert parted({"PCPU": 4}, here, {"PCPU": 1}) == (
        "there is no room for 4 PCPU (free: h_NUMA_0 1, h_NUMA_1 2)"
    )


def test_amounts_without_location_go_to_one_zone_that_has_enough():
    origin = frozenset({0, 1, 4})
    assert parted({"PCPU": 2, "VCPU": 2}, origin) == {"PCPU": {"h_NUMA_0": 2}, "VCPU": {"h_NUMA_0": 2}}
    assert parted({"PCPU": 2}, origin, {"PCPU": 1}) == {"PCPU": {"h_NUMA_1": 2}}
    assert parted({"PCPU": 1, "VCPU": 2}, origin, {"VCPU": 1}) == {
        "PCPU": {"h_NUMA_1": 1},
        "VCPU": {"h_NUMA_1": 2},
    }
    assert parted({"PCPU": 2}, frozenset({4, 5, 0})) == {"PCPU": {"h_NUMA_1": 2}}
    assert parted({"PCPU": 3}, origin) == {"PCPU": {"h_NUMA_0": 2, "h_NUMA_1": 1}}
