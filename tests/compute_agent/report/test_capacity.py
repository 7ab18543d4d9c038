"""How much more of a class a consumer may take, and from which provider."""

from dataclasses import replace

import pytest

from compute_agent.inventory.cpu_sets import CpuOptions, resolve
from compute_agent.inventory.derive import Settings, derive
from compute_agent.report.capacity import CpuLocation, FreeCapacity
from tests.compute_agent.inventory.machines import machine

ROOT = "11111111-0000-4000-8000-000000000000"
HOST = derive(
    machine(nodes=1, cores=8, threads=1),
    resolve(CpuOptions(), machine(nodes=1, cores=8, threads=1)),
    Settings(provider_tree="flat"),
    ROOT,
    "h",
    None,
)
ON_FOUR = CpuLocation(floating=frozenset({0, 1, 2, 3}))


def free(held=None, **changed):
    """The capacity of a host with these fields of its VCPU inventory."""
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
def test_as_much_is_taken_as_placement_would_give(fields, most):
    assert free(**fields).fit({}, {"VCPU": most}, ON_FOUR) == {"VCPU": {ROOT: most}}
    assert "there is no room for" in free(**fields).fit({}, {"VCPU": most + 1}, ON_FOUR)


def test_what_others_hold_is_gone_and_what_is_given_back_is_there():
    fields = {"total": 8, "reserved": 1, "allocation_ratio": 1.0, "max_unit": 8}
    capacity = free({"other": {ROOT: {"VCPU": 4}}}, **fields)
    assert capacity.fit({}, {"VCPU": 3}, ON_FOUR) == {"VCPU": {ROOT: 3}}
    assert capacity.fit({}, {"VCPU": 4}, ON_FOUR) == "there is no room for 4 VCPU (free: h 3)"
    capacity.take(ROOT, "VCPU", 1)
    assert capacity.fit({}, {"VCPU": 3}, ON_FOUR) == "there is no room for 3 VCPU (free: h 2)"
    capacity.take(ROOT, "VCPU", -3)
    assert capacity.fit({}, {"VCPU": 5}, ON_FOUR) == {"VCPU": {ROOT: 5}}


def test_max_unit_counts_what_the_consumer_holds_already():
    fields = {"total": 8, "reserved": 0, "allocation_ratio": 1.0, "max_unit": 4}
    capacity = free({"me": {ROOT: {"VCPU": 3}}}, **fields)
    assert capacity.fit({ROOT: {"VCPU": 3}}, {"VCPU": 1}, ON_FOUR) == {"VCPU": {ROOT: 1}}
    assert (
        capacity.fit({ROOT: {"VCPU": 3}}, {"VCPU": 2}, ON_FOUR) == "there is no room for 2 VCPU (free: h 1)"
    )


def test_a_class_that_is_not_reported_yet_has_none_left():
    capacity = FreeCapacity(HOST, {}, {})
    assert capacity.fit({}, {"VCPU": 1}, ON_FOUR) == "there is no room for 1 VCPU (free: h 0)"
