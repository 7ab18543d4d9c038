"""Tests of the caches on which a guest gets its ways if another program pins the guest."""

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
def test_amounts_of_other_caches_go_to_a_cache_that_the_guest_runs_on(amounts, shares, expected):
    assert at_its_caches(amounts, shares) == expected


AMOUNTS = st.dictionaries(st.integers(0, 4), st.integers(1, 9))


@given(AMOUNTS, AMOUNTS)
def test_amounts_stay_the_same_and_lie_on_caches_that_the_guest_runs_on(amounts, shares):
    found = at_its_caches(amounts, shares)
    assert sum(found.values()) == sum(amounts.values())
    assert not shares or found.keys() <= shares.keys()
    assert all(found[cache] >= amounts[cache] for cache in amounts.keys() & shares.keys())
