"""Tests of making snapshots from files of the kernel."""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compute_agent.monitoring.readings import CacheReading
from compute_agent.throttling.samplers import MetricSampler
from compute_agent.throttling.watermarks.metrics import BUILT_IN, MetricRegistry, MetricUnit, WatermarkMetric
from compute_agent.usage import rounds
from compute_agent.usage.rounds import (
    MeasuredGuest,
    parse_cpu_stat,
    parse_host_stat,
    parse_meminfo,
    parse_page_cache,
)
from compute_agent.usage.snapshot import MetricSeries
from tests.compute_agent.throttling.watermarks.builders import (
    BEST_EFFORT,
    CPU,
    MEMORY,
    PRESSURE,
    guest,
    line,
    rules,
)

MEMORY_STAT = "anon 5000\nfile 3000\nshmem 1000\n"
MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\n"


class SampledTree:
    """A root folder with /proc and two guests: `a` in a cgroup, and `b` as a process without a cgroup."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cgroup = root / "cgroup/a"
        self.subjects = [
            MeasuredGuest(guest("a"), cgroup=str(self.cgroup)),
            MeasuredGuest(guest("b", vcpus=1.0, protected=True), pids=(42,)),
        ]
        self.write("proc/meminfo", MEMINFO)
        self.write("cgroup/a/memory.current", "10000\n")
        self.write("cgroup/a/memory.stat", MEMORY_STAT)
        self.write("proc/42/statm", "900 50 20 1 0 30 0\n")
        self.at(0)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def at(self, second: float) -> None:
        """Write counters by which 4 CPUs are half busy, `a` uses 1.5 cores, `b` uses half a core, and tasks
        wait for a quarter of the time.
        """
        ticks = int(second * 100)
        cpu = f"{ticks} 0 {ticks // 2} {ticks * 2} 0 0 {ticks // 2} 0 0 0"
        per_cpu = "".join(f"cpu{number} 1 1 1 1 1 1 1 1 0 0\n" for number in range(4))
        self.write("proc/stat", f"cpu  {cpu}\n{per_cpu}intr 12345 0 0\nctxt 5\n")
        microseconds = int(second * 1e6)
        some = f"some avg10=99.00 avg60=99.00 avg300=99.00 total={microseconds // 4}\n"
        self.write("proc/pressure/cpu", f"{some}full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
        self.write("cgroup/a/cpu.stat", f"usage_usec {int(microseconds * 1.5)}\nuser_usec 1\nsystem_usec 2\n")
        own = os.sysconf("SC_CLK_TCK") * second / 4
        fields = f"S 1 1 1 0 -1 0 0 0 0 0 {own:.0f} {own:.0f} 7 7 20 0 1 0 777 0 0"
        self.write("proc/42/stat", f"42 (a ) b) {fields}\n")


@pytest.fixture
def tree(tmp_path):
    return SampledTree(tmp_path)


ALL = rules(
    line("cpu", evict=1e9),
    line("memory", "memory_usage", evict=1e9),
    line("psi", "cpu_pressure", throttle_down=1e9, throttle_up=1),
    line("ratio", "best_effort_cpu", throttle_down=1e9, throttle_up=1),
)


def test_usage_of_host_and_guests(tree):
    sampler = MetricSampler(str(tree.root))
    first = sampler.take_snapshot(ALL, tree.subjects, 1000.0)
    tree.at(2)
    second = sampler.take_snapshot(ALL, tree.subjects, 1002.0)
    page = os.sysconf("SC_PAGE_SIZE")
    assert first.host == {MEMORY: 600 * 1024}
    assert first.guests["a"].usage == {MEMORY: 8000.0}
    assert second.host == pytest.approx(
        {MEMORY: 600 * 1024, CPU: 2.0, PRESSURE: 25.0, BEST_EFFORT: 100 * 1.5 / 4}
    )
    assert second.capacity == {CPU: 4.0, MEMORY: 1000 * 1024, PRESSURE: 100.0, BEST_EFFORT: 100.0}
    # Page cache can be had without ending the guest, shared memory cannot.
    assert second.guests["a"].usage == pytest.approx({CPU: 1.5, MEMORY: 8000.0, BEST_EFFORT: 37.5})
    assert second.guests["b"].usage == pytest.approx({CPU: 0.5, MEMORY: 50.0 * page})
    assert second.guests["a"].allotments == tree.subjects[0].facts.allotments


def test_late_round_measures_no_less(tree):
    sampler = MetricSampler(str(tree.root))
    sampler.take_snapshot(ALL, tree.subjects, 1000.0)
    tree.at(6)
    late = sampler.take_snapshot(ALL, tree.subjects, 1006.0)
    assert (late.host[CPU], late.guests["a"].usage[CPU]) == pytest.approx((2.0, 1.5))


def test_each_file_is_read_once_a_round_and_only_for_metrics_that_have_lines(tree, monkeypatch):
    read = []
    real = rounds.read_optional
    monkeypatch.setattr(
        rounds,
        "read_optional",
        lambda path, is_short=False: read.append(path) or real(path, is_short),
    )
    sampler = MetricSampler(str(tree.root))
    for second in (0, 1, 2):
        tree.at(second)
        read.clear()
        sampler.take_snapshot(ALL, tree.subjects, float(second))
        assert len(read) == len(set(read)) == 8
    read.clear()
    sampler.take_snapshot(rules(line("memory", "memory_usage", evict=1)), tree.subjects, 3.0)
    assert not [
        path for path in read if "stat" in Path(path).name and "memory" not in path and "m" not in path
    ]
    assert {Path(path).name for path in read} == {"meminfo", "memory.current", "memory.stat", "statm"}


@pytest.mark.parametrize(
    ("missing", "series"),
    [
        ("proc/stat", {CPU}),
        ("proc/meminfo", {MEMORY}),
        ("proc/pressure/cpu", {PRESSURE}),
    ],
)
def test_missing_file_costs_its_metric_only(tree, missing, series, caplog):
    sampler = MetricSampler(str(tree.root))
    whole = MetricSampler(str(tree.root))
    sampler.take_snapshot(ALL, tree.subjects, 0.0)
    whole.take_snapshot(ALL, tree.subjects, 0.0)
    tree.at(1)
    everything = set(whole.take_snapshot(ALL, tree.subjects, 1.0).host)
    (tree.root / missing).unlink()
    assert set(sampler.take_snapshot(ALL, tree.subjects, 1.0).host) == everything - series
    tree.at(2)
    (tree.root / missing).unlink(missing_ok=True)
    sampler.take_snapshot(ALL, tree.subjects, 2.0)
    (metric,) = {one.metric for one in series}
    told = [record.message for record in caplog.records]
    assert told == [
        f"The host does not report the metric {metric}: its watermarks wait until the host reports it"
    ]


def test_a_repeated_reading_of_the_host_is_reported_once(tree, caplog):
    sampler = MetricSampler(str(tree.root))
    caplog.set_level(logging.INFO, "compute_agent.throttling.samplers")
    for second in range(6):
        tree.at(second)
        tree.write("proc/meminfo", "" if second in (1, 2) else MEMINFO)
        sampler.take_snapshot(ALL, tree.subjects, float(second))
    assert [record.message for record in caplog.records] == [
        "The host does not report the metric memory_usage: its watermarks wait until the host reports it",
        "The host reports the metric memory_usage again",
    ]


@pytest.mark.parametrize("content", ["", "garbage", "cpu\n", "some total\n", "MemTotal: x kB\n", "\0\xff"])
def test_files_with_other_content_are_taken_as_missing(tree, content):
    sampler = MetricSampler(str(tree.root))
    for path in ("proc/stat", "proc/meminfo", "proc/pressure/cpu", "cgroup/a/cpu.stat", "proc/42/stat"):
        tree.write(path, content)
    for path in ("cgroup/a/memory.current", "proc/42/statm"):
        tree.write(path, content)
    sampler.take_snapshot(ALL, tree.subjects, 0.0)
    now = sampler.take_snapshot(ALL, tree.subjects, 1.0)
    assert now.host == {}
    assert [one.usage for one in now.guests.values()] == [{}, {}]


def test_counters_that_begin_again_are_no_usage(tree):
    sampler = MetricSampler(str(tree.root))
    tree.at(100)
    sampler.take_snapshot(ALL, tree.subjects, 0.0)
    tree.at(1)
    now = sampler.take_snapshot(ALL, tree.subjects, 1.0)
    assert CPU not in now.host
    assert PRESSURE not in now.host
    assert now.guests["a"].usage[CPU] == 0.0


def test_another_process_with_the_same_pid_is_not_taken_for_the_guest(tree):
    sampler = MetricSampler(str(tree.root))
    sampler.take_snapshot(ALL, tree.subjects, 0.0)
    tree.at(1)
    path = tree.root / "proc/42/stat"
    path.write_text(path.read_text().replace(" 777 ", " 888 "))
    assert CPU not in sampler.take_snapshot(ALL, tree.subjects, 1.0).guests["b"].usage


def test_guest_that_came_or_went_between_two_rounds_is_no_error(tree):
    sampler = MetricSampler(str(tree.root))
    both, one = tree.subjects, tree.subjects[:1]
    sampler.take_snapshot(ALL, one, 0.0)
    tree.at(1)
    assert CPU not in sampler.take_snapshot(ALL, both, 1.0).guests["b"].usage
    tree.at(2)
    assert set(sampler.take_snapshot(ALL, one, 2.0).guests) == {"a"}


@pytest.mark.parametrize(
    ("idle", "steal", "percent"),
    [(900, 100, 10.0), (0, 1000, 100.0), (1000, 0, 0.0), (0, 0, None), (100, -1, None)],
)
def test_stolen_time_is_reported_in_percent(tree, idle, steal, percent):
    sampler, lines = MetricSampler(str(tree.root)), rules(line("steal", "cpu_steal", disable_scheduling=50))
    for ticks, taken in ((1000, 7), (1000 + idle, 7 + steal)):
        tree.write("proc/stat", f"cpu 10 0 10 {ticks} 0 0 0 {taken} 0 0\ncpu0 1 1 1 1\nintr 0\n")
        found = sampler.take_snapshot(lines, (), float(ticks))
    assert found.host.get(MetricSeries("cpu_steal")) == percent


def test_old_kernels_without_memavailable_and_steal():
    memory = parse_meminfo("MemTotal: 100 kB\nMemFree: 10 kB\nBuffers: 5 kB\nCached: 25 kB\n")
    assert (memory.total, memory.used) == (102400, 61440)
    found = parse_host_stat("cpu 10 0 10 80\ncpu0 10 0 10 80\nintr 0\n")
    assert (found.times.busy, found.times.total, found.cpus) == (20, 100, 1)


def test_caches_are_read_once_a_round(tree):
    class Reader:
        reads = 0

        def read(self) -> CacheReading:
            self.reads += 1
            return CacheReading(
                bandwidth={"0": 5e9}, bandwidth_capacity={"0": 2e10}, guest_bandwidth={"a": {"0": 1e9}},
                occupancy={"0": 1e6}, cache_size={"0": 3e7}, guest_occupancy={"a": {"0": 5e5}, "x": {}},
            )  # fmt: skip

    by = rules(
        line("bw", "memory_bandwidth", evict=1e12),
        line("llc", "llc_occupancy", throttle_down=1e12, throttle_up=1),
    )
    reader = Reader()
    sampler = MetricSampler(str(tree.root), reader)
    now = sampler.take_snapshot(by, tree.subjects, 0.0)
    bandwidth, occupancy = MetricSeries("memory_bandwidth", "0"), MetricSeries("llc_occupancy", "0")
    assert now.host == {bandwidth: 5e9, occupancy: 1e6}
    assert now.capacity == {bandwidth: 2e10, occupancy: 3e7}
    assert now.guests["a"].usage == {bandwidth: 1e9, occupancy: 5e5}
    assert reader.reads == 1


def test_metric_of_another_package_that_breaks_costs_nothing_else(tree, caplog):
    def measure(now, before):
        raise RuntimeError("a bug")

    registry = MetricRegistry([*BUILT_IN, WatermarkMetric("own", MetricUnit.OTHER, 1, measure)])
    by = rules(
        line("own", "own", disable_scheduling=1), line("memory", "memory_usage", evict=1), registry=registry
    )
    assert set(MetricSampler(str(tree.root)).take_snapshot(by, tree.subjects, 0.0).host) == {MEMORY}
    assert "own cannot be measured" in caplog.text


def test_real_process_that_burns_cpu_is_measured():
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        sampler = MetricSampler()
        subjects = [
            MeasuredGuest(guest("burner"), pids=(burner.pid,)),
            MeasuredGuest(guest("me"), pids=(os.getpid(),)),
        ]
        deadline = time.monotonic() + 30
        sampler.take_snapshot(ALL, subjects, time.monotonic())
        burnt = 0.0
        while burnt < 0.02 and time.monotonic() < deadline:  # other work may hold the CPUs for a while
            time.sleep(0.3)
            now = sampler.take_snapshot(ALL, subjects, time.monotonic())
            burnt = now.guests["burner"].usage[CPU]
        assert 0.02 <= burnt <= 1.2
        assert now.guests["burner"].usage[MEMORY] > 1e6
        assert 0 < now.host[CPU] <= now.capacity[CPU] == os.cpu_count()
        assert 0 < now.host[MEMORY] < now.capacity[MEMORY]
    finally:
        burner.kill()
        burner.wait()


def test_parsers_of_guest_files():
    assert parse_cpu_stat("usage_usec 1500000\nuser_usec 1\n") == 1.5
    assert parse_page_cache(MEMORY_STAT) == 2000
