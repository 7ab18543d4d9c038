"""Tests that the table of resource classes has an entry for each class that a host can offer."""

import pytest

from compute_agent.inventory.cpu_sets import CpuOptions, resolve_cpu_sets
from compute_agent.inventory.derive import SHAPES, InventorySettings, derive_provider_tree
from compute_agent.model.resource import (
    CPU_CLASSES,
    EXCLUSIVE,
    HOST_OWNED,
    HUGE_PAGES,
    MOVABLE,
    RESOURCE_CLASSES,
    STOCK_NAMES,
)
from tests.compute_agent.inventory.machines import machine

ROOT = "8f0c0000-0000-4000-8000-000000000000"


@pytest.mark.parametrize("shape", SHAPES)
def test_all_classes_of_an_inventory_are_in_the_table(shape):
    topology = machine(cores=4)
    sets = resolve_cpu_sets(CpuOptions(cpu_dedicated_set="0-1", cpu_shared_set="2-3"), topology)
    tree = derive_provider_tree(
        topology, sets, InventorySettings(provider_tree=shape, disk_gb=10), ROOT, "host"
    )
    offered = {name for node in tree.nodes for name in node.inventories}
    assert {"PCPU", "VCPU", "MEMORY_MB", "DISK_GB"} <= offered <= {one.name for one in RESOURCE_CLASSES}


def test_the_table_has_the_properties_of_each_class():
    assert {"PCPU", "VCPU", "CUSTOM_RECLAIMED_VCPU"} == CPU_CLASSES
    pages = set(HUGE_PAGES.values())
    assert {"PCPU", "VCPU", "MEMORY_MB"} | pages == MOVABLE
    assert {"PCPU", "VCPU", "MEMORY_MB", "LLC", "CUSTOM_LLC", "MBA", "CUSTOM_MBA"} | pages == HOST_OWNED
    assert pages < EXCLUSIVE
    assert STOCK_NAMES == {"LLC": "CUSTOM_LLC", "MBA": "CUSTOM_MBA"}
