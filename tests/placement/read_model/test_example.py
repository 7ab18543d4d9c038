"""Tests that the worked example in the documentation of `placement.read_model` is right."""

from dataclasses import replace

from placement import read_model
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree
from tests.placement.search.snapshots import Spec, build, inventory


def host(name: str, used: int = 0, max_unit: int = 8, traits: tuple[str, ...] = ()) -> list[Spec]:
    vcpu = {"VCPU": inventory(8, max_unit=max_unit)}
    return [
        Spec(name, None, {"DISK_GB": 100}, traits),
        Spec(f"{name}_0", name, vcpu, used={"VCPU": used}),
        Spec(f"{name}_1", name, vcpu),
    ]


def trees(snapshot: ModelSnapshot) -> list[HostTree]:
    return [tree for _, tree in sorted(snapshot.whole_trees().items())]


def test_hosts_of_the_example_are_of_one_class_with_these_free_amounts() -> None:
    snapshot = build(*host("cn1", used=5), *host("cn2"))
    one, other = trees(snapshot)
    assert list(one.kind.shape.slots) == [(0, "DISK_GB"), (1, "VCPU"), (2, "VCPU")]
    assert one.kind is other.kind
    assert sorted(snapshot.free_index("VCPU").roots_with(8)) == [1, 4]
    for free in (one.free, other.free):
        assert f"is {free}" in (read_model.__doc__ or "")


def test_a_trait_makes_another_class_and_a_portion_another_structure() -> None:
    plain, gold, small = trees(
        build(*host("cn1"), *host("cn2", traits=("CUSTOM_GOLD",)), *host("cn3", max_unit=4))
    )
    assert plain.kind is not gold.kind
    assert plain.kind.shape is gold.kind.shape
    assert plain.kind.shape is not small.kind.shape


def test_a_claim_replaces_the_tree_of_its_own_host_only() -> None:
    snapshot = build(*host("cn1", used=5), *host("cn2"))
    before = trees(snapshot)
    snapshot.put(replace(snapshot.providers[3], used={"VCPU": 2}))
    claimed, other = trees(snapshot)
    assert f"{claimed.free} free" in (read_model.__doc__ or "")
    assert claimed is not before[0]
    assert other is before[1]
