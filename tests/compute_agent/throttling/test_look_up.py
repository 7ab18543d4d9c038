"""Tests that a dry run uses the same saved limits as a start of the agent."""

import time

import pytest

from compute_agent.model.resource import CPU_QUOTA, MEMORY_BANDWIDTH, ThrottleControl
from compute_agent.throttling.interference.cases import CasePhase, InterferenceCase
from compute_agent.throttling.interference.state import InterferenceState
from compute_agent.throttling.state_file import FILE_NAME, ThrottlingState, dump_state, look_up_state
from compute_agent.throttling.watermarks.state import ThrottledGuest, WatermarkState

QUOTA, BANDWIDTH = ThrottleControl(CPU_QUOTA), ThrottleControl(MEMORY_BANDWIDTH, "0")
WATERMARKS = WatermarkState((ThrottledGuest("a", QUOTA, 2.0), ThrottledGuest("b", QUOTA, 1.5)))


def case(suspect, knob, *steps):
    return InterferenceCase(
        "cpu", "victim", suspect, knob, 0.5, 0.3, steps, len(steps), CasePhase.HOLD, time.monotonic()
    )


def test_the_lowest_of_what_watermarks_and_interference_have_set(tmp_path):
    state = InterferenceState(cases=(case("a", QUOTA, 3.0, 1.0), case("c", BANDWIDTH, 40.0)))
    content = dump_state(ThrottlingState(WATERMARKS, state), time.monotonic())
    (tmp_path / FILE_NAME).write_bytes(content)
    limits = look_up_state(tmp_path).guest_limits()
    assert limits == {"a": {QUOTA: 1.0}, "b": {QUOTA: 1.5}, "c": {BANDWIDTH: 40.0}}


@pytest.mark.parametrize("content", [None, b"{", b"\xff"])
def test_a_file_that_cannot_be_used_is_left_alone(tmp_path, content):
    if content is not None:
        (tmp_path / FILE_NAME).write_bytes(content)
    assert look_up_state(tmp_path) == ThrottlingState()
    assert {path.name for path in tmp_path.iterdir()} == ({FILE_NAME} if content is not None else set())
