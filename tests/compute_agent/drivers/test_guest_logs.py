"""Tests of the removal of old logs of process guests."""

import logging
import os
import subprocess
import time
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.drivers.processes.records import (
    GRACE_SECONDS,
    TAIL_BYTES,
    EndedLog,
    GuestLogs,
    choose_logs,
    prune_logs,
)

DAY = 86400.0
NOW = 100 * DAY


def log(name, size, days):
    return EndedLog(Path(name), size, NOW - days * DAY)


@pytest.mark.parametrize(
    ("most", "removed"),
    [
        (1000, ["old"]),
        (60, ["old"]),
        (59, ["c", "old"]),
        (30, ["c", "old"]),
        (29, ["b", "c", "old"]),
        (0, "abc old"),
    ],
)
def test_logs_above_the_age_go_first_and_then_the_oldest_above_the_size(most, removed):
    logs = [log("a", 10, 1), log("old", 50, 8), log("c", 30, 5), log("b", 20, 3)]
    chosen = [one.path.name for one in choose_logs(logs, NOW, 7 * DAY, most)]
    assert chosen == (removed if isinstance(removed, list) else ["a", "b", "c", "old"])


def test_a_log_that_just_changed_stays_at_any_size():
    assert choose_logs([EndedLog(Path("a"), 10**9, NOW - GRACE_SECONDS)], NOW, 0.0, 0) == []


LOGS = st.lists(st.builds(log, st.text(), st.integers(0, 100), st.floats(0, 20)), max_size=20)


@given(LOGS, st.floats(0, 20), st.integers(0, 1000))
def test_remaining_logs_keep_age_and_size_and_no_more_are_removed(logs, days, most):
    removed = choose_logs(logs, NOW, days * DAY, most)
    stays = [one for one in logs if one not in removed]
    settled = [one for one in stays if NOW - one.ended > GRACE_SECONDS]
    assert all(NOW - one.ended <= days * DAY for one in settled)
    assert not settled or sum(one.size for one in stays) <= most
    in_time = [one for one in removed if NOW - one.ended <= days * DAY]
    if in_time:
        youngest = max(in_time, key=lambda one: one.ended)
        younger = [one for one in logs if one.ended >= youngest.ended]
        assert sum(one.size for one in younger) > most


@pytest.fixture
def make_old(tmp_path):
    """A function that makes an old file in the folder of a guest."""

    def make(name):
        path = tmp_path / name
        path.write_text("x")
        os.utime(path, (time.time() - 30 * DAY,) * 2)
        return path

    return make


def test_only_logs_of_guests_without_a_record_are_removed(tmp_path, make_old):
    ended, running = str(uuid.uuid4()), str(uuid.uuid4())
    gone = make_old(f"{ended}.log")
    stay = [
        make_old(name)
        for name in (
            f"{running}.log",
            f"{running}.json",
            "notes.log",
            f"{ended}.log.1",
            f"{ended}.json.damaged-x",
        )
    ]
    (tmp_path / f"{uuid.uuid4()}.log").symlink_to(stay[2])
    (tmp_path / f"{uuid.uuid4()}.log").mkdir()
    before = len(os.listdir(tmp_path))
    prune_logs(tmp_path, 7 * DAY, 1000)
    assert not gone.exists()
    assert all(path.exists() for path in stay)
    assert len(os.listdir(tmp_path)) == before - 1


def test_a_missing_folder_is_no_error(tmp_path):
    prune_logs(tmp_path / "none", 0.0, 0)


@pytest.fixture
def running(tmp_path):
    """The log of a running guest."""
    guest = str(uuid.uuid4())
    (tmp_path / f"{guest}.json").write_text("{}")
    path = tmp_path / f"{guest}.log"
    path.touch()
    return path


def test_the_log_of_a_guest_that_writes_without_end_stays_bounded(running, caplog):
    logs = GuestLogs(running.parent)
    with running.open("ab") as output:
        child = subprocess.Popen(["yes"], stdout=output)
    try:
        for _ in range(3):
            while running.stat().st_size < 4 * TAIL_BYTES:
                time.sleep(0.01)
            os.kill(child.pid, 19)  # SIGSTOP keeps the counted output unchanged
            logs.shorten_logs(4 * TAIL_BYTES - 1)
            assert TAIL_BYTES < running.stat().st_size < TAIL_BYTES + 100
            assert running.read_bytes().startswith(b"[compute-agent removed ")
            os.kill(child.pid, 18)
    finally:
        child.kill()
        child.wait()
    assert caplog.text.count("has a log above [guests] log_guest_mb") == 1


def test_the_end_of_a_log_stays_and_one_in_bounds_is_not_touched(running):
    running.write_bytes(b"a" * 60 + b"b" * 40)
    GuestLogs(running.parent).shorten_logs(100)
    assert running.read_bytes() == b"a" * 60 + b"b" * 40
    GuestLogs(running.parent).shorten_logs(80)
    assert running.read_bytes() == b"[compute-agent removed 60 bytes]\n" + b"b" * 40


def test_a_guest_that_fills_the_disk_and_ends_by_that_leaves_room(running):
    """The log belongs to a guest that has ended, because it has no record."""
    running.write_bytes(b"x" * 100)
    running.with_suffix(".json").unlink()
    os.utime(running, ns=(1, 10**18 + 1))
    GuestLogs(running.parent).shorten_logs(50)
    assert running.read_bytes() == b"[compute-agent removed 75 bytes]\n" + b"x" * 25
    assert running.stat().st_mtime_ns == 10**18 + 1  # by that time it is removed


def test_only_logs_of_guests_are_shortened(running, caplog):
    others = [running.with_name(name) for name in ("notes.log", f"{running.name}.1", f"{running.stem}.txt")]
    for path in others:
        path.write_bytes(b"x" * 100)
    running.unlink()
    running.symlink_to(others[0])
    logs = GuestLogs(running.parent)
    with caplog.at_level(logging.WARNING):
        logs.shorten_logs(50)
        logs.shorten_logs(10)
    assert [path.stat().st_size for path in others] == [100, 100, 100]
    assert caplog.text.count("cannot be shortened") == 1
    GuestLogs(running.parent / "absent").shorten_logs(10)
