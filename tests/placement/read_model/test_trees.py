"""Tests of trees of providers as searches see them: structures and classes of hosts, and free amounts."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from placement.read_model.provider import Inventory
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import BoundedCache, PortionBounds
from tests.examples import examples
from tests.placement.search.snapshots import Spec, build, inventory


def hosts() -> ModelSnapshot:
    return build(
        Spec("cn1", None, {"MEMORY_MB": inventory(1000, max_unit=8)}, ["T1"]),
        Spec("numa1", "cn1", {"VCPU": 4, "CUSTOM_A": 1}, used={"VCPU": 1}),
        Spec("cn2", None, {"MEMORY_MB": inventory(2000, max_unit=8)}, ["T1"]),
        Spec("numa2", "cn2", {"VCPU": 3, "CUSTOM_A": 1}, used={"VCPU": 5}),
    )


def test_equal_hosts_are_of_one_class_whatever_their_usage() -> None:
    one, two = hosts().whole_trees().values()
    assert one.kind is two.kind
    assert one.kind.shape.classes == {"MEMORY_MB", "VCPU", "CUSTOM_A"}
    assert one.kind.shape.slots == {(0, "MEMORY_MB"): 0, (1, "CUSTOM_A"): 1, (1, "VCPU"): 2}
    assert one.kind.shape.having["VCPU"] == [(1, 2)]
    assert (one.free, two.free) == ((1000, 1, 3), (2000, 1, -2))
    assert (one.max_free, two.max_free) == (
        {"MEMORY_MB": 8, "CUSTOM_A": 1, "VCPU": 3},
        {"MEMORY_MB": 8, "CUSTOM_A": 1},
    )
    assert one.kind.shape.capacities == [2000, 1, 4]


def test_other_traits_make_another_class_of_the_same_structure() -> None:
    snapshot = hosts()
    snapshot.put(replace(snapshot.providers[2], traits=frozenset({"T2"})))
    one, two = snapshot.whole_trees().values()
    assert one.kind is not two.kind
    assert one.kind.shape is two.kind.shape
    snapshot.put(replace(snapshot.providers[2], traits=frozenset()))
    assert snapshot.whole_trees()[1].kind is two.kind


def test_other_portions_classes_and_parents_make_another_structure() -> None:
    snapshot = hosts()
    shape = snapshot.whole_trees()[1].kind.shape
    numa = snapshot.providers[2]
    for changed in (
        replace(numa, inventories={**numa.inventories, "VCPU": inventory(4, step_size=2)}),
        replace(numa, inventories={"VCPU": inventory(4)}),
        replace(numa, parent_id=None),
    ):
        snapshot.put(changed)
        assert snapshot.whole_trees()[1].kind.shape is not shape


def test_a_tree_is_the_same_object_until_it_changes() -> None:
    snapshot = hosts()
    before = dict(snapshot.whole_trees())
    snapshot.put(replace(snapshot.providers[4], used={"VCPU": 2}))
    now = snapshot.whole_trees()
    assert now[1] is before[1]
    assert now[3] is not before[3]
    assert now[3].free == (2000, 1, 1)
    snapshot.remove(4)
    assert [member.name for member in snapshot.whole_trees()[3].members] == ["cn2"]
    snapshot.remove(3)
    assert snapshot.whole_trees().keys() == {1}


def test_a_provider_that_moves_leaves_its_old_tree() -> None:
    snapshot = hosts()
    snapshot.whole_trees()
    snapshot.put(replace(snapshot.providers[2], parent_id=3, root_id=3))
    trees = {root: [member.name for member in tree.members] for root, tree in snapshot.whole_trees().items()}
    assert trees == {1: ["cn1"], 3: ["numa1", "cn2", "numa2"]}


def test_structures_that_differ_only_in_portions_share_a_frame() -> None:
    snapshot = hosts()
    snapshot.put(
        replace(
            snapshot.providers[2], inventories={"VCPU": inventory(4, step_size=2), "CUSTOM_A": inventory(1)}
        )
    )
    one, two = snapshot.whole_trees().values()
    assert one.shape is not two.shape
    assert one.shape.frame is two.shape.frame


portions = st.fixed_dictionaries(
    {"min_unit": st.integers(1, 4), "max_unit": st.integers(3, 9), "step_size": st.sampled_from((1, 1, 1, 2))}
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.lists(portions, min_size=1, max_size=3), min_size=1, max_size=4), st.integers(1, 10))
def test_bounds_never_contradict_the_inventories(trees: list[list[dict[str, int]]], amount: int) -> None:
    specs = [Spec(f"h{number}") for number in range(len(trees))] + [
        Spec(f"h{number}-{at}", f"h{number}", {"VCPU": inventory(9, **each)})
        for number, children in enumerate(trees)
        for at, each in enumerate(children)
    ]
    snapshot = build(*specs)
    offered = {
        root: [each.inventories["VCPU"] for each in tree.members[1:]]
        for root, tree in snapshot.whole_trees().items()
    }
    for root, tree in snapshot.whole_trees().items():
        check_verdict(tree.shape.bounds_of("VCPU"), offered[root], amount)
    bounds = snapshot.portion_bounds("VCPU")
    assert bounds is not None
    everything = [each for some in offered.values() for each in some]
    check_verdict(bounds, everything, amount)
    units = {(each.min_unit, each.step_size) for each in everything}
    assert bounds.common_unit == (units.pop() if len(units) == 1 else None)


def check_verdict(bounds: PortionBounds, offered: list[Inventory], amount: int) -> None:
    verdict = bounds.give_verdict(amount)
    if verdict is not None:
        assert {each.is_portion(amount) for each in offered} == {verdict}
        assert verdict or all(each.max_unit < amount for each in offered)


def test_a_full_cache_serves_some_of_the_results_that_come_in_turn() -> None:
    kept = BoundedCache[int, str](8)
    hits = 0
    for number in range(100):
        key = number % 10
        hits += key in kept
        assert kept.get(key) or kept.keep_value(key, f"result {key}") == f"result {key}"
        assert len(kept) <= 8
    assert hits > 20
