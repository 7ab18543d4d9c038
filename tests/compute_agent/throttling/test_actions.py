"""Tests of actions of watermarks: their texts for operators, and which of them restrict guests."""

import pytest

from compute_agent.model.resource import CPU_QUOTA, ThrottleControl
from compute_agent.throttling.actions import (
    EvictAction,
    RestoreAction,
    SwitchScheduling,
    ThrottleAction,
    takes_away,
)

QUOTA = ThrottleControl("cpu_quota")
BANDWIDTH = ThrottleControl("memory_bandwidth", "1")


@pytest.mark.parametrize(
    ("action", "told", "taken"),
    [
        (SwitchScheduling(True, ("cpu", "mem")), "keep new guests away for cpu, mem", True),
        (SwitchScheduling(False), "let new guests in", False),
        (EvictAction("a", "memory_usage", "mem"), "evict a for memory_usage (mem)", True),
        (
            ThrottleAction("a", QUOTA, 1.5, "cpu_usage", "cpu"),
            f"throttle a to 1.5 of {QUOTA} for cpu_usage (cpu)",
            True,
        ),
        (RestoreAction("a", BANDWIDTH, 80.0), f"restore a to 80 of {BANDWIDTH}", False),
        (RestoreAction("a", BANDWIDTH, 0.0), f"restore a to 0 of {BANDWIDTH}", False),
        (RestoreAction("a", QUOTA, None), f"restore a to everything of {QUOTA}", False),
    ],
)
def test_an_action_says_what_it_does_and_for_what(action, told, taken):
    assert str(action) == told
    assert takes_away(action) is taken


def test_a_knob_of_a_domain_names_it():
    assert "1" in str(BANDWIDTH)
    assert str(QUOTA) == CPU_QUOTA
