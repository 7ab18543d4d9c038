"""Tests of the state file of throttling, which outlives the agent. State of former releases is read once."""

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent import kept_json
from compute_agent.files import UnsafeFileError
from compute_agent.model.resource import ThrottleControl
from compute_agent.pipeline.state import AgentState, StateFile
from compute_agent.pipeline.state import dump as dump_agent
from compute_agent.throttling import state_file
from compute_agent.throttling.interference.cases import CasePhase, InterferenceCase, SuspectPair
from compute_agent.throttling.interference.evidence import SignalBaseline, SignalTrack
from compute_agent.throttling.interference.state import (
    InterferenceState,
    PairRecord,
    SignalKey,
    state_to_json,
)
from compute_agent.throttling.state_file import (
    FILE_NAME,
    FORMER_FILE,
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

# These texts are from release 0.1, as its own code wrote them.
FORMER_QOS = {
    "throttles": [["big", "cpu_quota", "", 1.5]],
    "evictions": [["gone", "memory_usage"]],
    "scheduling_off": True,
}
FORMER_INTERFERENCE = {
    "version": 1,
    "cases": [["cpu", "server", "hog", "cpu_quota", "", 0.9, 0.3, [2.0], 1, "hold", 100.0, 0, False, False]],
    "pairs": [["cpu", "server", "hog", -1000.0, 2, 100.0, False]],
    "baselines": [["server", "run_delay", "", 0.1, 0.01, 40]],
}


def agent_file(folder):
    return StateFile(folder / "state.json")


def open_file(folder):
    return ThrottlingFile(folder, agent_file(folder), lambda: NOW)


def write_former(folder, qos=None, interference=None):
    """Write the files of a former release."""
    data = json.loads(dump_agent(AgentState()))["data"]
    if qos is not None:
        data["qos"] = qos
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    content = {"version": 1, "sha256": hashlib.sha256(text.encode()).hexdigest(), "data": data}
    (folder / "state.json").write_text(json.dumps(content))
    (folder / "state.json").chmod(0o600)
    if interference is not None:
        (folder / FORMER_FILE).write_text(json.dumps(interference))
        (folder / FORMER_FILE).chmod(0o600)


def former_part(folder):
    """The part about watermarks, read as a former release reads it."""
    return json.loads((folder / "state.json").read_text())["data"].get("qos")


@pytest.fixture
def folder(tmp_path):
    tmp_path.chmod(0o700)
    return tmp_path


def test_both_parts_outlive_the_process(folder):
    file = open_file(folder)
    file.keep_watermarks(WATERMARKS)
    file.keep_interference(INTERFERENCE)
    assert open_file(folder).state == BOTH


def test_the_part_on_watermarks_of_a_former_release_is_taken_over(folder):
    write_former(folder, FORMER_QOS)
    assert open_file(folder).state.watermarks == WATERMARKS
    assert former_part(folder) is None
    assert open_file(folder).state.watermarks == WATERMARKS


def test_the_file_of_interference_of_a_former_release_is_taken_over(folder):
    write_former(folder, interference=FORMER_INTERFERENCE)
    assert open_file(folder).state.interference == INTERFERENCE
    assert not (folder / FORMER_FILE).exists()
    assert open_file(folder).state.interference == INTERFERENCE


def test_a_reader_sees_what_a_start_would_take_over_and_changes_nothing(folder):
    write_former(folder, FORMER_QOS, FORMER_INTERFERENCE)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    found = look_up_state(folder, agent_file(folder).former_watermarks)
    assert found.watermarks == WATERMARKS
    assert found.interference.guest_limits() == {"hog": {QUOTA: 2.0}}
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_a_crash_at_any_step_of_taking_over_loses_nothing(folder, removed, monkeypatch):
    """The agent dies when the new file is written, and ``removed`` of the two former parts are gone."""
    write_former(folder, FORMER_QOS, FORMER_INTERFERENCE)
    steps = []

    class Died(BaseException):
        pass

    def step(act):
        def counted(*arguments):
            if len(steps) == removed:
                raise Died
            steps.append(1)
            act(*arguments)

        return counted

    monkeypatch.setattr(StateFile, "drop_former_watermarks", step(StateFile.drop_former_watermarks))
    monkeypatch.setattr(state_file, "remove_durably", step(state_file.remove_durably))
    if removed < 2:
        with pytest.raises(Died):
            open_file(folder)
    else:
        open_file(folder)
    monkeypatch.undo()
    assert open_file(folder).state == BOTH
    assert former_part(folder) is None
    assert not (folder / FORMER_FILE).exists()


def test_a_full_disk_at_the_first_start_is_told_and_the_former_parts_go_later(folder, monkeypatch, caplog):
    write_former(folder, FORMER_QOS, FORMER_INTERFERENCE)
    write = state_file.write_durably

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state_file, "write_durably", full)
    file = open_file(folder)
    assert file.state == BOTH
    assert "cannot be saved: [Errno 28]" in caplog.text
    assert former_part(folder) == FORMER_QOS
    monkeypatch.setattr(state_file, "write_durably", write)
    file.keep_watermarks(WatermarkState(scheduling_off=False))
    assert former_part(folder) is None
    assert not (folder / FORMER_FILE).exists()
    assert open_file(folder).state == ThrottlingState(WatermarkState(scheduling_off=False), INTERFERENCE)


def test_a_downgrade_finds_neither_part_and_what_it_leaves_wins_at_the_next_upgrade(folder):
    write_former(folder, FORMER_QOS, FORMER_INTERFERENCE)
    open_file(folder)
    assert former_part(folder) is None
    assert not (folder / FORMER_FILE).exists()
    # The former release has run again, with other limits.
    later = FORMER_QOS | {"throttles": [["small", "cpu_quota", "", 0.5]], "evictions": []}
    write_former(folder, later, FORMER_INTERFERENCE | {"cases": []})
    state = open_file(folder).state
    assert state.watermarks.throttles == (ThrottledGuest("small", QUOTA, 0.5),)
    assert state.guest_limits() == {"small": {QUOTA: 0.5}}


def test_without_a_former_file_of_interference_no_guest_was_limited(folder):
    open_file(folder).keep_interference(INTERFERENCE)
    write_former(folder, FORMER_QOS)
    assert open_file(folder).state == ThrottlingState(WATERMARKS, InterferenceState((), PAIRS, TRACKS))


@pytest.mark.parametrize("qos", [{}, [], {"throttles": [[1]], "evictions": [], "scheduling_off": None}])
def test_a_former_part_that_cannot_be_used_is_as_if_it_was_lost(folder, qos, caplog):
    write_former(folder, qos)
    (folder / FORMER_FILE).write_text("{")
    (folder / FORMER_FILE).chmod(0o600)
    assert open_file(folder).state == ThrottlingState()
    assert caplog.text.count("cannot be used and starts empty") == 2
    assert list(folder.glob(f"{FORMER_FILE}.damaged-*"))


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
    file = ThrottlingFile(folder, agent_file(folder), lambda: now[0])
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
    (folder / FORMER_FILE).write_bytes(kept_json.dump(1, state_to_json(INTERFERENCE, NOW)))
    forget_interference(folder)
    assert look_up_state(folder) == ThrottlingState(WATERMARKS)
    assert not (folder / FORMER_FILE).exists()
    (folder / FILE_NAME).unlink()
    forget_interference(folder)


def test_the_part_on_watermarks_is_written_as_former_releases_did():
    assert watermark_state.state_to_json(WATERMARKS) == FORMER_QOS
