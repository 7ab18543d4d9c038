"""Tests of baselines, the usual values of signals. A lasting change becomes usual only slowly."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.throttling.interference.evidence import LEARNING, SignalBaseline, SignalTrack

VALUES = st.lists(st.floats(0, 100), min_size=2, max_size=200)


@given(VALUES)
def test_mean_and_variance_are_those_of_all_while_there_are_few(values):
    baseline = SignalBaseline()
    for value in values:
        baseline = baseline.with_value(value)
    assert baseline.mean == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert baseline.variance == pytest.approx(statistics.pvariance(values), abs=1e-6, rel=1e-6)


def track(values, start=0.0):
    found = SignalTrack()
    for number, value in enumerate(values):
        found = found.with_sample(start + 10.0 * number, value, 1.0, 0.1, learns=True)
    return found


def test_no_sample_is_a_violation_before_the_baseline_is_learnt():
    assert track([1.0] * (LEARNING - 1) + [100.0]).since == math.inf
    assert track([1.0] * LEARNING + [100.0]).since == 10.0 * LEARNING


def test_a_violation_lasts_after_a_whole_window_above_the_threshold():
    """The first sample may be partly from before the disturbance, which begins between two samples."""
    quiet = [1.0] * LEARNING
    loud = [4.0, 9.0, 9.0, 9.0]
    assert not track([*quiet, *loud[:3]]).suffers_lastingly(10.0 * (LEARNING + 2))
    found = track([*quiet, *loud])
    assert found.suffers_lastingly(10.0 * (LEARNING + 3))
    assert found.mean_level(10.0 * (LEARNING + 3)) == 9.0
    assert not found.without_recent().suffers_lastingly(10.0 * (LEARNING + 3))


def test_a_calm_sample_or_an_empty_window_begins_the_violation_again():
    calm_between = [*[1.0] * LEARNING, 9.0, 9.0, 1.0, 9.0, 9.0, 9.0]
    now = 10.0 * (len(calm_between) - 1)
    assert track(calm_between).suffers_now(now)
    assert not track(calm_between).suffers_lastingly(now)
    found = track([*[1.0] * LEARNING, 9.0, 9.0]).with_sample(now + 100, 9.0, 1.0, 0.1, learns=True)
    assert found.suffers_now(now + 100)
    assert not found.suffers_lastingly(now + 100)


def test_a_level_of_hours_becomes_the_baseline():
    calm, loud = [1.0, 1.2] * 200, [9.0, 9.2] * 2000
    assert track([*calm, *loud[:60]]).suffers_now(10.0 * 459)
    assert not track([*calm, *loud]).suffers_now(10.0 * 4399)


def test_a_window_without_samples_tells_nothing():
    assert track([1.0] * 50).mean_level(10_000.0) is None
