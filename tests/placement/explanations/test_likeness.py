"""Which hosts are looked at together."""

from placement.candidates.budget import Budget
from placement.candidates.request import CandidatesRequest, RequestGroup
from placement.explanations.likeness import Alike, sort_anew, sort_out
from placement.model.snapshot import Snapshot
from tests.placement.candidates.snapshots import Spec, build, inventory


def asking(**resources: int) -> CandidatesRequest:
    return CandidatesRequest((RequestGroup("", resources, forbidden=frozenset({"T1"})),))


def names(snapshot: Snapshot, request: CandidatesRequest) -> list[list[str]]:
    trees = snapshot.whole_trees().values()
    alike = sort_out(snapshot, request, trees, Budget())
    assert sorted(_names(sort_anew(snapshot, request, alike, Budget()))) == sorted(_names(alike))
    return sorted(_names(alike))


def _names(groups: list[Alike]) -> list[list[str]]:
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
    alike = sort_out(snapshot, asking(VCPU=4), snapshot.whole_trees().values(), Budget())
    assert _names(alike) == [["a", "b"]]
    assert _names(sort_anew(snapshot, asking(VCPU=6), alike, Budget())) == [["a"], ["b"]]
