"""Capacity and stranded amounts of hosts with devices below their NUMA nodes."""

import pytest

from placement.read_model.snapshot import ModelSnapshot
from placement.schemas.query import parse_candidates
from placement.search.budget import SearchBudget
from placement_extras.planner.capacity import CloudHosts, FlavorCapacity, count_flavor
from placement_extras.planner.packing import FitBounds
from tests.placement.search.snapshots import Spec, build

NEAR = (
    ("resources_cpu", "PCPU:8"),
    ("required_node", "HW_NUMA_ROOT"),
    ("same_subtree", "_node,_cpu,_gpu"),
    ("resources_gpu", "CUSTOM_GPU:1"),
    ("group_policy", "none"),
)


def host(name: str, free_cpus: tuple[int, int], devices: int = 4) -> list[Spec]:
    """A host with two nodes of 16 CPUs, each with this many free devices."""
    specs = [Spec(name)]
    for node, free in enumerate(free_cpus):
        specs.append(Spec(f"{name}n{node}", name, {"PCPU": 16}, ["HW_NUMA_ROOT"], used={"PCPU": 16 - free}))
        specs += [Spec(f"{name}n{node}d{at}", f"{name}n{node}", {"CUSTOM_GPU": 1}) for at in range(devices)]
    return specs


def counted(snapshot: ModelSnapshot, *parameters: tuple[str, str]) -> FlavorCapacity:
    budget = SearchBudget(10)
    return count_flavor(CloudHosts(snapshot, budget), parse_candidates(parameters, (1, 39)))


def test_devices_of_a_node_without_cpus_are_stranded() -> None:
    found = counted(build(*host("a", (16, 0)), *host("b", (7, 7))), *NEAR)
    # two guests on the first node; the other six devices have no CPUs on their node
    assert found.fit == FitBounds(2, 2)
    assert found.candidate_hosts == 1
    (short,) = found.shortages
    assert (short.classes, short.stranded) == (("PCPU",), {"CUSTOM_GPU": 8})
    assert [each.root.name for each in short.examples] == ["b"]


@pytest.mark.parametrize(("asked", "guests"), [(1, 8), (2, 4), (3, 2), (4, 2)])
def test_guests_with_several_equal_devices_are_counted(asked: int, guests: int) -> None:
    groups = [(f"resources_g{at}", "CUSTOM_GPU:1") for at in range(asked)]
    together = ",".join(["_node", *(f"_g{at}" for at in range(asked))])
    node = (("required_node", "HW_NUMA_ROOT"), ("same_subtree", together), ("group_policy", "none"))
    found = counted(build(*host("a", (16, 16))), *groups, *node)
    assert found.fit == FitBounds(guests, guests)
