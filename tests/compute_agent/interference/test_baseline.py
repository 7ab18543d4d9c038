"""Baselines: what is usual, and that what lasts becomes so only slowly."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.interference.baseline import LEARNING, Baseline, Track

VALUES = st.lists(st.floats(0, 100), min_size=2, max_size=200)


@given(VALUES)
def test_mean_and_variance_are_those_of_all_while_there_are_few(values):
    baseline = Baseline()
    for value in values:
        baseline = baseline.after(value)
    assert baseline.mean == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert baseline.variance == pytest.approx(statistics.pvariance(values), abs=1e-6, rel=1e-6)


def track(values, start=0.0):
    found = Track()
    for number, value in enumerate(values):
        found = found.after(start + 10.0 * number, value, 1.0, 0.1, learns=True)
    return found


def test_nothing_is_a_violation_before_enough_was_learnt():
    assert track([1.0] * (LEARNING - 1) + [100.0]).violations == ()
    assert len(track([1.0] * LEARNING + [100.0]).violations) == 1


def test_three_violations_within_five_minutes_disturb_and_older_ones_do_not_count():
    quiet = [1.0] * LEARNING
    assert track([*quiet, 9.0, 9.0, 9.0]).disturbed(10.0 * (LEARNING + 2))
    assert not track([*quiet, 9.0, 9.0]).disturbed(10.0 * (LEARNING + 1))
    apart = [*quiet, 9.0, 9.0, *[1.0] * 30, 9.0]
    assert not track(apart).disturbed(10.0 * (len(apart) - 1))


def test_what_lasts_for_hours_is_usual_in_the_end():
    calm, loud = [1.0, 1.2] * 200, [9.0, 9.2] * 2000
    assert track([*calm, *loud[:60]]).suffers(10.0 * 459)
    assert not track([*calm, *loud]).suffers(10.0 * 4399)


def test_a_window_without_samples_tells_nothing():
    assert track([1.0] * 50).level(10_000.0) is None
