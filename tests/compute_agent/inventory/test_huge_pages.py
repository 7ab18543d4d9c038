"""Tests of huge pages as inventories of their NUMA nodes, subtracted from the nodes' memory."""

from dataclasses import replace

import pytest

from compute_agent.inventory.derive import SHAPES
from compute_agent.inventory.memory import parse_reserved
from compute_agent.inventory.options import settings
from compute_agent.model.messages import ConfigError
from tests.compute_agent.builders import load_text
from tests.compute_agent.inventory.machines import machine
from tests.compute_agent.inventory.trees import totals, tree_of

PAGES = {0: {2048: 512, 1048576: 1}, 1: {2048: 256, 4: 7}}


def host(pages=PAGES):
    """A host with two NUMA nodes of 8 GiB each."""
    topology = machine(nodes=2, cores=2)
    nodes = (replace(node, huge_pages=pages.get(node.id, {})) for node in topology.numa_nodes)
    return replace(topology, numa_nodes=tuple(nodes))


def of(tree, name):
    return next(node.inventories for node in tree.nodes if node.name == name)


def test_pages_are_offered_by_their_node_and_memory_is_what_is_beside_them():
    tree = tree_of(host(), huge_pages=True, reserved_huge_pages={(0, 2048): 64})
    one, two = of(tree, "host_NUMA_0"), of(tree, "host_NUMA_1")
    assert (one["CUSTOM_HUGE_PAGES_2MB"].total, one["CUSTOM_HUGE_PAGES_2MB"].reserved) == (512, 64)
    assert one["CUSTOM_HUGE_PAGES_1GB"].total == 1
    assert one["MEMORY_MB"].total == 8192 - 1024 - 1024
    assert (two["CUSTOM_HUGE_PAGES_2MB"].total, two["MEMORY_MB"].total) == (256, 8192 - 512)
    assert {one[name].allocation_ratio for name in one if "PAGES" in name} == {1.0}


def test_in_a_flat_tree_they_are_the_hosts():
    (root,) = tree_of(host(), provider_tree="flat", huge_pages=True).nodes
    assert root.inventories["CUSTOM_HUGE_PAGES_2MB"].total == 768
    assert root.inventories["MEMORY_MB"].total == 2 * 8192 - 1536 - 1024


@pytest.mark.parametrize("shape", SHAPES)
def test_disabled_huge_pages_are_not_offered_and_take_no_memory(shape):
    assert totals(tree_of(host(), provider_tree=shape)) == totals(tree_of(host({}), provider_tree=shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_no_memory_is_offered_twice_whatever_the_shape(shape):
    tree = totals(tree_of(host(), provider_tree=shape, huge_pages=True))
    size = {"MEMORY_MB": 1, "CUSTOM_HUGE_PAGES_2MB": 2, "CUSTOM_HUGE_PAGES_1GB": 1024}
    offered = sum(size.get(name, 0) * total for found in tree.values() for name, total in found.items())
    assert offered == 2 * 8192


def test_a_node_with_all_memory_in_pages_offers_no_other_memory():
    tree = tree_of(host({1: {2048: 4096}}), huge_pages=True)
    assert "MEMORY_MB" not in of(tree, "host_NUMA_1")


def test_the_option_is_novas():
    entries = ["node:0,size:2048,count:64", "node: 1, size: 1GB, count: 1", "count:3,node:0,size:2MB"]
    assert parse_reserved(entries[:2]) == {(0, 2048): 64, (1, 1048576): 1}
    with pytest.raises(ConfigError, match="another entry has the same node and size"):
        parse_reserved(entries)


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "64",
        "node:0,size:2048",
        "node:0,size:2048,count:-1",
        "node:a,size:1,count:1",
        "size:1,count:1,x:1",
    ],
)
def test_a_wrong_entry_is_refused(entry):
    with pytest.raises(ConfigError, match="the form is node:0,size:2048,count:64"):
        parse_reserved([entry])


@pytest.mark.parametrize("reserved", [{(0, 2048): 513}, {(2, 2048): 1}, {(1, 1048576): 1}, {(1, 4): 1}])
def test_only_existing_pages_can_be_reserved(reserved):
    with pytest.raises(ConfigError, match=r"\[compute\] reserved_huge_pages: .* more than the"):
        tree_of(host(), huge_pages=True, reserved_huge_pages=reserved)


def test_the_ini_file_has_an_entry_a_line(tmp_path):
    lines = "huge_pages = true\nreserved_huge_pages = node:0,size:2048,count:2\n"
    more = "reserved_huge_pages = node:1,size:2048,count:3\n"
    conf = load_text(tmp_path, f"[DEFAULT]\nstate_path = {tmp_path}\n[compute]\n{lines}{more}")
    found = settings(conf)
    assert (found.huge_pages, found.reserved_huge_pages) == (True, {(0, 2048): 2, (1, 2048): 3})
