"""Tests of groups of equivalent hosts, which are searched once."""

from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import SearchBudget
from placement.search.equivalence import LikeTrees, group_trees, regroup_trees
from placement.search.request import CandidatesRequest, RequestGroup
from tests.placement.search.snapshots import Spec, build, inventory


def asking(**resources: int) -> CandidatesRequest:
    return CandidatesRequest((RequestGroup("", resources, forbidden=frozenset({"T1"})),))


def names(snapshot: ModelSnapshot, request: CandidatesRequest) -> list[list[str]]:
    alike = group_trees(snapshot, request, None, SearchBudget())
    assert sorted(_names([*regroup_trees(snapshot, request, alike, SearchBudget())])) == sorted(_names(alike))
    return sorted(_names(alike))


def _names(groups: list[LikeTrees]) -> list[list[str]]:
    return [[tree.root.name for tree in group.member_trees] for group in groups]


def test_classes_that_are_not_requested_do_not_distinguish_hosts() -> None:
    snapshot = build(
        Spec("a", None, {"VCPU": inventory(8, max_unit=8)}),
        Spec("b", None, {"VCPU": inventory(9, max_unit=9)}, ["T2"]),
        Spec("c", None, {"VCPU": inventory(9, max_unit=5)}, [], ["agg"], used={"VCPU": 3}),
        Spec("d", None, {"VCPU": inventory(9, max_unit=9)}, ["T1"]),
        Spec("e", None, {"VCPU": inventory(9, max_unit=3)}),
        Spec("f", None, {"VCPU": inventory(9, max_unit=9)}, used={"VCPU": 6}),
    )
    assert names(snapshot, asking(VCPU=4)) == [["a", "b", "c"], ["d"], ["e"], ["f"]]


def test_other_amounts_distinguish_other_hosts() -> None:
    snapshot = build(
        *(Spec(name, None, {"VCPU": inventory(9, max_unit=most)}) for name, most in (("a", 4), ("b", 8)))
    )
    alike = group_trees(snapshot, asking(VCPU=4), None, SearchBudget())
    assert _names(alike) == [["a", "b"]]
    assert _names([*regroup_trees(snapshot, asking(VCPU=6), alike, SearchBudget())]) == [["a"], ["b"]]


def test_the_order_of_branches_and_providers_without_the_classes_do_not_distinguish_hosts() -> None:
    snapshot = build(
        Spec("a"),
        Spec("a0", "a", {"VCPU": inventory(8), "PCPU": inventory(8)}),
        Spec("a1", "a", {"VCPU": inventory(8)}, used={"VCPU": 8}),
        Spec("b"),
        Spec("gpu", "b", {"VGPU": inventory(1)}, ["T2"]),
        Spec("b0", "b", {"VCPU": inventory(8)}, used={"VCPU": 5}),
        Spec("nic", "b0"),
        Spec("b1", "b", {"VCPU": inventory(8), "PCPU": inventory(8)}),
        Spec("c"),
        Spec("c0", "c", {"VCPU": inventory(8), "PCPU": inventory(8)}, used={"PCPU": 8}),
        Spec("c1", "c", {"VCPU": inventory(8)}, used={"VCPU": 5}),
    )
    wanted = asking(VCPU=4, PCPU=2)
    assert names(snapshot, wanted) == [["a", "b"], ["c"]]
    first, _ = group_trees(snapshot, wanted, None, SearchBudget())
    assert [[each.name for each in first.kin.providers(tree)] for tree in first.member_trees] == [
        ["a", "a0", "a1"],
        ["b", "b1", "b0"],
    ]
    free = zip(*[first.most_free([slot]) for slot in range(3)], strict=True)
    assert [*free] == [(8, 8, 0), (8, 8, 3)]


def test_providers_without_the_classes_matter_to_subtree_groups_with_conditions() -> None:
    snapshot = build(
        Spec("a", None, {"VCPU": inventory(8)}),
        Spec("a0", "a", {}, ["T1"]),
        Spec("b", None, {"VCPU": inventory(8)}),
        Spec("b0", "b"),
    )
    groups = RequestGroup("_1", {"VCPU": 4}), RequestGroup("_2", {"VCPU": 2})
    subtrees = (frozenset({"_1", "_2"}),)
    assert names(snapshot, CandidatesRequest(groups, same_subtrees=subtrees)) == [["a", "b"]]
    groups = groups[0], RequestGroup("_2", {"VCPU": 2}, required=(frozenset({"T1"}),))
    assert names(snapshot, CandidatesRequest(groups, same_subtrees=subtrees)) == [["a"], ["b"]]


def test_amounts_between_two_sums_do_not_distinguish_hosts() -> None:
    snapshot = build(
        *(Spec(f"h{free}", None, {"VCPU": inventory(12)}, used={"VCPU": 12 - free}) for free in range(1, 11))
    )
    groups = RequestGroup("_1", {"VCPU": 3}), RequestGroup("_2", {"VCPU": 5})
    alike = names(snapshot, CandidatesRequest(groups, group_policy="none"))
    assert sorted(map(sorted, alike)) == [["h1", "h2"], ["h10", "h8", "h9"], ["h3", "h4"], ["h5", "h6", "h7"]]


def test_each_amount_distinguishes_hosts_if_there_are_too_many_sums() -> None:
    snapshot = build(
        *(Spec(f"h{free}", None, {"VCPU": inventory(99)}, used={"VCPU": 99 - free}) for free in range(40, 44))
    )
    groups = tuple([RequestGroup(f"_{amount}", {"VCPU": amount}) for amount in (10, 21, 43, 87, 175)])
    assert len(names(snapshot, CandidatesRequest(groups, group_policy="none"))) == 4
