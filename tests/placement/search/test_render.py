"""Tests of the answer of ``GET /allocation_candidates`` in the format of each microversion."""

from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

import orjson
import pytest

from placement.read_model.provider import SHARES
from placement.read_model.snapshot import ModelSnapshot
from placement.schemas.candidates import parse_candidates
from placement.search.budget import SearchBudget
from placement.search.candidate_search import find_candidates
from placement.search.rendering import ProviderSummaries, SummaryShape
from placement.search.request import CandidatesRequest, RequestGroup
from tests.placement.search.asking import render
from tests.placement.search.snapshots import Spec, build, inventory, name_to_uuid

CN, NUMA, SS = map(name_to_uuid, ("cn", "numa", "ss"))
ONE_VCPU = CandidatesRequest((RequestGroup("", {"VCPU": 1}),))


@pytest.fixture
def snapshot() -> ModelSnapshot:
    return build(
        Spec("cn", None, {"MEMORY_MB": inventory(1000, allocation_ratio=1.5)}, ["T2", "T1"], ["agg"]),
        Spec("numa", "cn", {"VCPU": inventory(8, reserved=1), "CUSTOM_A": 3}, used={"VCPU": 2}),
        Spec("ss", None, {"DISK_GB": 100}, [SHARES], ["agg"], used={"DISK_GB": 7}),
        Spec("other", None, {"VCPU": 8}),
    )


def answer(snapshot: ModelSnapshot, query: str, minor: int) -> Any:
    request = parse_candidates(parse_qsl(query), (1, minor))
    return orjson.loads(render(snapshot, find_candidates(snapshot, request), (1, minor)))


def test_allocations_are_a_list_before_1_12(snapshot: ModelSnapshot) -> None:
    for minor in (10, 11):
        assert answer(snapshot, "resources=VCPU:2,DISK_GB:5", minor) == {
            "allocation_requests": [
                {
                    "allocations": [
                        {"resource_provider": {"uuid": NUMA}, "resources": {"VCPU": 2}},
                        {"resource_provider": {"uuid": SS}, "resources": {"DISK_GB": 5}},
                    ]
                }
            ],
            "provider_summaries": {
                NUMA: {"resources": {"VCPU": {"capacity": 7, "used": 2}}},
                SS: {"resources": {"DISK_GB": {"capacity": 100, "used": 7}}},
            },
        }


def test_allocations_are_by_provider_from_1_12(snapshot: ModelSnapshot) -> None:
    for minor in (12, 33):
        assert answer(snapshot, "resources=VCPU:2,DISK_GB:5", minor)["allocation_requests"] == [
            {"allocations": {NUMA: {"resources": {"VCPU": 2}}, SS: {"resources": {"DISK_GB": 5}}}}
        ]


def test_traits_are_shown_from_1_17(snapshot: ModelSnapshot) -> None:
    query = "resources=MEMORY_MB:1"
    assert answer(snapshot, query, 16)["provider_summaries"] == {
        CN: {"resources": {"MEMORY_MB": {"capacity": 1500, "used": 0}}}
    }
    assert answer(snapshot, query, 17)["provider_summaries"][CN]["traits"] == ["T1", "T2"]


def test_all_classes_are_shown_from_1_27(snapshot: ModelSnapshot) -> None:
    query = "resources=VCPU:2,DISK_GB:5"
    assert list(answer(snapshot, query, 26)["provider_summaries"][NUMA]["resources"]) == ["VCPU"]
    assert answer(snapshot, query, 27)["provider_summaries"] == {
        NUMA: {
            "resources": {"VCPU": {"capacity": 7, "used": 2}, "CUSTOM_A": {"capacity": 3, "used": 0}},
            "traits": [],
        },
        SS: {"resources": {"DISK_GB": {"capacity": 100, "used": 7}}, "traits": [SHARES]},
    }


def test_whole_trees_with_parents_and_roots_are_shown_from_1_29(snapshot: ModelSnapshot) -> None:
    summaries = answer(snapshot, "resources=VCPU:2,DISK_GB:5", 29)["provider_summaries"]
    assert {
        uuid: (summary["parent_provider_uuid"], summary["root_provider_uuid"])
        for uuid, summary in summaries.items()
    } == {CN: (None, CN), NUMA: (CN, CN), SS: (None, SS)}


def test_mappings_are_shown_from_1_34(snapshot: ModelSnapshot) -> None:
    query = "resources=VCPU:2,DISK_GB:5&resources1=MEMORY_MB:4"
    assert "mappings" not in answer(snapshot, query, 33)["allocation_requests"][0]
    (request,) = answer(snapshot, query, 34)["allocation_requests"]
    assert request["mappings"] == {"": [NUMA, SS], "1": [CN]}


def test_group_without_resources_is_only_in_the_mappings(snapshot: ModelSnapshot) -> None:
    query = "resources_1=VCPU:2&required_2=T1&same_subtree=_1,_2&group_policy=none"
    (request,) = answer(snapshot, query, 36)["allocation_requests"]
    assert request == {
        "allocations": {NUMA: {"resources": {"VCPU": 2}}},
        "mappings": {"_1": [NUMA], "_2": [CN]},
    }


def test_no_candidates_no_summaries(snapshot: ModelSnapshot) -> None:
    empty = {"allocation_requests": [], "provider_summaries": {}}
    for minor in (10, 12, 27, 29, 39):
        assert answer(snapshot, "resources=VCPU:99", minor) == empty


def test_summary_follows_its_provider(snapshot: ModelSnapshot) -> None:
    def used(minor: int) -> Any:
        summaries = answer(snapshot, "resources=VCPU:1&limit=1", minor)["provider_summaries"]
        return summaries[NUMA]["resources"]["VCPU"]["used"]

    assert [used(27), used(29)] == [2, 2]
    snapshot.put(replace(snapshot.providers[2], used={"VCPU": 3}))
    assert [used(27), used(29)] == [3, 3]


def test_summaries_are_made_once_and_dropped_with_their_trees(
    snapshot: ModelSnapshot,
) -> None:
    kept, shape = ProviderSummaries(), SummaryShape(traits=True, nested=True)
    other = snapshot.whole_trees()[4]
    (first,) = kept.of_trees(snapshot, [other], shape, SearchBudget())
    for used in range(50):
        snapshot.put(replace(snapshot.providers[2], used={"VCPU": used % 8}))
        trees = list(snapshot.whole_trees().values())
        assert other in trees
        summaries = kept.of_trees(snapshot, trees, shape, SearchBudget())
        assert summaries[trees.index(other)] is first
        assert len(kept) <= 1.1 * len(trees)


def test_outdated_summaries_are_at_most_a_tenth() -> None:
    hosts = 20
    snapshot = build(*(Spec(f"cn{host}", None, {"VCPU": 1000}) for host in range(hosts)))
    kept, counts = ProviderSummaries(), []
    for change in range(3 * hosts):
        snapshot.put(replace(snapshot.providers[1 + change % hosts], used={"VCPU": change}))
        render(snapshot, find_candidates(snapshot, ONE_VCPU), (1, 39), kept)
        counts.append(len(kept))
    assert (min(counts), max(counts)) == (hosts, hosts + 2)
