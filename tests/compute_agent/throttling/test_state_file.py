"""Tests of the state file of throttling, which outlives the agent, and which a dry run reads as well."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.files import UnsafeFileError
from compute_agent.model.resource import MEMORY_BANDWIDTH, ThrottleControl
from compute_agent.throttling.interference.cases import CasePhase, InterferenceCase, SuspectPair
from compute_agent.throttling.interference.evidence import SignalBaseline, SignalTrack
from compute_agent.throttling.interference.state import (
    InterferenceState,
    PairRecord,
    SignalKey,
)
from compute_agent.throttling.state_file import (
    FILE_NAME,
    ThrottlingFile,
    ThrottlingState,
    dump_state,
    forget_interference,
    look_up_state,
    parse_state,
)
from compute_agent.throttling.watermarks import state as watermark_state
from compute_agent.throttling.watermarks.state import EvictAction, ThrottledGuest, WatermarkState

NOW = 1000.0
QUOTA = ThrottleControl("cpu_quota")
WATERMARKS = WatermarkState(
    (ThrottledGuest("big", QUOTA, 1.5),), (EvictAction("gone", "memory_usage"),), True
)
CASE = InterferenceCase("cpu", "server", "hog", QUOTA, 0.9, 0.3, (2.0,), 1, CasePhase.HOLD, 900.0)
TRACKS = {SignalKey("server", "run_delay", ""): SignalTrack(SignalBaseline(0.1, 0.01, 40))}
PAIRS = {SuspectPair("cpu", "server", "hog"): PairRecord(0.0, 2, 900.0)}
INTERFERENCE = InterferenceState((CASE,), PAIRS, TRACKS)
BOTH = ThrottlingState(WATERMARKS, INTERFERENCE)


def open_file(folder):
    return ThrottlingFile(folder, lambda: NOW)


@pytest.fixture
def folder(tmp_path):
    tmp_path.chmod(0o700)
    return tmp_path


def test_both_parts_outlive_the_process(folder):
    file = open_file(folder)
    file.keep_watermarks(WATERMARKS)
    file.keep_interference(INTERFERENCE)
    assert open_file(folder).state == BOTH


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 2}', b'{"version": 1, "data": {}}'])
def test_other_content_is_put_aside(folder, content, caplog):
    (folder / FILE_NAME).write_bytes(content)
    (folder / FILE_NAME).chmod(0o600)
    assert open_file(folder).state == ThrottlingState()
    assert "starts empty" in caplog.text
    assert [path.read_bytes() for path in folder.glob(f"{FILE_NAME}.damaged-*")] == [content]


def test_a_file_that_others_may_write_is_refused(folder):
    open_file(folder).keep_watermarks(WATERMARKS)
    (folder / FILE_NAME).chmod(0o666)
    with pytest.raises(UnsafeFileError):
        open_file(folder)


@settings(deadline=None)
@given(st.data())
def test_a_file_with_one_byte_changed_is_never_taken_for_another_state(data):
    content = bytearray(dump_state(BOTH, NOW))
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = parse_state(bytes(content), NOW)
    except ValueError:
        return
    assert found == BOTH  # white space and the like


def test_baselines_are_saved_now_and_then_and_cases_at_once(folder):
    now = [NOW]
    file = ThrottlingFile(folder, lambda: now[0])
    learnt = InterferenceState((), {}, TRACKS)
    now[0] += 10
    file.keep_interference(learnt)
    assert not (folder / FILE_NAME).exists()
    file.keep_interference(INTERFERENCE)
    assert look_up_state(folder).interference.guest_limits() == {"hog": {QUOTA: 2.0}}
    file.keep_interference(InterferenceState((CASE,), PAIRS, {}))
    assert look_up_state(folder).interference.tracks == TRACKS
    now[0] += 300
    file.keep_interference(InterferenceState((CASE,), PAIRS, {}))
    assert look_up_state(folder).interference.tracks == {}
    file.keep_interference(INTERFERENCE, learnt=True)
    assert look_up_state(folder).interference.tracks == TRACKS


def test_a_released_host_limits_no_guest_for_the_past(folder):
    open_file(folder).keep_watermarks(WATERMARKS)
    open_file(folder).keep_interference(INTERFERENCE)
    forget_interference(folder)
    assert look_up_state(folder) == ThrottlingState(WATERMARKS)
    (folder / FILE_NAME).unlink()
    forget_interference(folder)


def test_limits_and_evictions_are_written_as_release_0_1_0_reads_them():
    assert watermark_state.state_to_json(WATERMARKS) == {
        "throttles": [["big", "cpu_quota", "", 1.5]],
        "evictions": [["gone", "memory_usage"]],
        "scheduling_off": True,
    }


BANDWIDTH = ThrottleControl(MEMORY_BANDWIDTH, "0")
LIMITS = WatermarkState((ThrottledGuest("a", QUOTA, 2.0), ThrottledGuest("b", QUOTA, 1.5)))


def case(suspect, knob, *steps):
    return InterferenceCase(
        "cpu", "victim", suspect, knob, 0.5, 0.3, steps, len(steps), CasePhase.HOLD, time.monotonic()
    )


def test_the_lowest_of_what_watermarks_and_interference_have_set(tmp_path):
    state = InterferenceState(cases=(case("a", QUOTA, 3.0, 1.0), case("c", BANDWIDTH, 40.0)))
    content = dump_state(ThrottlingState(LIMITS, state), time.monotonic())
    (tmp_path / FILE_NAME).write_bytes(content)
    limits = look_up_state(tmp_path).guest_limits()
    assert limits == {"a": {QUOTA: 1.0}, "b": {QUOTA: 1.5}, "c": {BANDWIDTH: 40.0}}


@pytest.mark.parametrize("content", [None, b"{", b"\xff"])
def test_a_file_that_cannot_be_used_is_left_alone(tmp_path, content):
    if content is not None:
        (tmp_path / FILE_NAME).write_bytes(content)
    assert look_up_state(tmp_path) == ThrottlingState()
    assert {path.name for path in tmp_path.iterdir()} == ({FILE_NAME} if content is not None else set())
