"""Counters of threads, by the kernel: those of software, which every machine has, in place of hardware's."""

import errno
import os
import threading

import pytest

from compute_agent.host import cycles
from compute_agent.host.cycles import HARDWARE, PerfEvents, ThreadCycles

SOFTWARE = ((1, 1), (1, 1))
"""Nanoseconds that a task ran, twice."""


class Worker:
    """A thread that burns when told to, until it is ended."""

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
    found = PerfEvents(SOFTWARE)
    found.read([os.getpid()])
    if found.missing:
        pytest.skip(found.missing)
    yield found
    found.read(())


def test_what_a_thread_does_is_counted_and_of_nobody_else(worker, counters):
    first = counters.read([worker.id])
    assert first.keys() == {worker.id}
    worker.burn()
    then = counters.read([worker.id])[worker.id]
    assert then.cycles > first[worker.id].cycles
    assert counters.read([worker.id])[worker.id].cycles == 0  # it did nothing, and begins anew
    worker.burn()
    assert counters.read([worker.id])[worker.id].cycles > 0
    assert counters.missing == ""


def test_threads_that_are_not_asked_for_any_more_and_those_that_ended_cost_no_file(worker, counters):
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


def test_a_thread_that_has_the_id_of_one_that_ended_is_counted_as_another(monkeypatch):
    counts = {"first": (500, 400), "second": (7, 5)}
    files, owner = {}, "first"

    def open_event(event, thread, group):
        descriptor = os.open("/dev/null", os.O_RDONLY)
        files[descriptor] = owner
        return descriptor

    def read(descriptor, size):
        return cycles._COUNTS.pack(2, *counts[files[descriptor]])

    monkeypatch.setattr(cycles, "_open_event", open_event)
    monkeypatch.setattr(cycles.os, "read", read)
    counters = PerfEvents()
    assert counters.read([1]) == {1: ThreadCycles(500, 400)}
    counts["first"] = (900, 800)
    assert counters.read([1]) == {1: ThreadCycles(900, 800)}
    owner = "second"
    assert counters.read([1]) == {1: ThreadCycles(7, 5)}
    counts["second"] = (70, 50)
    assert counters.read([1]) == {1: ThreadCycles(70, 50)}
    counters.read(())


def test_a_thread_that_may_not_be_counted_is_left_out_alone(monkeypatch):
    def open_event(event, thread, group):
        if thread == 1:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return os.open("/dev/zero", os.O_RDONLY)

    monkeypatch.setattr(cycles, "_open_event", open_event)
    counters, before = PerfEvents(), len(os.listdir("/proc/self/fd"))
    assert counters.read([1, 2, 3]).keys() == {2, 3}
    assert counters.missing == ""
    assert counters.read([1]) == {}
    assert "CAP_PERFMON" in counters.missing
    assert counters.read(()) == {}
    assert "CAP_PERFMON" in counters.missing, "nobody was there to try it with"
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_hardware_counters_that_is_said_and_nothing_stays_open():
    counters, before = PerfEvents(HARDWARE), len(os.listdir("/proc/self/fd"))
    found = counters.read([threading.get_native_id()])
    if found:
        pytest.skip("this machine has hardware counters")
    assert "perf_event_open" in counters.missing or "hardware counters" in counters.missing
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
def test_why_nothing_is_counted_is_said_with_what_to_do(monkeypatch, number, words):
    def refuse(*event):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(cycles, "_open_event", refuse)
    counters = PerfEvents()
    assert counters.read([1, 2]) == {}
    assert words in counters.missing


def test_a_second_counter_that_is_refused_leaves_no_file_of_the_first(monkeypatch):
    descriptors = []

    def open_event(event, thread, group):
        if group >= 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        descriptors.append(os.open("/dev/null", os.O_RDONLY))
        return descriptors[-1]

    monkeypatch.setattr(cycles, "_open_event", open_event)
    assert PerfEvents().read([1]) == {}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[0])


def test_more_threads_than_files_may_be_open_are_not_counted_at_all(worker):
    counters = PerfEvents(SOFTWARE, most=1)
    files = len(os.listdir("/proc/self/fd"))
    counters.read([worker.id])
    assert counters.read([worker.id, os.getpid()]) == {}
    assert "LimitNOFILE" in counters.missing
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_processor_that_nobody_knows_the_call_of_is_told(monkeypatch):
    monkeypatch.setattr(cycles.platform, "machine", lambda: "m68k")
    counters = PerfEvents()
    assert counters.read([os.getpid()]) == {}
    assert "fails" in counters.missing
