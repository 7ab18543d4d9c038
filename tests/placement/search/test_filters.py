"""Tests of the filters of ``GET /resource_providers``."""

from urllib.parse import parse_qsl

import pytest

from placement.read_model.snapshot import ModelSnapshot
from placement.schemas.query import parse_provider_filter
from placement.search.budget import SearchBudget
from placement.search.request import filter_providers
from tests.placement.search import landscapes
from tests.placement.search.snapshots import Spec, build, inventory, name_to_uuid


def names(snapshot: ModelSnapshot, query: str) -> list[str]:
    """The names of the providers that pass the filters. ``{name}`` in the query stands for a uuid."""
    inserted = [part.split("}")[0] for part in query.split("{")[1:]]
    query = query.format(**{name: name_to_uuid(name) for name in inserted})
    return [
        provider.name
        for provider in filter_providers(
            snapshot, parse_provider_filter(parse_qsl(query), (1, 39)), SearchBudget()
        )
    ]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["left", "middle", "right", "disk1", "disk2", "net"]),
        ("name=middle", ["middle"]),
        ("name=nobody", []),
        ("uuid={right}", ["right"]),
        ("uuid={right}&name=left", []),
        ("required=HW_CPU_X86_AVX", ["left", "middle"]),
        ("required=HW_CPU_X86_AVX,!CUSTOM_FOO", ["middle"]),
        ("required=!HW_CPU_X86_AVX", ["right", "disk1", "disk2", "net"]),
        ("required=in:HW_CPU_X86_MMX,HW_NIC_ACCEL_TLS&required=in:CUSTOM_DISK_SSD,CUSTOM_FOO", ["right"]),
        ("required=HW_CPU_X86_AVX,!HW_CPU_X86_AVX", []),
        ("member_of={aggA}", ["left", "middle", "disk1", "disk2"]),
        ("member_of={aggA}&member_of={aggB}", ["middle", "disk2"]),
        ("member_of=in:{aggB},{aggC}", ["middle", "right", "disk2", "net"]),
        ("member_of=!{aggA}", ["right", "net"]),
        ("member_of=!in:{aggA},{aggC}", []),
        ("member_of={aggB}&member_of=!{aggA}", ["right"]),
        ("resources=DISK_GB:600", ["disk1", "disk2"]),
        ("resources=DISK_GB:1,VCPU:1", ["left", "right"]),
        ("resources=DISK_GB:1,VCPU:1&required=CUSTOM_DISK_SSD", ["right"]),
        ("in_tree={left}", ["left"]),
        ("in_tree={nobody}", []),
    ],
)
def test_provider_passes_all_filters(query: str, expected: list[str]) -> None:
    assert names(landscapes.granular(), query) == expected


def test_in_tree_names_any_provider_of_the_tree() -> None:
    snapshot = landscapes.numa_aggregates()
    assert names(snapshot, "in_tree={numa1_2}") == ["cn1", "numa1_1", "numa1_2"]
    assert names(snapshot, "in_tree={cn1}") == ["cn1", "numa1_1", "numa1_2"]


def test_aggregates_of_a_root_do_not_span_its_tree_here() -> None:
    assert names(landscapes.numa_aggregates(), "member_of={aggB}") == ["cn2"]


@pytest.mark.parametrize(
    ("amount", "passes"),
    [(1, False), (10, True), (500, True), (11, False), (910, True), (920, False), (1010, False)],
)
def test_resources_are_amounts_that_can_be_allocated_now(amount: int, passes: bool) -> None:
    disk = inventory(1024, reserved=10, min_unit=10, max_unit=1000, step_size=10)
    snapshot = build(Spec("cn", None, {"DISK_GB": disk}, used={"DISK_GB": 100}))
    assert bool(names(snapshot, f"resources=DISK_GB:{amount}")) == passes
