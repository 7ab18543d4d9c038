"""On which caches a guest gets what it holds, where somebody else says where it runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.controllers.resctrl import at_its_caches


@pytest.mark.parametrize(
    ("amounts", "shares", "expected"),
    [
        ({0: 4}, {0: 2}, {0: 4}),
        ({0: 4}, {1: 2}, {1: 4}),
        ({0: 4}, {0: 1, 1: 3}, {0: 4}),
        ({0: 4, 2: 2}, {0: 3, 1: 1}, {0: 4, 1: 2}),
        ({0: 4, 2: 2}, {0: 3}, {0: 6}),
        ({2: 2}, {0: 1, 1: 3}, {1: 2}),
        ({2: 2}, {}, {2: 2}),
        ({}, {0: 1}, {}),
    ],
)
def test_what_is_held_elsewhere_goes_to_where_the_guest_runs(amounts, shares, expected):
    assert at_its_caches(amounts, shares) == expected


AMOUNTS = st.dictionaries(st.integers(0, 4), st.integers(1, 9))


@given(AMOUNTS, AMOUNTS)
def test_nothing_is_lost_and_nothing_is_where_it_does_not_run(amounts, shares):
    found = at_its_caches(amounts, shares)
    assert sum(found.values()) == sum(amounts.values())
    assert not shares or found.keys() <= shares.keys()
    assert all(found[cache] >= amounts[cache] for cache in amounts.keys() & shares.keys())
