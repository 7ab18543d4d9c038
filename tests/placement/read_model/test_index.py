"""Tests of indexes of providers, and of copies of an index that change while the original stays the same."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.read_model.index import FamilyIndex, MergedIds, ProviderIndex, RootIds
from placement.read_model.provider import Inventory, capacity, in_order


def inventory(**changed: float) -> Inventory:
    fields = {
        "total": 20,
        "reserved": 4,
        "min_unit": 2,
        "max_unit": 12,
        "step_size": 2,
        "allocation_ratio": 1.5,
    }
    return Inventory(**{**fields, **changed})  # type: ignore[arg-type]  # of many types


def test_a_key_without_providers_disappears() -> None:
    index: ProviderIndex[str] = ProviderIndex()
    index.add("a", 1)
    index.add("a", 2)
    index.discard("a", 1)
    assert index == {"a": {2}}
    index.discard("a", 2)
    assert index == {}


def test_the_roots_of_changed_keys_are_forgotten() -> None:
    index: ProviderIndex[str] = ProviderIndex()
    for key in "ab":
        index.add(key, 1)
        index.roots[key] = RootIds((1,), True)
    index.add("a", 2)
    assert index.roots == {"b": RootIds((1,), True)}
    index.roots["a"] = RootIds((1, 2), False)
    index.discard("a", 2)
    assert index.roots == {"b": RootIds((1,), True)}


CHANGES = st.lists(st.tuples(st.booleans(), st.sampled_from("abc"), st.integers(1, 4)), max_size=12)


@given(CHANGES, CHANGES)
def test_a_copy_has_its_changes_and_the_original_stays(
    before: list[tuple[bool, str, int]], after: list[tuple[bool, str, int]]
) -> None:
    original: ProviderIndex[str] = ProviderIndex()
    expected: dict[str, set[int]] = {}

    def apply(index: ProviderIndex[str], changes: list[tuple[bool, str, int]]) -> None:
        for adds, key, number in changes:
            if adds:
                index.add(key, number)
                expected.setdefault(key, set()).add(number)
            elif number in expected.get(key, ()):
                index.discard(key, number)
                expected[key].discard(number)

    apply(original, before)
    kept = {key: set(members) for key, members in original.items()}
    copy = original.copy()
    assert copy == original
    apply(copy, after)
    assert copy == {key: members for key, members in expected.items() if members}
    assert original == kept


@given(CHANGES, CHANGES)
def test_families_are_in_order_and_a_copy_leaves_the_original_unchanged(
    before: list[tuple[bool, str, int]], after: list[tuple[bool, str, int]]
) -> None:
    original, expected = FamilyIndex(), dict[int, set[int]]()

    def apply(families: FamilyIndex, changes: list[tuple[bool, str, int]]) -> None:
        for adds, key, number in changes:
            members = expected.setdefault(ord(key), set())
            if adds and number not in members:
                families.add(ord(key), number)
                members.add(number)
            elif not adds and number in members:
                families.discard(ord(key), number)
                members.discard(number)

    apply(original, before)
    kept = {key: list(members) for key, members in original.items()}
    copy = original.copy()
    apply(copy, after)
    assert copy == {key: sorted(members) for key, members in expected.items() if members}
    assert original == kept


@pytest.mark.parametrize(
    ("amount", "given_in_one_go"), [(0, False), (1, False), (2, True), (3, False), (12, True), (14, False)]
)
def test_amounts_are_within_the_units_and_steps(amount: int, given_in_one_go: bool) -> None:
    assert inventory().is_portion(amount) is given_in_one_go


def test_reserved_amounts_are_subtracted_before_the_ratio() -> None:
    assert inventory().capacity == 24
    assert [inventory().accepts_amount(12, used) for used in (0, 12, 13)] == [True, True, False]
    assert [inventory().accepts_amount(each, 0) for each in (1, 2, 3, 14)] == [False, True, False, False]
    assert inventory(reserved=20).capacity == 0
    assert inventory(reserved=22).capacity == -3
    assert inventory(total=5, reserved=0, allocation_ratio=0.5).capacity == 2


def test_a_capacity_is_bounded() -> None:
    assert capacity(2**31 - 1, 0, 3e38) == 2**53
    assert capacity(0, 2**31 - 1, 3e38) == -(2**53)


def test_traits_are_listed_standard_ones_first() -> None:
    assert in_order({"CUSTOM_A", "HW_B", "CUSTOM_Z", "COMPUTE_A"}) == [
        "COMPUTE_A",
        "HW_B",
        "CUSTOM_A",
        "CUSTOM_Z",
    ]


@given(st.lists(st.sets(st.integers(0, 5000), max_size=3000).map(sorted), max_size=4))
def test_merged_ids_are_in_order_and_each_occurs_once(of: list[list[int]]) -> None:
    merged = MergedIds(of)
    expected = sorted(set().union(*of))
    assert list(islice(merged, 3)) == expected[:3]
    assert list(merged) == expected
    assert len(merged) == len(expected)
    assert merged[1:] == expected[1:]
    assert not expected or merged[-1] == expected[-1]
    assert bool(merged) == bool(expected)


def test_reading_the_first_merged_ids_does_not_merge_the_others() -> None:
    endless = MergedIds([range(10**12), range(0, 10**12, 2)])
    assert list(islice(endless, 3000)) == list(range(3000))
