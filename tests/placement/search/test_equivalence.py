"""Which hosts are looked at together."""

from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import SearchBudget
from placement.search.equivalence import LikeTrees, sort_anew, sort_out
from placement.search.request import CandidatesRequest, RequestGroup
from tests.placement.search.snapshots import Spec, build, inventory


def asking(**resources: int) -> CandidatesRequest:
    return CandidatesRequest((RequestGroup("", resources, forbidden=frozenset({"T1"})),))


def names(snapshot: ModelSnapshot, request: CandidatesRequest) -> list[list[str]]:
    trees = snapshot.whole_trees().values()
    alike = sort_out(snapshot, request, trees, SearchBudget())
    assert sorted(_names(sort_anew(snapshot, request, alike, SearchBudget()))) == sorted(_names(alike))
    return sorted(_names(alike))


def _names(groups: list[LikeTrees]) -> list[list[str]]:
    return [[tree.root.name for tree in group.trees] for group in groups]


def test_what_nobody_asks_for_tells_no_hosts_apart() -> None:
    snapshot = build(
        Spec("a", None, {"VCPU": inventory(8, max_unit=8)}),
        Spec("b", None, {"VCPU": inventory(9, max_unit=9)}, ["T2"]),
        Spec("c", None, {"VCPU": inventory(9, max_unit=5)}, [], ["agg"], used={"VCPU": 3}),
        Spec("d", None, {"VCPU": inventory(9, max_unit=9)}, ["T1"]),
        Spec("e", None, {"VCPU": inventory(9, max_unit=3)}),
        Spec("f", None, {"VCPU": inventory(9, max_unit=9)}, used={"VCPU": 6}),
    )
    assert names(snapshot, asking(VCPU=4)) == [["a", "b", "c"], ["d"], ["e"], ["f"]]


def test_other_amounts_tell_others_apart() -> None:
    snapshot = build(
        *(Spec(name, None, {"VCPU": inventory(9, max_unit=most)}) for name, most in (("a", 4), ("b", 8)))
    )
    alike = sort_out(snapshot, asking(VCPU=4), snapshot.whole_trees().values(), SearchBudget())
    assert _names(alike) == [["a", "b"]]
    assert _names(sort_anew(snapshot, asking(VCPU=6), alike, SearchBudget())) == [["a"], ["b"]]


def test_neither_do_branches_in_another_order_and_providers_that_have_nothing_of_it() -> None:
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
    first, _ = sort_out(snapshot, wanted, snapshot.whole_trees().values(), SearchBudget())
    assert [[each.name for each in first.kin.providers(tree)] for tree in first.trees] == [
        ["a", "a1", "a0"],
        ["b", "b0", "b1"],
    ]
    assert [first.kin.free(tree) for tree in first.trees] == [(0, 8, 8), (3, 8, 8)]


def test_who_has_nothing_matters_where_a_group_of_a_subtree_asks_for_more_than_resources() -> None:
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
