"""Tests of measuring guests: the waiting of threads, pressures, bytes, and counters of caches."""

from types import SimpleNamespace

import pytest

from compute_agent.classes.guest_classes import QosClass, QosClasses
from compute_agent.host.cycles import ThreadCycles
from compute_agent.model.messages import GuestGoneError
from compute_agent.model.resource import ThrottleControl
from compute_agent.monitoring.readings import CacheReading
from compute_agent.throttling import samplers
from compute_agent.throttling.samplers import MAX_SECONDS, GuestReader, parse_io_stat, parse_schedstat
from tests.compute_agent.builders import build_guest

ALL = ("run_delay", "cpu_pressure", "io_pressure")
ONLINE = frozenset({0, 1})


def test_memory_files_of_the_kernel_are_parsed():
    assert parse_schedstat("855219 5304790 3\n") == 5304790
    assert parse_io_stat("8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=5 dios=0\n253:1 rbytes=3\n") == 33
    assert parse_io_stat("") == 0


class FakeCycles:
    """Replaces the hardware counters of CPU cycles. It returns the counts that a test sets."""

    def __init__(self):
        self.missing_reason, self.done, self.asked = "", {}, frozenset()

    def read(self, threads):
        self.asked = frozenset(threads)
        return {thread: ThreadCycles(*self.done[thread]) for thread in threads if thread in self.done}


class MeasuredHost:
    def __init__(self, folder):
        self.folder, self.gone = folder, False
        self.cgroup = folder / "cgroup"
        self.cgroup.mkdir()
        self.threads = {7: 0, 8: 0}
        self.guest = build_guest("g", pid=7, cgroup=str(self.cgroup), vcpus=2)
        cache = SimpleNamespace(read=lambda: CacheReading(guest_bandwidth={"g": {"0": 5e8}}))
        classes = QosClasses({"LS": QosClass("LS", 10)}, 0)
        self.cycles = FakeCycles()
        self.reader = GuestReader(self, lambda: classes, str(folder), cache, cycles=self.cycles)
        self.write(0, 0, 0)

    def usage_group(self, guest):
        return guest.cgroup

    def vcpu_threads(self, guest):
        if self.gone:
            raise GuestGoneError("it has ended")
        return frozenset(self.threads)

    def write(self, cpu, waited, io):
        for tid in self.threads:
            (self.folder / "proc" / str(tid)).mkdir(parents=True, exist_ok=True)
            (self.folder / "proc" / str(tid) / "schedstat").write_text(f"1 {waited} 1\n")
        (self.cgroup / "cpu.stat").write_text(f"usage_usec {cpu}\n")
        (self.cgroup / "io.stat").write_text(f"8:0 rbytes={io} wbytes={io}\n")
        for name in ("cpu", "io"):
            (self.cgroup / f"{name}.pressure").write_text(
                f"some avg10=0 avg60=0 avg300=0 total={waited // 1000}\n"
            )

    def read(self, time, signals=ALL, caches=()):
        view = SimpleNamespace(
            guest=self.guest, allocation={}, assignment=None, limits={ThrottleControl("cpu_quota"): 1.0}
        )
        return self.reader.read_guests([view], ONLINE, signals, time, caches)


@pytest.fixture
def host(tmp_path):
    return MeasuredHost(tmp_path)


def test_a_sample_is_what_has_grown_since_the_one_before(host):
    assert host.read(100.0) is None
    host.write(15_000_000, 4_000_000_000, 50_000_000)
    reading = host.read(110.0).readings["g"]
    assert (reading.cpu, reading.delay) == (1.5, 0.8)  # two threads waited 4 s each
    assert (reading.cpu_pressure, reading.io_pressure, reading.io) == (40.0, 40.0, 10e6)
    assert (reading.bandwidth, reading.cpus, reading.limited) == ({"0": 5e8}, ONLINE, True)


def test_values_without_reader_are_not_read(host):
    host.read(100.0, ())
    host.write(15_000_000, 4_000_000_000, 50_000_000)
    reading = host.read(110.0, ()).readings["g"]
    assert (reading.delay, reading.cpu_pressure, reading.io) == (None, None, None)


def test_threads_that_come_and_go_do_not_count(host):
    host.read(100.0)
    host.threads = {8: 0, 9: 0}
    host.write(15_000_000, 4_000_000_000, 0)
    assert host.read(110.0).readings["g"].delay == 0.4


def test_a_sample_of_threads_stands_for_very_many(host, monkeypatch):
    monkeypatch.setattr(samplers, "MAX_THREADS", 2)
    host.threads = dict.fromkeys((12, 9, 10, 11), 0)
    host.write(0, 0, 0)
    (host.folder / "proc/12/schedstat").write_text("is not read")
    host.read(100.0)
    host.write(0, 1_000_000_000, 0)
    (host.folder / "proc/12/schedstat").write_text("is not read")
    assert host.read(110.0).readings["g"].delay == 0.4  # threads 9 and 10 waited 1 s each


def test_a_guest_that_ends_meanwhile_tells_nothing(host):
    host.read(100.0)
    host.gone = True
    assert host.read(110.0).readings["g"].delay is None


def test_after_a_long_pause_there_is_no_sample(host):
    host.read(100.0)
    assert host.read(101.0 + MAX_SECONDS) is None
    assert host.read(111.0 + MAX_SECONDS) is not None


def test_cycles_for_each_instruction_are_of_all_its_threads_and_only_those_that_ran(host):
    host.cycles.done = {7: (100, 100), 8: (1000, 1000)}
    assert host.read(100.0, ("cpi",)) is None
    host.cycles.done = {7: (400, 200), 8: (1300, 1300)}
    assert host.read(110.0, ("cpi",)).readings["g"].cpi == 600 / 400
    host.cycles.done = {7: (1400, 600), 8: (5, 5)}  # another thread has its id
    assert host.read(120.0, ("cpi",)).readings["g"].cpi == 1000 / 400
    assert host.read(130.0, ("cpi",)).readings["g"].cpi is None
    assert host.read(140.0).readings["g"].cpi is None
    assert host.cycles.asked == frozenset()


def test_guests_on_one_cache_are_near(host):
    host.read(100.0, ("cpi",))
    caches = (frozenset({1, 2}), frozenset({3, 4}))
    assert host.read(110.0, ("cpi",), caches).readings["g"].near == {0, 1, 2}
