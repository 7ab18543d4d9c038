"""Tests that the search begins at the trees that have the rarest requested property."""

import random
from collections import Counter

import pytest

from placement.read_model.provider import SHARES
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import SearchBudget
from placement.search.conditions import needs_of
from placement.search.request import CandidatesRequest, RequestGroup
from placement.search.roots import RootFilter, SharingProviders, possible_roots
from tests.placement.search.snapshots import Spec, build, name_to_uuid

HOSTS = 20


def cloud(*, pool: bool) -> ModelSnapshot:
    """A snapshot of hosts with a device each, and a sharing provider. The fifth host has a trait and an
    aggregate of its own.
    """
    fifth = {"traits": ("CUSTOM_RARE",), "aggregates": ("rare",)}
    hosts = [
        Spec(f"cn{number}", None, {"VCPU": 8}, **(fifth if number == 5 else {}))  # type: ignore[arg-type]  # of many types
        for number in range(HOSTS)
    ]
    devices = [
        Spec(f"dev{number}", f"cn{number}", {"CUSTOM_RARE" if number == 5 else "CUSTOM_DEV": 1})
        for number in range(HOSTS)
    ]
    shared = [Spec("pool", None, {"DISK_GB": 9}, (SHARES,), ("far",))] if pool else []
    return build(*hosts, *devices, *shared)


def looked_at(snapshot: ModelSnapshot, *groups: RequestGroup) -> list[str]:
    request = CandidatesRequest(groups, group_policy="none")
    sharing = SharingProviders(snapshot, SearchBudget())
    possible = possible_roots(snapshot, request, needs_of(request), sharing)
    roots = list(possible)
    assert roots == sorted(set(roots))
    firsts = set()
    for seed in range(9):
        anywhere = list(possible.from_anywhere(random.Random(seed)))
        assert sorted(anywhere) == roots
        firsts.update(anywhere[:1])
        few = possible.only_among(set(roots[:2]))
        assert sorted(few.from_anywhere(random.Random(seed))) == roots[:2]
    assert len(firsts) > 1 or len(roots) < 3
    return [str(snapshot.providers[root].name) for root in roots]


@pytest.mark.parametrize("pool", [False, True], ids=["nothing is shared", "a pool shares"])
@pytest.mark.parametrize(
    "named",
    [
        {"in_tree": name_to_uuid("cn5")},
        {"in_tree": name_to_uuid("dev5")},
        {"required": (frozenset({"CUSTOM_RARE"}),)},
        {"member_of": (frozenset({name_to_uuid("rare")}),)},
        {"required": (frozenset({"CUSTOM_RARE", "CUSTOM_NOBODY"}),)},
    ],
    ids=["its tree", "a tree by another provider of it", "a trait", "an aggregate", "one of two traits"],
)
def test_a_rare_name_limits_the_search_to_its_trees(named: dict[str, object], pool: bool) -> None:
    assert looked_at(cloud(pool=pool), RequestGroup("", {"VCPU": 1}, **named)) == ["cn5"]  # type: ignore[arg-type]  # of many types


@pytest.mark.parametrize("pool", [False, True], ids=["nothing is shared", "a pool shares"])
def test_a_rare_class_limits_the_search_to_its_trees(pool: bool) -> None:
    groups = RequestGroup("", {"VCPU": 1}), RequestGroup("_device", {"CUSTOM_RARE": 1})
    assert looked_at(cloud(pool=pool), *groups) == ["cn5"]


@pytest.mark.parametrize("pool", [False, True], ids=["nothing is shared", "a pool shares"])
@pytest.mark.parametrize(
    "group",
    [
        RequestGroup("", {"VCPU": 1}, in_tree=name_to_uuid("nowhere")),
        RequestGroup("", {"VCPU": 1}, required=(frozenset({"CUSTOM_NOBODY"}),)),
        RequestGroup("", {"VCPU": 1}, member_of=(frozenset({name_to_uuid("nobody")}),)),
        RequestGroup("", {"CUSTOM_NONE": 1}),
        RequestGroup("", {"VCPU": 9}),
    ],
    ids=["a tree", "a trait", "an aggregate", "a class", "an amount"],
)
def test_a_name_without_providers_is_searched_for_nowhere(group: RequestGroup, pool: bool) -> None:
    assert looked_at(cloud(pool=pool), group) == []


def test_a_request_without_rare_names_is_searched_for_everywhere() -> None:
    assert len(looked_at(cloud(pool=False), RequestGroup("", {"VCPU": 8}))) == HOSTS


@pytest.mark.parametrize("pool", [False, True], ids=["nothing is shared", "a pool shares"])
@pytest.mark.parametrize(
    "named",
    [
        {"required": (frozenset({"CUSTOM_A", "CUSTOM_B"}),)},
        {"member_of": (frozenset({name_to_uuid("one"), name_to_uuid("other")}),)},
    ],
    ids=["traits", "aggregates"],
)
def test_alternatives_are_searched_for_where_any_of_them_is(named: dict[str, object], pool: bool) -> None:
    hosts = (
        Spec("a", None, {"VCPU": 1}, ("CUSTOM_A",), ("one",)),
        Spec("b", None, {"VCPU": 1}, ("CUSTOM_B",), ("other",)),
        *(Spec(f"c{number}", None, {"VCPU": 1}) for number in range(9)),
    )
    shared = [Spec("pool", None, {"DISK_GB": 9}, (SHARES,), ("far",))] if pool else []
    group = RequestGroup("", {"VCPU": 1}, **named)  # type: ignore[arg-type]  # of many types
    assert looked_at(build(*hosts, *shared), group) == ["a", "b"]


def test_each_of_a_few_possible_roots_is_equally_likely_to_be_first() -> None:
    few = {5, 6, 7, 900}
    for possible in (RootFilter(range(1, 1001), ((few,),)), RootFilter(range(1, 1001)).only_among(few)):
        firsts = Counter(next(possible.from_anywhere(random.Random(seed))) for seed in range(400))
        assert firsts.keys() == few
        assert min(firsts.values()) > 50
