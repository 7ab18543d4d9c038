"""A dry run goes by the limits that a start goes on with."""

import time

import pytest

from compute_agent.daemon.dry_run import kept_limits
from compute_agent.interference.cases import Case, Phase
from compute_agent.interference.decide import State
from compute_agent.interference.state import FILE, dump
from compute_agent.model.knob import CPU_QUOTA, MEMORY_BANDWIDTH, Knob
from compute_agent.qos.state import QosState, Throttled
from tests.compute_agent.qos.builders import rules

QUOTA, BANDWIDTH = Knob(CPU_QUOTA), Knob(MEMORY_BANDWIDTH, "0")


@pytest.fixture
def qos():
    return QosState(throttles=(Throttled("a", QUOTA, 2.0), Throttled("b", QUOTA, 1.5)))


def case(suspect, knob, *steps):
    return Case("cpu", "victim", suspect, knob, 0.5, 0.3, steps, len(steps), Phase.HOLD, time.time())


def test_the_lowest_of_what_watermarks_and_interference_have_set(tmp_path, qos):
    state = State(cases=(case("a", QUOTA, 3.0, 1.0), case("c", BANDWIDTH, 40.0)))
    (tmp_path / FILE).write_bytes(dump(state, time.time()))
    found = kept_limits(rules(), qos, tmp_path)
    assert found == {"a": {QUOTA: 1.0}, "b": {QUOTA: 1.5}, "c": {BANDWIDTH: 40.0}}


@pytest.mark.parametrize("content", [None, b"{", b"\xff"])
def test_a_file_that_cannot_be_used_is_left_alone(tmp_path, qos, content):
    if content is not None:
        (tmp_path / FILE).write_bytes(content)
    assert kept_limits(rules(), qos, tmp_path) == {"a": {QUOTA: 2.0}, "b": {QUOTA: 1.5}}
    assert {path.name for path in tmp_path.iterdir()} == ({FILE} if content is not None else set())
