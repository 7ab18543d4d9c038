"""Tests of the demands of a domain's XML on the CPUs and the memory of the guest."""

import pytest

from compute_agent.drivers.libvirt.domain_metadata import parse_constraints
from compute_agent.model.guest import UNCONSTRAINED, GuestCell, PlacementConstraints


def domain(numatune="", cells=""):
    return f"<domain><vcpu>4</vcpu><cpu><numa>{cells}</numa></cpu><numatune>{numatune}</numatune></domain>"


TWO_CELLS = "<cell id='0' cpus='0-1' memory='1'/><cell id='1' cpus='2,3' memory='1'/>"


@pytest.mark.parametrize(
    ("numatune", "nodes"),
    [
        ("", ()),
        ("<memory mode='strict' nodeset='0-1'/>", (0, 1)),
        ("<memory nodeset='1'/>", (1,)),
        ("<memory mode='strict' placement='auto'/>", ()),
        ("<memory mode='preferred' nodeset='1'/>", ()),
        ("<memory mode='interleave' nodeset='0-1'/>", ()),
        ("<memory mode='restrictive' nodeset='1'/>", ()),
    ],
)
def test_strict_memory_is_a_demand_and_no_other(numatune, nodes):
    assert parse_constraints(domain(numatune)) == PlacementConstraints(frozenset(nodes))


def test_cells_with_strict_memory_of_nodes_are_demands():
    """The XML is the one that Nova writes for a guest of two NUMA nodes."""
    numatune = (
        "<memory mode='strict' nodeset='0-1'/>"
        "<memnode cellid='0' mode='strict' nodeset='1'/><memnode cellid='1' mode='strict' nodeset='0'/>"
    )
    found = parse_constraints(domain(numatune, TWO_CELLS))
    expected = (GuestCell(frozenset({0, 1}), frozenset({1})), GuestCell(frozenset({2, 3}), frozenset({0})))
    assert found == PlacementConstraints(frozenset({0, 1}), expected)
    assert found.memory_nodes == {0, 1}


def test_cells_without_a_number_are_counted_and_those_of_other_modes_left_out():
    numatune = (
        "<memnode cellid='1' mode='strict' nodeset='1'/><memnode cellid='0' mode='preferred' nodeset='0'/>"
    )
    found = parse_constraints(domain(numatune, TWO_CELLS.replace(" id='0'", "").replace(" id='1'", "")))
    assert found.cells == (GuestCell(frozenset({2, 3}), frozenset({1})),)


def test_cells_that_do_not_exist_demand_nothing():
    assert parse_constraints(domain("<memnode cellid='7' mode='strict' nodeset='1'/>")) == UNCONSTRAINED
    assert parse_constraints("<domain/>") == UNCONSTRAINED


@pytest.mark.parametrize(
    ("xml", "why"), [("", "XML"), (domain("<memory mode='strict' nodeset='x'/>"), "bad CPU set 'x'")]
)
def test_an_invalid_demand_is_an_error(xml, why):
    with pytest.raises(ValueError, match=why):
        parse_constraints(xml)
