"""A dry run goes by the limits that a start goes on with."""

import time

import pytest

from compute_agent.agent.dry_run import kept_limits
from compute_agent.interference.cases import CasePhase, InterferenceCase
from compute_agent.interference.decide import InterferenceState
from compute_agent.interference.state import FILE, dump
from compute_agent.model.resource import CPU_QUOTA, MEMORY_BANDWIDTH, ThrottleControl
from compute_agent.qos.state import QosState, ThrottledGuest
from tests.compute_agent.qos.builders import rules

QUOTA, BANDWIDTH = ThrottleControl(CPU_QUOTA), ThrottleControl(MEMORY_BANDWIDTH, "0")


@pytest.fixture
def qos():
    return QosState(throttles=(ThrottledGuest("a", QUOTA, 2.0), ThrottledGuest("b", QUOTA, 1.5)))


def case(suspect, knob, *steps):
    return InterferenceCase(
        "cpu", "victim", suspect, knob, 0.5, 0.3, steps, len(steps), CasePhase.HOLD, time.time()
    )


def test_the_lowest_of_what_watermarks_and_interference_have_set(tmp_path, qos):
    state = InterferenceState(cases=(case("a", QUOTA, 3.0, 1.0), case("c", BANDWIDTH, 40.0)))
    (tmp_path / FILE).write_bytes(dump(state, time.time()))
    found = kept_limits(rules(), qos, tmp_path)
    assert found == {"a": {QUOTA: 1.0}, "b": {QUOTA: 1.5}, "c": {BANDWIDTH: 40.0}}


@pytest.mark.parametrize("content", [None, b"{", b"\xff"])
def test_a_file_that_cannot_be_used_is_left_alone(tmp_path, qos, content):
    if content is not None:
        (tmp_path / FILE).write_bytes(content)
    assert kept_limits(rules(), qos, tmp_path) == {"a": {QUOTA: 2.0}, "b": {QUOTA: 1.5}}
    assert {path.name for path in tmp_path.iterdir()} == ({FILE} if content is not None else set())
