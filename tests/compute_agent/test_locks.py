"""Locks that die with their holder, and name it."""

import os
import subprocess
import sys

import pytest

from compute_agent import locks
from compute_agent.files import UnsafeFileError
from compute_agent.locks import LockedError

HOLD = "import sys, time; from compute_agent import locks; from pathlib import Path\n"
HOLD += "locks.hold(Path(sys.argv[1]), 'the first'); print('held', flush=True); time.sleep(60)"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "agent.lock"


def test_the_second_is_told_who_the_first_is_until_that_one_is_killed(path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LockedError, match=r"^the first$"):
            locks.hold(path, "the second")
        assert path.read_text() == "the first\n"
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    os.close(locks.hold(path, "2"))
    assert path.read_text() == "2\n"


def test_what_a_holder_says_is_shown_on_one_line(path):
    descriptor = locks.hold(path, "a\nb\x1b[31m" + 2000 * "x")
    try:
        with pytest.raises(LockedError) as caught:
            locks.hold(path, "me")
    finally:
        os.close(descriptor)
    assert str(caught.value).startswith("a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[31mxx")
    assert len(str(caught.value)) <= 1000


def test_a_holder_that_has_not_said_yet_who_it_is_holds_nevertheless(path):
    descriptor = locks.hold(path, "x")
    os.ftruncate(descriptor, 0)
    with pytest.raises(LockedError, match="does not say who"):
        locks.hold(path, "me")
    os.close(descriptor)


def test_a_lock_whose_file_was_removed_is_not_held_any_more(path):
    descriptor = locks.hold(path, "1")
    assert locks.is_held(path, descriptor)
    path.unlink()
    assert not locks.is_held(path, descriptor)
    other = locks.hold(path, "2")
    assert not locks.is_held(path, descriptor)
    assert locks.is_held(path, other)
    os.close(descriptor)
    os.close(other)


def test_a_file_that_is_removed_while_it_is_locked_is_not_taken_for_the_lock(path, monkeypatch):
    real, left = locks.open_own, [path]

    def open_own(*arguments):
        descriptor = real(*arguments)
        if left:
            left.pop().unlink()  # another one starts and ends between the two
        return descriptor

    monkeypatch.setattr(locks, "open_own", open_own)
    descriptor = locks.hold(path, "me")
    assert locks.is_held(path, descriptor)
    os.close(descriptor)


def test_a_symbolic_link_is_not_followed(path, tmp_path):
    (tmp_path / "victim").write_text("content")
    path.symlink_to(tmp_path / "victim")
    with pytest.raises(UnsafeFileError):
        locks.hold(path, "me")
    assert (tmp_path / "victim").read_text() == "content"


def test_a_failed_attempt_leaves_no_descriptor(path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(locks.os, "pwrite", fail)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="No space"):
        locks.hold(path, "me")
    assert os.listdir("/proc/self/fd") == before
