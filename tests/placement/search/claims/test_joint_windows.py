"""The earliest windows of several claims together, compared with each start that whole seconds allow."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import BudgetExhausted
from placement.search.claims.availability import FreeWindow, StartSpan, find_joint
from placement.search.claims.claim import WantedClaim
from placement.store.groups import ConsumerGroup, GroupPolicy
from placement.store.time_profile import TimedAmount, TimeWindow
from tests.examples import examples
from tests.placement.search.claims.timed_worlds import (
    LAST,
    QUERIES,
    fits,
    have_room,
    make_wanted,
    timed_search,
    worlds,
)
from tests.placement.search.snapshots import Spec, build, name_to_uuid

APART = ConsumerGroup("apart", GroupPolicy.ANTI_AFFINITY, 1)


def found(
    snapshot: ModelSnapshot,
    amounts: list[TimedAmount],
    wanted: Sequence[WantedClaim],
    span: StartSpan,
    limit: int = 9,
) -> list[FreeWindow]:
    return list(islice(find_joint(timed_search(snapshot, amounts), wanted, span), limit))


@settings(max_examples=examples(150), deadline=None)
@given(
    world=worlds(),
    queries=st.lists(st.tuples(st.sampled_from(QUERIES), st.integers(1, 2)), min_size=1, max_size=3),
    are_apart=st.booleans(),
    begin=st.integers(0, 4),
    duration=st.integers(1, 6),
    last=st.integers(4, 2 * LAST),
)
def test_joint_windows_are_the_earliest_ones_and_each_one_can_be_booked(
    world: tuple[ModelSnapshot, list[TimedAmount]],
    queries: list[tuple[str, int]],
    are_apart: bool,
    begin: int,
    duration: int,
    last: int,
) -> None:
    group = APART if are_apart else None
    wanted = [each for query, count in queries for each in [replace(make_wanted(query), group=group)] * count]
    answers = found(*world, wanted, StartSpan(begin, last, duration))
    after: float = begin
    for each in answers:
        starts = range(math.ceil(after), last + 1)
        assert each.starts_at == next(t for t in starts if fits(*world, wanted, TimeWindow(t, t + duration)))
        assert each.starts_at + duration <= each.free_until
        for end in (each.starts_at + duration, min(each.free_until, 3.0 * LAST)):
            assert have_room(*world, each.choices, TimeWindow(each.starts_at, end))
        if are_apart:
            assert len({choice.root.id for choice in each.choices}) == len(wanted)
        after = each.free_until
    if after <= last:
        rest = range(math.ceil(after), last + 1)
        assert not any(fits(*world, wanted, TimeWindow(t, t + duration)) for t in rest)


def test_all_hosts_are_tried_if_the_first_ones_do_not_suffice() -> None:
    # the small hosts have room for one claim each, and only the last one has room for the second claim
    specs = [Spec(f"cn{number:03}", inventories={"VCPU": 1}) for number in range(100)]
    snapshot = build(*specs, Spec("large", inventories={"VCPU": 1, "DISK_GB": 1}))
    wanted = [make_wanted("resources=VCPU:1") for _ in range(100)]
    wanted += [make_wanted("resources=VCPU:1,DISK_GB:1")]
    (answer,) = found(snapshot, [], [*wanted[:2], wanted[-1]], StartSpan(0, 9, 4))
    assert answer.choices[-1].root.name == "large"
    (answer,) = found(snapshot, [], wanted, StartSpan(0, 9, 4))
    assert len({each.root.id for each in answer.choices}) == 101


def test_a_start_is_never_before_the_end_that_makes_room() -> None:
    end = 10.0004
    amounts = [TimedAmount("w", name_to_uuid("a"), "VCPU", 4, TimeWindow(1, end), has_begun=False)]
    snapshot = build(Spec("a", inventories={"VCPU": 4}, used={"VCPU": 4}))
    wanted = [make_wanted("resources=VCPU:2")] * 2
    (answer,) = found(snapshot, amounts, wanted, StartSpan(0, 99, 4))
    assert (answer.starts_at, answer.free_until) == (10.001, math.inf)


def test_the_price_of_a_joint_search_is_bounded() -> None:
    snapshot = build(*(Spec(f"cn{number}", inventories={"VCPU": 4}) for number in range(200)))
    wanted = [make_wanted("resources=VCPU:1")] * 2
    with pytest.raises(BudgetExhausted):
        list(find_joint(timed_search(snapshot, [], seconds=0.0), wanted, StartSpan(0, 99, 4)))
