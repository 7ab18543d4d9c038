"""Tests of CPU counters of threads. Software events replace hardware events, which virtual machines lack."""

import errno
import os
import struct
import threading

import pytest

from compute_agent.host import cycles
from compute_agent.host.cycles import PerfEvents, ThreadCycles, open_event


def open_software(kind, config, thread, group):
    """Open a counter of the nanoseconds that a thread ran."""
    return open_event(1, 1, thread, group)


def software_events():
    return PerfEvents(open_software)


class Worker:
    """A thread that burns CPU time on request, until it is ended."""

    def __init__(self):
        self.turns, self.ready = threading.Semaphore(0), threading.Semaphore(0)
        self.more = True
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self.id = self.thread.native_id

    def _run(self):
        while self.turns.acquire() and self.more:
            sum(range(10_000))
            self.ready.release()

    def burn(self):
        self.turns.release()
        self.ready.acquire()

    def end(self):
        self.more = False
        self.turns.release()
        self.thread.join()
        while os.path.exists(f"/proc/self/task/{self.id}"):
            pass


@pytest.fixture
def worker():
    worker = Worker()
    yield worker
    if worker.thread.is_alive():
        worker.end()


@pytest.fixture
def counters():
    found = software_events()
    found.read([os.getpid()])
    if found.missing_reason:
        pytest.skip(found.missing_reason)
    yield found
    found.read(())


def test_only_the_requested_thread_is_counted(worker, counters):
    first = counters.read([worker.id])
    assert first.keys() == {worker.id}
    worker.burn()
    then = counters.read([worker.id])[worker.id]
    assert then.cycles > first[worker.id].cycles
    assert counters.read([worker.id])[worker.id].cycles == 0  # an idle thread is counted from 0 again
    worker.burn()
    assert counters.read([worker.id])[worker.id].cycles > 0
    assert counters.missing_reason == ""


def test_ended_and_unrequested_threads_keep_no_file_open(worker, counters):
    files = len(os.listdir("/proc/self/fd"))
    counters.read(())
    before = len(os.listdir("/proc/self/fd"))
    assert files == before + 2
    counters.read([worker.id])
    worker.end()
    counters.read([worker.id])  # what it did in the end
    assert counters.read([worker.id, os.getpid()]).keys() == {os.getpid()}
    assert len(os.listdir("/proc/self/fd")) == before + 2
    counters.read(())
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_new_thread_with_an_old_id_is_counted_from_its_start(monkeypatch):
    counts = {"first": (500, 400), "second": (7, 5)}
    files, owner = {}, "first"

    def open_counter(kind, config, thread, group):
        descriptor = os.open("/dev/null", os.O_RDONLY)
        files[descriptor] = owner
        return descriptor

    def read(descriptor, size):
        return struct.pack("=QQQ", 2, *counts[files[descriptor]])

    monkeypatch.setattr(cycles.os, "read", read)
    counters = PerfEvents(open_counter)
    assert counters.read([1]) == {1: ThreadCycles(500, 400)}
    counts["first"] = (900, 800)
    assert counters.read([1]) == {1: ThreadCycles(900, 800)}
    owner = "second"
    assert counters.read([1]) == {1: ThreadCycles(7, 5)}
    counts["second"] = (70, 50)
    assert counters.read([1]) == {1: ThreadCycles(70, 50)}
    counters.read(())


def test_only_a_thread_without_permission_is_left_out():
    def open_counter(kind, config, thread, group):
        if thread == 1:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return os.open("/dev/zero", os.O_RDONLY)

    counters, before = PerfEvents(open_counter), len(os.listdir("/proc/self/fd"))
    assert counters.read([1, 2, 3]).keys() == {2, 3}
    assert counters.missing_reason == ""
    assert counters.read([1]) == {}
    assert "CAP_PERFMON" in counters.missing_reason
    assert counters.read(()) == {}
    assert "CAP_PERFMON" in counters.missing_reason, "nobody was there to try it with"
    assert len(os.listdir("/proc/self/fd")) == before


def test_missing_hardware_counters_give_a_reason_and_leave_no_file_open():
    counters, before = PerfEvents(), len(os.listdir("/proc/self/fd"))
    found = counters.read([threading.get_native_id()])
    if found:
        pytest.skip("this machine has hardware counters")
    assert "perf_event_open" in counters.missing_reason or "hardware counters" in counters.missing_reason
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOENT, "no hardware counters"),
        (errno.EACCES, "CAP_PERFMON"),
        (errno.EPERM, "SystemCallFilter=perf_event_open"),
        (errno.EMFILE, "LimitNOFILE"),
        (errno.ENOSYS, "perf_event_open(2) fails"),
    ],
)
def test_each_failure_has_a_reason_and_a_remedy(number, words):
    def refuse(*event):
        raise OSError(number, os.strerror(number))

    counters = PerfEvents(refuse)
    assert counters.read([1, 2]) == {}
    assert words in counters.missing_reason


def test_a_refused_second_counter_closes_the_first():
    descriptors = []

    def open_counter(kind, config, thread, group):
        if group >= 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        descriptors.append(os.open("/dev/null", os.O_RDONLY))
        return descriptors[-1]

    assert PerfEvents(open_counter).read([1]) == {}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[0])


def test_too_many_threads_for_the_file_limit_are_not_counted(worker, monkeypatch):
    monkeypatch.setattr(cycles.resource, "getrlimit", lambda which: (8, 8))  # the limit allows one thread
    counters = software_events()
    files = len(os.listdir("/proc/self/fd"))
    counters.read([worker.id])
    assert counters.read([worker.id, os.getpid()]) == {}
    assert "LimitNOFILE" in counters.missing_reason
    assert len(os.listdir("/proc/self/fd")) == files


def test_an_architecture_without_the_system_call_has_a_reason(monkeypatch):
    monkeypatch.setattr(cycles.platform, "machine", lambda: "m68k")
    counters = PerfEvents()
    assert counters.read([os.getpid()]) == {}
    assert "fails" in counters.missing_reason
