"""Other times at which refused claims fit, compared with each time that whole seconds allow."""

import math
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import BudgetExhausted
from placement.search.claims.availability import StartSpan
from placement.search.claims.longest_stay import StaySpan, find_latest_end
from placement.search.claims.window_search import find_each_window, ways_of
from placement.store.groups import ConsumerGroup, GroupPolicy
from placement.store.time_profile import TimedAmount, TimeWindow
from tests.examples import examples
from tests.placement.search.claims.timed_worlds import (
    LAST,
    QUERIES,
    fits,
    make_wanted,
    timed_search,
    worlds,
)
from tests.placement.search.snapshots import Spec, build

World = tuple[ModelSnapshot, list[TimedAmount]]
APART = ConsumerGroup("apart", GroupPolicy.ANTI_AFFINITY, 1)
queries = st.lists(st.sampled_from(QUERIES), min_size=1, max_size=3)


@settings(max_examples=examples(150), deadline=None)
@given(
    world=worlds(),
    queries=queries,
    are_apart=st.booleans(),
    min_end=st.integers(1, 4),
    length=st.integers(1, LAST),
)
def test_the_latest_end_is_the_last_one_at_which_all_claims_fit(
    world: World, queries: list[str], are_apart: bool, min_end: int, length: int
) -> None:
    snapshot, amounts = world
    wanted = [
        replace(make_wanted(query), consumer=str(number), group=APART if are_apart else None)
        for number, query in enumerate(queries)
    ]
    span = StaySpan(0, min_end, min_end + length)
    # only refused claims are searched
    assume(not fits(snapshot, amounts, wanted, TimeWindow(0, span.max_end)))
    ends = range(min_end + length - 1, min_end - 1, -1)
    expected = next((end for end in ends if fits(snapshot, amounts, wanted, TimeWindow(0, end))), None)
    for members in ({}, {"apart": ()}):
        found = find_latest_end(timed_search(snapshot, amounts), members, wanted, span)
        assert found == expected


@settings(max_examples=examples(150), deadline=None)
@given(world=worlds(), queries=queries, begin=st.integers(0, 4))
def test_the_earliest_start_without_an_end_is_the_first_one_at_which_all_claims_fit(
    world: World, queries: list[str], begin: int
) -> None:
    snapshot, amounts = world
    wanted = [replace(make_wanted(query), consumer=str(number)) for number, query in enumerate(queries)]
    starts = range(begin, 2 * LAST + 1)
    expected = next(
        (start for start in starts if fits(snapshot, amounts, wanted, TimeWindow(start, math.inf))), None
    )
    search, span = timed_search(snapshot, amounts), StartSpan(begin, 2 * LAST, math.inf)
    found = islice(find_each_window(search, wanted, span, ways_of(search, wanted, span)), 1)
    assert next((each.starts_at for each in found), None) == expected


@pytest.mark.parametrize("count", [1, 3])
def test_the_price_of_the_latest_end_is_bounded(count: int) -> None:
    snapshot = build(
        *(Spec(f"cn{number}", inventories={"VCPU": 4}, used={"VCPU": 4}) for number in range(400))
    )
    wanted = [replace(make_wanted("resources=VCPU:1"), consumer=str(number)) for number in range(count)]
    with pytest.raises(BudgetExhausted):
        find_latest_end(timed_search(snapshot, [], seconds=0.0), {}, wanted, StaySpan(0, 1, 2))
