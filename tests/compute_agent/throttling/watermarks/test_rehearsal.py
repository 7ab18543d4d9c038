"""Tests of rehearsals: the actions of watermarks at an imagined usage of the host."""

import pytest

from compute_agent.throttling.watermarks.plan import rehearse_usage
from compute_agent.throttling.watermarks.state import (
    EvictAction,
    SwitchScheduling,
    ThrottleAction,
    WatermarkState,
)
from compute_agent.throttling.watermarks.thresholds import WatermarkThreshold
from tests.compute_agent.throttling.watermarks.builders import QUOTA, guest, line, rules, snapshot

BUSY = rules(
    line(
        throttle_down=80,
        evict=WatermarkThreshold(95.0, relative=True),
        disable_scheduling=90,
        for_samples=3,
        preview=True,
    ),
    line("memory", "memory_usage", evict=10),
)
HOST = snapshot(guest("a", 4.0), guest("b", 4.0, protected=True), own=2.0)


def rehearse(usage, metric="cpu_usage", by=BUSY, host=HOST):
    return rehearse_usage(by, host, WatermarkState(), metric, usage)


def test_below_all_thresholds_nothing_would_be_done():
    assert rehearse("80%") == []


def test_above_a_threshold_unprotected_guests_would_be_throttled():
    (action,) = rehearse("82")
    assert isinstance(action, ThrottleAction)
    assert (action.guest, action.knob) == ("a", QUOTA)


def test_higher_up_guests_are_kept_away_and_evicted():
    switch, *rest = rehearse("92%")
    assert isinstance(switch, SwitchScheduling)
    assert [type(action) for action in rest] == [ThrottleAction]
    assert EvictAction("a", "cpu_usage", "line") in rehearse("97%")


@pytest.mark.parametrize(
    ("metric", "usage", "words"),
    [
        (
            "io_pressure",
            "50%",
            "no watermark watches io_pressure; the watermarks here watch cpu_usage, memory",
        ),
        ("cpu_usage", "much", "'much' is not a threshold"),
        ("memory_usage", "50%", "the capacity for memory_usage is not known; give a number such as 12G"),
    ],
)
def test_impossible_rehearsals_are_refused(metric, usage, words):
    with pytest.raises(ValueError, match=words):
        rehearse(usage, metric)
