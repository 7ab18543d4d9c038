"""Tests that less is offered for a day of readings after a broken promise, even if the clock jumps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.reclaim.offers import (
    DAY_SECONDS,
    MAX_STEP_SECONDS,
    ZONES_FORMAT,
    HeldBackShare,
    ZoneState,
    missing_cpus,
)

START = 3.6e9


def test_the_most_missing_cpus_are_held_back_for_a_day():
    found = HeldBackShare().after_breaches(0.0, 0, START)
    assert found.held_back(32) == 0
    found = found.after_breaches(2.0, 1, START + 60)
    assert found.held_back(16) == 2.0
    assert found.held_back(32) == pytest.approx(3.2)
    found = found.after_breaches(5.0, 1, START + 120).after_breaches(1.0, 2, START + 180)
    assert (found.held_back(32), found.count) == (5.0, 4)
    assert found.held_back(4) == 4
    for minute in range(24 * 60):
        assert found.held_back(32) == 5.0
        found = found.after_breaches(0.0, 0, START + 240 + 60 * minute)
    assert found.held_back(32) == 0
    assert found.after_breaches(1.0, 1, found.time + 60) == HeldBackShare(
        1.0, 1, DAY_SECONDS, found.time + 60
    )


def test_in_words():
    assert list(HeldBackShare().in_words(8)) == []
    ((words, cores),) = HeldBackShare(2.0, 3, 3600.0, START).in_words(8)
    assert (words, cores) == ("held back for 1.0 more hours, since the promise was broken 3 times", 2.0)
    ((words, _),) = HeldBackShare(2.0, 1, 3600.0, START).in_words(8)
    assert words.endswith("was broken once")


@given(st.lists(st.floats(-1e9, 1e9) | st.sampled_from([60.0, 0.0]), max_size=286))
def test_a_jump_of_the_clock_or_a_stopped_agent_does_not_shorten_the_day(steps):
    found, time, served = HeldBackShare().after_breaches(1.0, 1, START), START, 0.0
    for step in steps:
        time += step
        served += min(max(step, 0.0), MAX_STEP_SECONDS)
        found = found.after_breaches(0.0, 0, time)
        assert found.remaining == pytest.approx(max(0.0, DAY_SECONDS - served), abs=1)
    assert found.held_back(10) == 1.0  # the share is 1.0 until 288 readings exist


def test_a_breach_is_kept():
    states = {"z": ZoneState(breach=HeldBackShare(2.0, 3, 3600.0, START))}
    assert ZONES_FORMAT.parse(ZONES_FORMAT.dump(states)) == states


def test_missing_cpus_are_promised_cpus_that_others_use():
    assert missing_cpus(6.0, 3.0, 8.0) == 1.0
    assert missing_cpus(5.0, 3.0, 8.0) == 0.0
    assert missing_cpus(9.0, 0, 8.0) == 0.0
