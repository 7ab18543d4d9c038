"""Tests of finding the roots of providers from their parents, and of listing parents before children."""

from hypothesis import given
from hypothesis import strategies as st

from placement.maintenance.audit import find_roots, parents_first

_IDS = st.integers(1, 8)


@given(st.dictionaries(_IDS, st.none() | st.integers(1, 9)))
def test_each_provider_has_the_root_of_its_parents_or_none(parents):
    roots = find_roots(parents)
    for start in parents:
        provider_id = start
        for _ in range(len(parents) + 1):
            if provider_id not in parents or parents[provider_id] is None:
                break
            provider_id = parents[provider_id]
        if provider_id not in parents:
            assert start in roots.orphans
        elif parents[provider_id] is None:
            assert roots.of[start] == (None if provider_id == start else provider_id)
        else:
            assert start in roots.loops
    assert len(roots.of) + len(roots.orphans) + len(roots.loops) == len(parents)


@given(st.dictionaries(_IDS, st.none() | st.integers(1, 9)), st.randoms())
def test_rows_follow_their_parents_and_all_with_a_root_are_kept(parents, random):
    rows = [{"id": provider_id, "parent_id": parent} for provider_id, parent in parents.items()]
    random.shuffle(rows)
    ordered = [row["id"] for row in parents_first(rows)]
    assert sorted(ordered) == sorted(find_roots(parents).of)
    for position, provider_id in enumerate(ordered):
        assert parents[provider_id] is None or parents[provider_id] in ordered[:position]


def test_rows_keep_their_order_where_parents_allow():
    rows = [
        {"id": provider_id, "parent_id": parent}
        for provider_id, parent in ((1, None), (2, 4), (3, 1), (4, None))
    ]
    assert [row["id"] for row in parents_first(rows)] == [1, 3, 4, 2]


def test_a_long_chain_of_parents_is_followed():
    depth = 100_000
    parents = {provider_id: provider_id - 1 or None for provider_id in range(depth, 0, -1)}
    assert find_roots(parents).of[depth] == 1
    rows = [{"id": provider_id, "parent_id": parent} for provider_id, parent in parents.items()]
    assert [row["id"] for row in parents_first(rows)] == list(range(1, depth + 1))
