"""Tests that watermarks that a host cannot enforce are reported with the missing action, and no others."""

import pytest

from compute_agent.throttling.watermarks.metrics import MetricRegistry
from compute_agent.throttling.watermarks.sections import find_unenforceable
from tests.compute_agent.throttling.watermarks.builders import line

UNMEASURED = {"memory_bandwidth": "there are no counters"}
UNUSABLE = {"memory_bandwidth": "there is no control", "cpu_quota": "there are no groups"}


@pytest.mark.parametrize(
    ("metric", "thresholds", "unmeasured", "unusable", "told"),
    [
        ("cpu_usage", {"throttle_down": 8, "throttle_up": 6}, {}, {}, None),
        ("cpu_usage", {"throttle_down": 8, "throttle_up": 6}, UNMEASURED, {}, None),
        (
            "cpu_usage", {"throttle_down": 8, "throttle_up": 6}, {}, UNUSABLE,
            "throttle_down: no guest is throttled, because there are no groups",
        ),
        ("cpu_usage", {"evict": 8}, {}, UNUSABLE, None),
        ("memory_usage", {"evict": 8}, UNMEASURED, UNUSABLE, None),
        (
            "memory_usage", {"reclaim": 8}, {}, {"memory_high": "there is no swap"},
            "reclaim: no memory is reclaimed, because there is no swap",
        ),
        (
            "memory_bandwidth", {"throttle_down": 8, "throttle_up": 6}, UNMEASURED, UNUSABLE,
            "metric = memory_bandwidth: the agent never acts, because there are no counters",
        ),
        (
            "memory_bandwidth", {"evict": 8}, UNMEASURED, {},
            "metric = memory_bandwidth: the agent never acts, because there are no counters",
        ),
        (
            "memory_bandwidth", {"throttle_down": 8, "throttle_up": 6}, {}, UNUSABLE,
            "throttle_down: no guest is throttled, because there is no control",
        ),
    ],
)  # fmt: skip
def test_an_impossible_action_of_a_watermark_has_a_reason(metric, thresholds, unmeasured, unusable, told):
    watermark = line("w", metric, **thresholds)
    fine = line("fine", "memory_usage", evict=5)
    found = list(find_unenforceable([fine, watermark, fine], MetricRegistry(), unmeasured, unusable))
    assert found == ([f"[watermark:w] {told}"] if told else [])
