"""Tests of file locks, which the kernel releases when their holder dies, and which name their holder."""

import os
import subprocess
import sys

import pytest

from compute_agent import files
from compute_agent.files import LockedError, UnsafeFileError

HOLD = "import sys, time; from compute_agent import files; from pathlib import Path\n"
HOLD += "files.hold_lock(Path(sys.argv[1]), 'the first'); print('held', flush=True); time.sleep(60)"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "agent.lock"


def test_the_error_names_the_holder_until_that_is_killed(path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LockedError, match=r"^the first$"):
            files.hold_lock(path, "the second")
        assert path.read_text() == "the first\n"
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    os.close(files.hold_lock(path, "2"))
    assert path.read_text() == "2\n"


def test_the_name_of_a_holder_is_shown_on_one_line(path):
    descriptor = files.hold_lock(path, "a\nb\x1b[31m" + 2000 * "x")
    try:
        with pytest.raises(LockedError) as caught:
            files.hold_lock(path, "me")
    finally:
        os.close(descriptor)
    assert str(caught.value).startswith("a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[31mxx")
    assert len(str(caught.value)) <= 1000


def test_a_holder_that_has_not_written_its_name_yet_holds_the_lock(path):
    descriptor = files.hold_lock(path, "x")
    os.ftruncate(descriptor, 0)
    with pytest.raises(LockedError, match="has not written its name"):
        files.hold_lock(path, "me")
    os.close(descriptor)


def test_a_lock_is_not_held_any_more_after_its_file_was_removed(path):
    descriptor = files.hold_lock(path, "1")
    assert files.is_held(path, descriptor)
    path.unlink()
    assert not files.is_held(path, descriptor)
    other = files.hold_lock(path, "2")
    assert not files.is_held(path, descriptor)
    assert files.is_held(path, other)
    os.close(descriptor)
    os.close(other)


def test_a_file_that_is_removed_while_it_is_locked_is_not_taken_for_the_lock(path, monkeypatch):
    real, left = files.open_own, [path]

    def open_own(*arguments):
        descriptor = real(*arguments)
        if left:
            left.pop().unlink()  # another process starts and ends between the two steps
        return descriptor

    monkeypatch.setattr(files, "open_own", open_own)
    descriptor = files.hold_lock(path, "me")
    assert files.is_held(path, descriptor)
    os.close(descriptor)


def test_a_symbolic_link_is_not_followed(path, tmp_path):
    (tmp_path / "victim").write_text("content")
    path.symlink_to(tmp_path / "victim")
    with pytest.raises(UnsafeFileError):
        files.hold_lock(path, "me")
    assert (tmp_path / "victim").read_text() == "content"


def test_a_failed_attempt_leaves_no_descriptor(path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "pwrite", fail)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="No space"):
        files.hold_lock(path, "me")
    assert os.listdir("/proc/self/fd") == before
