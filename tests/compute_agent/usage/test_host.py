"""Tests of the usage of the whole host, from the kernel's files."""

from pathlib import Path

import pytest

from compute_agent.host.proc_stat import CpuTimes
from compute_agent.usage.rounds import (
    AllCpus,
    HostMemory,
    MeasuringRound,
    host_cpu_use,
    parse_host_stat,
    parse_meminfo,
    parse_pressure,
    pressure_share,
)

KIB = 1024


def test_all_times_are_counted_and_use_excludes_idle_time() -> None:
    """The columns are user nice system idle iowait irq softirq steal guest guest_nice."""
    text = "cpu  1 20 300 4000 50000 600000 7000000 80000000 5 5\ncpu0 1\ncpu1 1\nintr 9\ncpu2 9\n"
    busy = 1 + 20 + 300 + 600000 + 7000000
    assert parse_host_stat(text) == AllCpus(CpuTimes(busy, 80000000, busy + 4000 + 50000 + 80000000), 2)


def test_old_kernels_have_fewer_times_and_a_host_has_a_cpu() -> None:
    assert parse_host_stat("cpu 1 2 3 4\n") == AllCpus(CpuTimes(6, 0, 10), 1)


@pytest.mark.parametrize("text", ["", "intr 5\n", "cpu\n"])
def test_without_the_line_of_all_cpus_nothing_is_known(text: str) -> None:
    with pytest.raises(ValueError, match="no line of all CPUs"):
        parse_host_stat(text)


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("MemTotal: 1000 kB\nMemAvailable: 300 kB\nMemFree: 5 kB\nCached: 7 kB\n", 700),
        ("MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 20 kB\nCached: 3 kB\n", 877),
        ("MemTotal: 1000 kB\nMemFree: 100 kB\nCached: 3 kB\n", 897),
        ("MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 20 kB\n", 880),
        ("MemTotal: 1000 kB\nMemAvailable: 1000 kB\n", 0),
        ("MemTotal: 1000 kB\nMemAvailable: 1001 kB\n", 0),
        ("MemTotal: 1000 kB\nMemAvailable: 0 kB\nMemFree: 9 kB\n", 1000),
    ],
)
def test_used_is_what_is_not_available(text: str, used: int) -> None:
    assert parse_meminfo(text) == HostMemory(1000 * KIB, used * KIB)


def test_the_total_of_some_is_read() -> None:
    text = "full avg10=9 avg60=9 avg300=9 total=9\nsome avg10=1.00 avg60=2.00 avg300=3.00 total=77\n"
    assert parse_pressure(text) == 77
    with pytest.raises(ValueError, match="no line 'some'"):
        parse_pressure(text.splitlines()[0])


@pytest.mark.parametrize(
    ("first", "last", "seconds", "percent"),
    [
        (1_000_000, 1_500_000, 2.0, 25.0),
        (0, 2_000_000, 2.0, 100.0),
        (0, 2_100_000, 2.0, 100.0),  # the kernel looks at another clock
        (5, 5, 2.0, 0.0),
        (5, 4, 2.0, None),  # the counter began again
        (0, 5, 0.0, None),
    ],
)
def test_pressure_is_the_part_of_the_time_in_which_a_task_waited(
    tmp_path: Path, first: int, last: int, seconds: float, percent: float | None
) -> None:
    path = tmp_path / "cpu"
    before, now = MeasuringRound(100.0, "/", ()), MeasuringRound(100.0 + seconds, "/", ())
    for each, total in ((before, first), (now, last)):
        path.write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n")
        assert each.parse_file(str(path), parse_pressure) == total
    assert pressure_share(str(path), now, before) == percent
    assert pressure_share(str(path), now, None) is None


def stat(busy: int, idle: int, cpus: int = 2) -> str:
    return f"cpu {busy} 0 0 {idle}\n" + "".join(f"cpu{number} 0\n" for number in range(cpus))


@pytest.mark.parametrize(
    ("last", "cores"),
    [
        (stat(150, 150), 1.0),
        (stat(200, 100), 2.0),
        (stat(100, 200), 0.0),
        (stat(100, 100), None),  # no time went by
        (stat(99, 300), None),  # the counter began again
        (stat(150, 49), None),
    ],
)
def test_use_of_cpu_is_a_part_of_what_there_is(tmp_path: Path, last: str, cores: float | None) -> None:
    (tmp_path / "proc").mkdir()
    before, now = MeasuringRound(0.0, str(tmp_path), ()), MeasuringRound(1.0, str(tmp_path), ())
    for each, text in ((before, stat(100, 100)), (now, last)):
        (tmp_path / "proc" / "stat").write_text(text)
        assert host_cpu_use(each, None) == (None, 2.0)
    assert host_cpu_use(now, before) == (cores, 2.0)
