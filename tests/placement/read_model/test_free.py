"""Tests of finding trees by their free amounts. The index follows the changes of the snapshot."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from placement.read_model.snapshot import ModelSnapshot
from tests.placement.search.snapshots import Spec, build, inventory

usages = st.lists(st.integers(0, 6), min_size=6, max_size=6)


def fleet(used: list[int]) -> ModelSnapshot:
    """Three hosts with one NUMA node each. On the second host, one allocation may have at most 2 VCPU."""
    node = {"VCPU": 4, "CUSTOM_A": 1}
    return build(
        *(
            spec
            for host in range(3)
            for spec in (
                Spec(
                    f"cn{host}",
                    None,
                    {"VCPU": inventory(5, max_unit=2 if host == 1 else 9)},
                    used={"VCPU": used[2 * host]},
                ),
                Spec(f"numa{host}", f"cn{host}", node, used={"VCPU": used[2 * host + 1]}),
            )
        )
    )


def expected(snapshot: ModelSnapshot, amount: int) -> list[int]:
    return sorted(
        {
            provider.root_id
            for provider in snapshot
            for name, each in provider.inventories.items()
            if name == "VCPU"
            and amount <= each.max_unit
            and provider.used.get(name, 0) + amount <= each.capacity
        }
    )


@given(usages, st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), max_size=12), st.booleans())
def test_free_amounts_follow_the_usage(
    used: list[int], changes: list[tuple[int, int]], at_once: bool
) -> None:
    snapshot = fleet(used)
    snapshot.whole_trees()
    for number, amount in changes:
        snapshot.put(replace(snapshot.providers[number], used={"VCPU": amount}))
        if not at_once:
            snapshot.whole_trees()
    for amount in range(1, 7):
        index = snapshot.free_index("VCPU")
        assert sorted(index.roots_with(amount)) == expected(snapshot, amount)
        assert index.count_roots(amount) == len(expected(snapshot, amount))


def test_the_index_of_many_trees_follows_the_change_of_one() -> None:
    snapshot = build(*(Spec(f"cn{host}", None, {"VCPU": 4}) for host in range(50)))
    assert snapshot.free_index("VCPU").count_roots(4) == 50
    snapshot.put(replace(snapshot.providers[7], used={"VCPU": 1}))
    snapshot.remove(50)
    snapshot.put(replace(snapshot.providers[9], inventories={"CUSTOM_A": inventory(3)}))
    others = [number for number in range(1, 50) if number not in (7, 9)]
    assert sorted(snapshot.free_index("VCPU").roots_with(4)) == others
    assert sorted(snapshot.free_index("VCPU").roots_with(3)) == sorted([*others, 7])
    assert sorted(snapshot.free_index("CUSTOM_A").roots_with(3)) == [9]
    assert sorted(snapshot.free_index("CUSTOM_B").roots_with(1)) == []
