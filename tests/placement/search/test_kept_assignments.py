"""Assignments that a search keeps for later requests serve only requests to which they apply."""

from contextlib import suppress
from dataclasses import replace
from unittest.mock import patch
from urllib.parse import parse_qsl

import pytest

from placement.exceptions import InvalidRequest
from placement.microversion import MAX
from placement.read_model.snapshot import ModelSnapshot
from placement.schemas.candidates import parse_candidates
from placement.search import budget as module_of_budget
from placement.search.budget import SearchBudget
from tests.placement.search.asking import candidates, comparable, find
from tests.placement.search.brute import Found
from tests.placement.search.snapshots import Spec, build

EACH = {"VCPU": 4, "DISK_GB": 4, "CUSTOM_GPU": 4}
HOST = (
    Spec("cn", None, EACH),
    *(Spec(name, "cn", EACH) for name in ("numa0", "numa1", "numa2")),
    Spec("card", "numa0", EACH),
)
THREE = "resources{}=VCPU:1&resources_2=DISK_GB:1&resources_3=CUSTOM_GPU:1"
TIED = "&same_subtree=_1,_2"
ALONE = "&group_policy=isolate"


def found(snapshot: ModelSnapshot, query: str) -> list[Found]:
    return [*map(comparable, candidates(snapshot, query.replace("{}", "_1")))]


@pytest.mark.parametrize(
    ("before", "query"),
    [
        pytest.param(f"{THREE}{TIED}{ALONE}", f"{THREE}{TIED}&group_policy=none", id="isolation"),
        pytest.param(f"{THREE}&group_policy=none{TIED}", f"{THREE}{TIED}{ALONE}", id="no-isolation"),
        pytest.param(f"{THREE}{ALONE}", f"{THREE.replace('{}', '')}{ALONE}", id="unsuffixed"),
        pytest.param(f"{THREE}{ALONE}&same_subtree=_1,_2", f"{THREE}{ALONE}&same_subtree=_1,_3", id="rule"),
        pytest.param(
            f"resources_1=VCPU:1&resources_2=VCPU:2&resources_3=VCPU:2{ALONE}",
            f"resources_1=VCPU:2&resources_2=VCPU:2&resources_3=VCPU:1{ALONE}",
            id="equal-amounts",
        ),
        pytest.param(
            f"resources_1=VCPU:1,DISK_GB:1&resources_2=VCPU:1,DISK_GB:1{ALONE}",
            f"resources_1=VCPU:1,DISK_GB:1&resources_2=VCPU:1,CUSTOM_GPU:1{ALONE}",
            id="equal-resources",
        ),
    ],
)
def test_requests_of_other_forms_have_assignments_of_their_own(before: str, query: str) -> None:
    snapshot, fresh = build(*HOST), build(*HOST)
    found(snapshot, before)
    assert snapshot.first_assignments
    assert found(snapshot, query) == found(fresh, query)


def test_requests_of_one_form_share_assignments() -> None:
    snapshot = build(*HOST)
    query = f"resources_1=VCPU:1&resources_2=VCPU:1{ALONE}"
    found(snapshot, query)
    kept = {**snapshot.first_assignments}
    larger = query.replace("VCPU:1", "VCPU:3")
    assert found(snapshot.copy(), larger) == found(build(*HOST), larger)
    assert {**snapshot.first_assignments} == kept


def test_a_host_with_known_assignments_rests_as_often_as_other_hosts() -> None:
    """A limit shows the turns of the hosts; the assignments of only one of them are known before."""
    one = [Spec("one"), Spec("zone", "one"), *devices("one", 3), *devices("zone", 1)]
    other = [Spec("other"), *devices("other", 5)]
    query = f"resources_1=CUSTOM_GPU:1&resources_2=CUSTOM_GPU:1&resources_3=CUSTOM_GPU:1{ALONE}&limit="
    for limit in range(1, 85):
        snapshot = build(*one)
        found(snapshot, f"{query}{limit}")
        for provider in [*build(*one, *other)][len(one) :]:
            snapshot.put(provider)
        assert found(snapshot, f"{query}{limit}") == found(build(*one, *other), f"{query}{limit}")


def devices(parent: str, number: int) -> list[Spec]:
    return [Spec(f"{parent}-dev{at}", parent, {"CUSTOM_GPU": 1}) for at in range(number)]


def test_a_sharing_provider_with_other_relations_has_assignments_of_its_own() -> None:
    """Disks of one tree are equal below one parent, and differ below two parents."""
    shares = ["MISC_SHARES_VIA_AGGREGATE"]
    box, shelf = Spec("box"), Spec("shelf", "box")
    host = Spec("cn", None, {"VCPU": 4}, (), ["a"])
    disks = [Spec(f"disk{number}", "box", {"DISK_GB": 4}, shares, ["a"]) for number in range(6)]
    query = f"resources_1=DISK_GB:1&resources_2=DISK_GB:1&resources=VCPU:1{ALONE}"
    snapshot = build(box, shelf, *disks[:4], *[replace(each, parent="shelf") for each in disks[4:]], host)
    found(snapshot, query)
    for provider in [*snapshot]:
        if provider.name.startswith("disk"):
            snapshot.put(replace(provider, parent_id=1))
    assert found(snapshot, query) == found(build(box, shelf, *disks, host), query)


@pytest.mark.parametrize("steps", range(1, 40, 2))
def test_a_search_that_was_cut_off_keeps_no_part(steps: int) -> None:
    snapshot, query = build(*HOST), f"resources_1=VCPU:1&resources_2=VCPU:1{ALONE}"
    request = parse_candidates(parse_qsl(query), MAX)
    with patch.object(module_of_budget, "_STEPS", steps):
        budget = SearchBudget(seconds=0)  # the first check of the clock finds that out
    with suppress(InvalidRequest):
        find(snapshot, request, budget=budget)
    assert found(snapshot, query) == found(build(*HOST), query)


def test_many_options_are_not_kept() -> None:
    devices = [Spec(f"dev{number}", "cn", {"CUSTOM_GPU": 1}) for number in range(65)]
    snapshot = build(Spec("cn"), *devices)
    query = f"resources_1=CUSTOM_GPU:1&resources_2=CUSTOM_GPU:1{ALONE}&limit=20"
    assert len(found(snapshot, query)) == 20
    assert not snapshot.first_assignments


def test_results_for_many_rules_are_not_kept() -> None:
    """A query string has room for hundreds of rules, which would be in each key."""
    snapshot = build(*HOST)
    query = f"resources_1=VCPU:1&resources_2=VCPU:1{ALONE}"
    assert found(snapshot, f"{query}{TIED * 33}") == found(build(*HOST), f"{query}{TIED}")
    assert not snapshot.first_assignments
    assert not any(tree.shape.frame.within_reach for tree in snapshot.whole_trees().values())
    found(snapshot, f"{query}{TIED * 32}")
    assert snapshot.first_assignments
