"""Tests of the sentences of explanations, as operators read them."""

import pytest

from placement.read_model.snapshot import ModelSnapshot
from placement.schemas.candidates import parse_candidates
from placement.search.budget import SearchBudget
from placement.search.diagnosis.explanation import explain_request
from placement.search.diagnosis.sentences import explanation_sentence, printable_name
from placement.search.request import CandidatesRequest, RequestGroup
from tests.placement.search.snapshots import Spec, build, inventory, name_to_uuid

NOBODY = name_to_uuid("nobody")
NODE = ("HW_NUMA_ROOT",)


def said(snapshot: ModelSnapshot, *parameters: tuple[str, str]) -> str:
    return explanation_sentence(
        explain_request(snapshot, parse_candidates(parameters, (1, 39)), SearchBudget())
    )


@pytest.fixture
def flat() -> ModelSnapshot:
    """The worked example of the package, with an additional host without CPUs."""
    return build(
        Spec("cn1", None, {"VCPU": 8}, ["CUSTOM_A"], ["rack"], {"VCPU": 6}),
        Spec("cn2", None, {"VCPU": 8}, ["CUSTOM_A"], ["rack"], {"VCPU": 3}),
        Spec("cn3", None, {"VCPU": 8}),
        Spec("cn4", None, {"DISK_GB": 8}),
    )


def test_the_worked_example(flat: ModelSnapshot) -> None:
    assert said(flat, ("resources", "VCPU:6"), ("required", "CUSTOM_A")) == (
        "0 of 4 hosts: 2 have less than 6 VCPU free (most: 5 on cn2), 1 has no VCPU, 1 lacks CUSTOM_A; "
        "asking for 5 VCPU would leave 1 host"
    )


def test_the_change_that_helps_most_hosts_is_named(flat: ModelSnapshot) -> None:
    assert said(flat, ("resources", "VCPU:2"), ("required", "CUSTOM_B")).endswith(
        "; leaving out required=CUSTOM_B would leave 3 hosts"
    )


def test_numa_nodes_are_called_so_and_groups_by_their_suffix() -> None:
    snapshot = build(
        Spec("h16"), Spec("h16_0", "h16", {"PCPU": 30}, NODE, (), {"PCPU": 9}),
        Spec("h17"), Spec("h17_0", "h17", {"PCPU": 30}, NODE, (), {"PCPU": 2}),
    )  # fmt: skip
    assert said(snapshot, ("resources_CPU", "PCPU:30")) == (
        "0 of 2 hosts: 2 have no NUMA node with 30 PCPU free for _CPU (most: 28 on h17); "
        "asking for 28 PCPU for _CPU would leave 1 host"
    )


def test_a_reason_is_true_of_all_its_hosts() -> None:
    flat = Spec("flat", None, {"VCPU": 8})
    nodes = [Spec("nodes"), Spec("node", "nodes", {"VCPU": 20}, NODE)]
    asked = ("resources", "VCPU:30")
    assert "1 has less than 30 VCPU free (most: 8 on flat)" in said(build(flat), asked)
    assert "1 has no NUMA node with 30 VCPU free (most: 20 on nodes)" in said(build(*nodes), asked)
    assert "2 have no provider with 30 VCPU free (most: 20 on nodes)" in said(build(flat, *nodes), asked)
    steps = [Spec(f"s{step}", None, {"VCPU": inventory(60, step_size=step)}) for step in (4, 7)]
    assert "1 gives VCPU in steps of 4" in said(build(steps[0]), asked)
    assert "2 give VCPU in other steps;" in said(build(*steps), asked)


def test_the_free_amount_of_a_pool_is_named_with_the_pool() -> None:
    pool = Spec("pool", None, {"DISK_GB": 8}, ["MISC_SHARES_VIA_AGGREGATE"], ["rack"], {"DISK_GB": 3})
    hosts = [Spec(f"cn{number}", None, {"VCPU": 8}, (), ["rack"]) for number in (1, 2)]
    asked = ("resources", "VCPU:1,DISK_GB:6")
    assert "2 have no pool with 6 DISK_GB free (most: 5 on pool)" in said(build(*hosts, pool), asked)
    disk = Spec("cn3", None, {"VCPU": 8, "DISK_GB": 4})
    assert "3 have no provider with 6 DISK_GB free (most: 5 on pool)" in said(
        build(*hosts, disk, pool), asked
    )


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ([("resources", "VCPU:2"), ("member_of", f"!{name_to_uuid('rack')}")], "2 are in the forbidden agg"),
        ([("resources", "VCPU:2"), ("member_of", name_to_uuid("rack"))], "1 is not in aggregate"),
        ([("resources", "VCPU:2"), ("in_tree", name_to_uuid("cn3"))], "2 are not the tree of"),
        (
            [("resources", "VCPU:2"), ("in_tree", NOBODY)],
            f"{NOBODY} (there is no such provider), 1",
        ),
        ([("resources", "VCPU:2"), ("member_of", NOBODY)], f"not in aggregate {NOBODY} (no provider is), 1 "),
        ([("resources", "VCPU:2"), ("required", "!CUSTOM_A")], "2 have CUSTOM_A, which is forbidden"),
        ([("resources", "VCPU:1"), ("required", "in:X,Y")], "3 lack any of X, Y"),
        ([("resources", "VCPU:1"), ("root_required", "X")], "3 lack X at their root"),
        ([("resources", "VCPU:1"), ("root_required", "!CUSTOM_A")], "2 have CUSTOM_A at their root, which"),
        (
            [("resources1", "VCPU:1"), ("resources2", "VCPU:1"), ("group_policy", "isolate")],
            "3 have too few providers for isolated groups",
        ),
        (
            [("resources1", "VCPU:5"), ("resources2", "VCPU:5"), ("group_policy", "none")],
            "2 can serve each part, but not all at once",
        ),
    ],
)
def test_every_condition_has_its_words(
    flat: ModelSnapshot, parameters: list[tuple[str, str]], reason: str
) -> None:
    assert reason in said(flat, *parameters)


@pytest.mark.parametrize(
    ("portions", "amount", "reason"),
    [
        ({"min_unit": 4}, 2, "1 gives no less than 4 VCPU at once"),
        ({"max_unit": 2}, 4, "1 gives no more than 2 VCPU at once; asking for 2 VCPU would leave 1 host"),
        ({"step_size": 2}, 3, "1 gives VCPU in steps of 2; asking for 2 VCPU would leave 1 host"),
    ],
)
def test_portions_are_shown_with_their_values(portions: dict[str, int], amount: int, reason: str) -> None:
    assert reason in said(
        build(Spec("cn", None, {"VCPU": inventory(8, **portions)})), ("resources", f"VCPU:{amount}")
    )


def test_groups_in_different_subtrees_are_named() -> None:
    snapshot = build(
        Spec("cn"), Spec("numa0", "cn", {"VCPU": 4}), Spec("numa1", "cn"), Spec("gpu", "numa1", {"VGPU": 1})
    )
    asked = [("resources_C", "VCPU:1"), ("resources_G", "VGPU:1"), ("group_policy", "none")]
    assert said(snapshot, *asked, ("same_subtree", "_C,_G")) == (
        "0 of 1 host: 1 cannot serve _C and _G from one provider and what is below it; "
        "leaving out same_subtree=_C,_G would leave 1 host"
    )


def test_a_request_that_fits_everywhere_has_no_reasons(flat: ModelSnapshot) -> None:
    assert said(build(Spec("cn", None, {"VCPU": 1})), ("resources", "VCPU:1")) == "1 of 1 host fit"


def test_an_empty_cloud_has_its_own_sentence() -> None:
    assert said(build(), ("resources", "VCPU:1")) == "there are no resource providers"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("host-1", "host-1"),
        ("a\nb\x1b[31m", r"a\nb\x1b[31m"),
        ("x" * 100, "x" * 57 + "..."),
        ("hôte", "hôte"),
    ],
)
def test_names_cannot_break_or_forge_a_line(name: str, shown: str) -> None:
    assert printable_name(name) == shown


def test_places_that_no_query_states_have_words_of_their_own() -> None:
    snapshot = build(
        Spec("h"),
        Spec("node", "h", {"PCPU": 8}, NODE),
        Spec("near", "node", {"CUSTOM_A": 1}),
        Spec("far", "h", {"CUSTOM_B": 1}),
    )
    asked = (
        RequestGroup("_A", {"CUSTOM_A": 1}, outside=frozenset(NODE)),
        RequestGroup("_B", {"CUSTOM_B": 1}, inside=frozenset(NODE)),
    )
    sentences = [
        explanation_sentence(explain_request(snapshot, CandidatesRequest((group,)), SearchBudget()))
        for group in asked
    ]
    assert sentences == [
        "0 of 1 host: 1 is below a provider with HW_NUMA_ROOT, which is forbidden for _A; "
        "leaving out the place outside HW_NUMA_ROOT for _A would leave 1 host",
        "0 of 1 host: 1 is not below a provider with HW_NUMA_ROOT for _B; "
        "leaving out the place inside HW_NUMA_ROOT for _B would leave 1 host",
    ]
