"""Tests of the state file: a crash leaves the former or the new content, a checksum detects damage, and its
loss is harmless.
"""

import contextlib
import hashlib
import json
import logging
import os
import stat
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent import files
from compute_agent.files import LockedError, UnsafeFileError
from compute_agent.model.cpuset import FormerValues
from compute_agent.model.guest import CpuAssignment
from compute_agent.pipeline.state import AgentState, SavedGuest, StateFile, dump, lock_state_folder, parse
from compute_agent.report.plan import OwnedNames

CPUS = st.frozensets(st.integers(0, 300))
ASSIGNMENTS = st.builds(
    CpuAssignment,
    vcpu_cpus=st.lists(CPUS).map(tuple),
    emulator_cpus=CPUS,
    dedicated=st.lists(st.integers(0, 300)).map(tuple),
    withheld=CPUS,
    mems=CPUS,
)
ALLOCATIONS = st.dictionaries(st.text(), st.dictionaries(st.text(), st.integers(0)))
STATES = st.builds(
    AgentState,
    guests=st.dictionaries(
        st.text(), st.builds(SavedGuest, st.none() | ALLOCATIONS, st.none() | ASSIGNMENTS, st.text())
    ),
    owned=st.dictionaries(
        st.text(), st.builds(OwnedNames, st.frozensets(st.text()), st.frozensets(st.text()))
    ),
    driver=st.text(),
    former_values=st.builds(
        FormerValues,
        st.text(),
        st.dictionaries(st.integers(0, 9).map("sys/devices/system/cpu/cpu{}/x".format), st.text(max_size=9)),
    ),
)

GUESTS = {"a": SavedGuest({"rp": {"PCPU": 1}}, CpuAssignment((frozenset({1}),), frozenset({3}), (1,)))}


@settings(deadline=None)
@given(STATES)
def test_a_written_state_is_read_back(state):
    assert parse(dump(state)) == state


@settings(deadline=None)
@given(STATES, st.data())
def test_a_file_with_one_byte_changed_is_never_taken_for_another_state(state, data):
    content = bytearray(dump(state))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    try:
        found = parse(bytes(content))
    except ValueError:
        return
    assert found == state  # white space and the like


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.json"


@pytest.mark.parametrize("part", ["driver", "unclaimed", "former_values"])
def test_a_file_of_an_agent_that_kept_less_is_read(part):
    content = json.loads(dump(AgentState(GUESTS)))
    del content["data"][part]
    content["sha256"] = hashlib.sha256(
        json.dumps(content["data"], sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
    assert parse(json.dumps(content).encode()) == AgentState(GUESTS)


@pytest.mark.parametrize("path", ["etc/passwd", "sys/devices/system/cpu/../../../../etc/passwd"])
def test_former_values_of_other_files_are_not_believed(path):
    with pytest.raises(ValueError, match="not of CPUs"):
        parse(dump(AgentState(former_values=FormerValues("boot", {path: "x"}))))


def test_the_state_survives_the_process(path):
    StateFile(path).keep_guests(GUESTS)
    StateFile(path).keep_former_values(FormerValues("boot", {"sys/devices/system/cpu/x": "1"}))
    StateFile(path).keep_owned({"rp": OwnedNames(frozenset({"PCPU"}))})
    state = StateFile(path).state
    former = FormerValues("boot", {"sys/devices/system/cpu/x": "1"})
    assert state == AgentState(GUESTS, {"rp": OwnedNames(frozenset({"PCPU"}))}, former_values=former)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_allocations_of_consumers_without_a_guest_survive_too(path):
    StateFile(path).keep_guests(GUESTS, {"absent": {"rp": {"PCPU": 2}}})
    assert StateFile(path).state == AgentState(GUESTS, unclaimed={"absent": {"rp": {"PCPU": 2}}})


def test_guests_are_forgotten_only_with_their_driver(path):
    StateFile(path).keep_guests(GUESTS)
    for driver, guests in (("libvirt", GUESTS), ("libvirt", GUESTS), ("process", {})):
        StateFile(path).keep_driver(driver)
        state = StateFile(path).state
        assert (state.driver, state.guests) == (driver, guests)


def test_a_driver_that_is_added_or_removed_affects_only_its_own_guests(path):
    file = StateFile(path)
    file.keep_driver("libvirt")
    domain, process = SavedGuest({}, None, "libvirt"), SavedGuest({}, None, "process")
    file.keep_guests({"d": domain})
    file.keep_driver("libvirt,process")
    assert StateFile(path).state.guests == {"d": domain}
    file.keep_guests({"d": domain, "p": process})
    StateFile(path).keep_driver("process")
    assert StateFile(path).state.guests == {"p": process}


def test_the_guests_of_a_former_release_have_the_driver_of_its_host():
    content = json.loads(dump(AgentState(GUESTS, driver="libvirt")))
    for guest in content["data"]["guests"].values():
        del guest["driver"]
    content["sha256"] = hashlib.sha256(
        json.dumps(content["data"], sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
    (guest,) = parse(json.dumps(content).encode()).guests.values()
    assert guest == replace(GUESTS["a"], driver="libvirt")


def test_an_unchanged_state_is_not_written(path):
    file = StateFile(path)
    file.keep_guests(GUESTS)
    before = path.stat()
    file.keep_guests(dict(GUESTS))
    StateFile(path).keep_guests(GUESTS)
    assert path.stat().st_ino == before.st_ino


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"null",
        b"\xff\xfe",
        b'{"version": 2, "data": {}}',
        b"[" * 100_000,
        b'{"version": 1, "sha256": "0", "data": {"guests": {}, "owned": {}}}',
    ],
)
def test_a_file_that_cannot_be_used_costs_a_log_line_and_is_kept_aside(path, content, caplog):
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        file = StateFile(path)
    assert file.state == AgentState()
    (aside,) = path.parent.glob("state.json.damaged-*")
    assert str(path) in caplog.text
    assert str(aside) in caplog.text
    assert ("a later release wrote it" in caplog.text) == (b'"version": 2' in content)
    file.keep_guests(GUESTS)
    assert StateFile(path).state.guests == GUESTS
    assert aside.read_bytes() == content


def test_a_file_that_can_neither_be_used_nor_put_aside_is_not_overwritten(path, monkeypatch):
    path.write_bytes(b"{")

    def fail(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(files.os, "rename", fail)
    with pytest.raises(OSError, match="Read-only"):
        StateFile(path)
    assert path.read_bytes() == b"{"


def test_a_symbolic_link_is_not_followed(path, tmp_path):
    (tmp_path / "elsewhere").write_bytes(dump(AgentState(GUESTS)))
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeFileError, match=f"{path} is a symbolic link"):
        StateFile(path)


def test_a_truncated_file_costs_a_log_line(path, caplog):
    StateFile(path).keep_guests(GUESTS)
    path.write_bytes(path.read_bytes()[:-40])
    assert StateFile(path).state == AgentState()
    assert "cannot be used" in caplog.text


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(path, monkeypatch, step):
    file = StateFile(path)
    file.keep_guests(GUESTS)

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files.os, step, fail)
        with pytest.raises(OSError, match="No space"):
            file.keep_guests({})
    assert StateFile(path).state.guests == GUESTS
    assert os.listdir(path.parent) == [path.name]
    file.keep_guests({})
    assert StateFile(path).state.guests == {}


def test_a_crash_at_any_moment_leaves_the_old_content_or_the_new(tmp_path):
    """A process that writes is killed again and again. Each state that is found afterwards is complete."""
    path = tmp_path / "state.json"
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from compute_agent.pipeline.state import SavedGuest, StateFile\n"
        "file, n = StateFile(Path(sys.argv[1])), 0\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    n += 1\n"
        "    file.keep_guests({'g': SavedGuest({'rp': {'N': n}}, None)})\n"
    )
    for pause in (0.0, 0.003, 0.011, 0.02):
        child = subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE)
        child.stdout.readline()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(pause)
        child.kill()
        child.wait()
        child.stdout.close()
        if path.exists():
            assert json.loads(path.read_bytes())["version"] == 1
            parse(path.read_bytes())


def test_a_second_agent_is_refused_with_the_pid_of_the_first(tmp_path):
    folder = tmp_path / "new" / "state"
    descriptor = lock_state_folder(folder)
    with pytest.raises(LockedError, match=rf"pid {os.getpid()}.*{folder}"):
        lock_state_folder(folder)
    os.close(descriptor)
    os.close(lock_state_folder(folder))
