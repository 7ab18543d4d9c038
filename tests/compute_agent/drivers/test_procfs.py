"""Tests of reading processes from /proc."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from compute_agent.drivers import procfs

ALL = frozenset(os.sched_getaffinity(0))
ONE = frozenset({min(ALL)})

THREADS = """
import sys, threading, time
stop = threading.Event()
threads = [threading.Thread(target=stop.wait) for _ in range(int(sys.argv[1]))]
[thread.start() for thread in threads]
print("ready", flush=True)
time.sleep(60)
"""

# Never has fewer than a few threads that were born in the last moments.
BREEDER = """
import threading, time
def breed(depth):
    while True:
        if depth:
            thread = threading.Thread(target=breed, args=(depth - 1,), daemon=True)
            thread.start()
        time.sleep(0.002)
        if depth < 2:
            return
threading.Thread(target=breed, args=(2,), daemon=True).start()
print("ready", flush=True)
time.sleep(60)
"""


def start(script, *arguments):
    child = subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\n"
    return child


def end(child):
    child.kill()
    child.wait()
    child.stdout.close()


def test_a_process_is_known_by_pid_and_start_time(sleeper):
    identity = procfs.identify_process(sleeper.pid)
    assert identity is not None
    assert procfs.is_alive(identity)
    assert not procfs.is_alive(replace(identity, start_time=identity.start_time - 1)), "a recycled pid"
    assert not procfs.is_alive(replace(identity, boot_id="of another boot"))


def test_a_zombie_is_not_alive(sleeper):
    identity = procfs.identify_process(sleeper.pid)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not procfs.is_alive(identity)
    assert procfs.identify_process(sleeper.pid) is None


def test_a_command_name_may_have_blanks_and_brackets(tmp_path):
    odd = tmp_path / "a) S (b"
    os.symlink("/bin/sleep", odd)
    child = subprocess.Popen([odd, "60"])
    try:
        while procfs.command_line(child.pid) != (str(odd), "60"):
            time.sleep(0.01)
        identity = procfs.identify_process(child.pid)
        assert identity is not None
        assert child.pid in procfs.session_members(os.getsid(0))
    finally:
        child.kill()
        child.wait()


def test_all_threads_are_pinned_and_counted_once():
    child = start(THREADS, "40")
    try:
        assert len(procfs.thread_ids(child.pid)) == 41
        assert procfs.pin_threads(child.pid, ONE) == (41 if ALL != ONE else 0)
        assert procfs.misplaced_threads(procfs.thread_ids(child.pid), ONE) == {}
        assert procfs.pin_threads(child.pid, ONE) == 0
    finally:
        end(child)


@pytest.mark.skipif(len(ALL) < 2, reason="needs two CPUs to tell apart")
def test_threads_that_are_born_meanwhile_are_pinned():
    child = start(BREEDER)
    try:
        procfs.pin_threads(child.pid, ONE)
        for _ in range(20):
            assert procfs.misplaced_threads(procfs.thread_ids(child.pid), ONE) == {}
            time.sleep(0.005)
    finally:
        end(child)


def test_a_process_that_is_gone_is_no_error(sleeper):
    sleeper.kill()
    sleeper.wait()
    assert procfs.pin_threads(sleeper.pid, ONE) == 0
    assert procfs.misplaced_threads(procfs.thread_ids(sleeper.pid), ONE) == {}
    assert procfs.thread_ids(sleeper.pid) == frozenset()
    assert procfs.thread_affinity(sleeper.pid) is None
    assert procfs.command_line(sleeper.pid) == ()
    assert procfs.users_of(sleeper.pid) == frozenset()


def test_cpus_that_do_not_exist_are_an_error(sleeper):
    with pytest.raises(OSError, match="Invalid argument"):
        procfs.pin_threads(sleeper.pid, frozenset({1023}))


def test_children_of_children_are_descendants():
    child = subprocess.Popen(["sh", "-c", "sh -c 'sleep 60 & wait'; true"])
    found = []
    try:
        while [procfs.command_line(pid)[:1] for pid in found] != [("sh",), ("sh",), ("sleep",)]:
            time.sleep(0.01)
            found = procfs.descendants_of(child.pid)
        assert found[0] == child.pid
    finally:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        child.wait()


class TestSharedReads:
    def test_a_reading_is_shared_only_within_a_block(self, monkeypatch):
        calls = []

        def read(subject):
            calls.append(subject)
            return subject * 2

        assert [procfs.read_shared("key", read, one) for one in (1, 2)] == [2, 4]
        with procfs.sharing_reads() as readings:
            assert [procfs.read_shared("key", read, one) for one in (3, 4)] == [6, 6]
            assert procfs.read_shared("other", read, 5) == 10
            with procfs.sharing_reads():
                assert procfs.read_shared("key", read, 6) == 12
            assert procfs.read_shared("key", read, 7) == 6
        assert procfs.read_shared("key", read, 8) == 16
        with procfs.sharing_reads(readings):
            assert procfs.read_shared("key", read, 9) == 6
            monkeypatch.setattr(procfs, "READING_SECONDS", -1.0)
            assert procfs.read_shared("key", read, 10) == 20
        assert calls == [1, 2, 3, 5, 6, 8, 10]

    def test_a_failure_is_not_shared_and_ends_the_sharing(self):
        answers = iter([OSError("gone"), "there"])

        def read(subject):
            if isinstance(answer := next(answers), Exception):
                raise answer
            return answer

        with procfs.sharing_reads():
            with pytest.raises(OSError, match="gone"):
                procfs.read_shared("key", read, None)
            assert procfs.read_shared("key", read, None) == "there"
        with pytest.raises(ZeroDivisionError), procfs.sharing_reads():
            raise ZeroDivisionError
        assert procfs.read_shared("key", str, 1) == "1"

    def test_another_thread_reads_by_itself(self):
        found = []
        with procfs.sharing_reads():
            assert procfs.read_shared("key", str, 1) == "1"
            other = threading.Thread(target=lambda: found.append(procfs.read_shared("key", str, 2)))
            other.start()
            other.join()
        assert found == ["2"]

    def test_a_process_that_ended_is_alive_at_most_until_the_block_ends(self):
        with subprocess.Popen(["sleep", "60"]) as child:
            identity = procfs.identify_process(child.pid)
            with procfs.sharing_reads():
                assert procfs.was_alive(identity)
                child.kill()
                child.wait()
                assert procfs.was_alive(identity)
                assert not procfs.is_alive(identity)
            assert not procfs.was_alive(identity)
            assert procfs.identify_recent(child.pid) is None
            # Another process with this pid has another start time.
            assert not procfs.was_alive(replace(identity, start_time=identity.start_time + 1))
