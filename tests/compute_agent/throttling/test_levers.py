"""Tests of the steps by which limits change, and of the use that is left under a limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.throttling.levers import (
    MEMORY_STEP,
    ThrottleSteps,
    left_by,
    lowest_limit,
    memory_down,
    memory_up,
    step_down,
    step_up,
    taken_by,
)
from compute_agent.usage.snapshot import GuestAllotment

CORES = GuestAllotment(4.0)
PERCENT = GuestAllotment(100.0, 10.0, None)
WAYS = GuestAllotment(11.0, 1.0, 2.0**20)


def all_the_way_down(allotment, steps):
    limit, found = None, []
    while (limit := step_down(limit, allotment, steps)) is not None:
        found.append(round(limit, 4))
    return found


def test_steps_go_down_to_the_floor():
    assert all_the_way_down(CORES, ThrottleSteps(0.2, 0.4)) == [3.2, 2.56, 2.04, 1.63, 1.6]
    assert all_the_way_down(PERCENT, ThrottleSteps(0.2, 0.1)) == [80, 60, 40, 30, 20, 10]
    assert all_the_way_down(WAYS, ThrottleSteps(0.2, 0.1)) == [8, 6, 4, 3, 2]


@pytest.mark.parametrize(
    ("step", "min_share"), [(0.0, 0.1), (1.0, 0.1), (-0.1, 0.1), (0.2, 0.0), (0.2, -0.1), (0.2, 1.01), (1, 2)]
)
def test_a_step_leaves_something_and_takes_something_and_a_share_is_no_more_than_all(step, min_share):
    with pytest.raises(ValueError, match="is not a share"):
        ThrottleSteps(step, min_share)


def test_a_guest_that_keeps_all_is_never_throttled():
    assert all_the_way_down(CORES, ThrottleSteps(0.2, 1.0)) == []


def test_small_steps_still_take_a_granule():
    assert all_the_way_down(WAYS, ThrottleSteps(0.01, 0.5)) == [10, 9, 8, 7, 6]


def test_no_guest_is_throttled_below_a_granule():
    assert all_the_way_down(GuestAllotment(1.0, 1.0), ThrottleSteps(0.2, 0.1)) == []
    assert lowest_limit(WAYS, ThrottleSteps(0.2, 0.01)) == 1
    assert lowest_limit(GuestAllotment(1.5, 1.0), ThrottleSteps(0.2, 0.9)) == 1.5


def test_steps_up_lead_to_no_limit():
    limit, found = 1.6, []
    while (limit := step_up(limit, CORES, ThrottleSteps(0.2))) is not None:
        found.append(round(limit, 4))
    assert found == [2.0, 2.5, 3.13, 3.92]


@given(
    st.floats(0.1, 128), st.sampled_from([0.01, 0.1, 1.0]), st.floats(0.01, 0.9), st.floats(0.01, 1.0)
)  # fmt: skip
def test_steps_end_and_keep_the_floor(full, granule, step, share):
    allotment, steps = GuestAllotment(max(full, granule), granule), ThrottleSteps(step, share)
    limit = None
    while (lower := step_down(limit, allotment, steps)) is not None:
        assert lower < (allotment.full if limit is None else limit)
        assert lower >= allotment.full * share - 1e-6 or lower == pytest.approx(granule)
        limit = lower
    while limit is not None:
        higher = step_up(limit, allotment, steps)
        assert higher is None or limit < higher < allotment.full
        limit = higher


def test_a_limit_leaves_its_part_of_the_allotment():
    assert left_by(3.0, None, 2.0, CORES) == 2.0
    assert left_by(1.0, None, 2.0, CORES) == 1.0
    assert left_by(8e6, None, 4.0, WAYS) == 4 * 2**20
    # The bytes of a percent of bandwidth are unknown, so the use is assumed to shrink with the limit.
    assert left_by(9e9, None, 80.0, PERCENT) == pytest.approx(7.2e9)
    assert left_by(9e9, 60.0, 40.0, PERCENT) == pytest.approx(6e9)


def test_a_restored_guest_may_take_its_allotment():
    assert taken_by(2.0, 2.0, 2.5, CORES) == 2.5
    assert taken_by(2.0, 2.0, None, CORES) == 4.0
    assert taken_by(1.0, 2.0, 2.5, CORES) == 1.0  # it has all it wants
    assert taken_by(4e9, 40.0, 50.0, PERCENT) == pytest.approx(5e9)
    assert taken_by(4e9, 80.0, None, PERCENT) == pytest.approx(5e9)


def test_allotment_below_a_granule_is_refused():
    with pytest.raises(ValueError, match="a granule of"):
        GuestAllotment(0.5, 1.0)


@given(st.integers(1, 4096), st.floats(0.01, 0.9), st.floats(0.1, 1.0))
def test_steps_of_memory_are_bounded_and_lead_down_to_the_floor_and_back(size, step, share):
    mib = float(1 << 20)
    allotment, steps = GuestAllotment(size * mib, mib), ThrottleSteps(step, share)
    limit, lowest = None, size * mib
    while (lower := memory_down(limit, allotment, steps)) is not None:
        assert lowest - MEMORY_STEP <= lower < lowest
        limit = lowest = lower
    assert lowest == lowest_limit(allotment, steps)
    while limit is not None:
        higher = memory_up(limit, allotment, steps)
        assert limit < (size * mib if higher is None else higher) <= limit + MEMORY_STEP
        limit = higher
