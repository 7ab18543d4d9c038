"""Tests of a dictionary in two layers, compared with a plain dictionary."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from placement.read_model import layered_dict
from placement.read_model.layered_dict import LayeredDict, copy_for_changes

CONTENT = st.dictionaries(st.integers(0, 9), st.integers())
STEPS = st.lists(st.tuples(st.integers(0, 12), st.none() | st.integers()), max_size=20)


def change(content: "LayeredDict[int] | dict[int, int]", steps: list[tuple[int, int | None]]) -> None:
    """Set each key to its value, or remove it if the value is None."""
    for key, value in steps:
        if value is None:
            content.pop(key, None)
        else:
            content[key] = value


def assert_same(found: "LayeredDict[int]", expected: dict[int, int]) -> None:
    assert dict(found.items()) == expected == found
    assert (len(found), sorted(found), sorted(found.values())) == (
        len(expected),
        sorted(expected),
        sorted(expected.values()),
    )
    assert [found.get(key) for key in range(13)] == [expected.get(key) for key in range(13)]
    assert [key in found for key in range(13)] == [key in expected for key in range(13)]


@given(CONTENT, STEPS, STEPS)
def test_two_layers_are_like_one(
    base: dict[int, int], steps: list[tuple[int, int | None]], more: list[tuple[int, int | None]]
) -> None:
    before, expected, changed = base.copy(), base.copy(), LayeredDict(base)
    change(changed, steps)
    change(expected, steps)
    assert_same(changed, expected)
    later, expected_later = changed.copy(), expected.copy()
    assert isinstance(later, LayeredDict | dict)
    change(later, more)
    change(expected_later, more)
    assert later == expected_later
    assert_same(changed, expected)
    assert base == before
    assert changed.merge_layers() == expected


@given(CONTENT, STEPS)
def test_a_replaced_entry_keeps_its_place(base: dict[int, int], steps: list[tuple[int, int | None]]) -> None:
    values = [(key, value) for key, value in steps if value is not None]
    changed, expected = LayeredDict(base.copy()), base.copy()
    change(changed, values)
    change(expected, values)
    assert list(changed.items()) == list(expected.items())
    assert list(changed) == list(expected)


def test_only_a_large_dictionary_has_two_layers() -> None:
    large = dict.fromkeys(range(10_000), 0)
    assert isinstance(copy_for_changes(large), LayeredDict)
    del large[0]
    small = copy_for_changes(large)
    assert (type(small), small) == (dict, large)
    assert small is not large


def test_a_copy_of_many_changes_has_one_layer() -> None:
    with patch.object(layered_dict, "_MAX_SHARE", 0.5):
        changed = LayeredDict(dict.fromkeys(range(4), 0))
        change(changed, [(1, 1), (2, None)])
        assert isinstance(changed.copy(), LayeredDict)
        change(changed, [(3, 1)])
        copy = changed.copy()
    assert (type(copy), copy) == (dict, {0: 0, 1: 1, 3: 1})
