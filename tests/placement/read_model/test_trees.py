"""Tests of trees of providers as searches see them: structures and classes of hosts, and free amounts."""

from dataclasses import replace

from placement.read_model.snapshot import ModelSnapshot
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
