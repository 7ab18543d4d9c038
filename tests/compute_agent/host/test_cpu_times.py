"""Tests of parsing the CPU lines of /proc/stat."""

import pytest

from compute_agent.host.proc_stat import CpuTimes, busy_parts, parse_cpu_times, stolen_parts

TEXT = (
    "cpu  30 0 10 100 2 0 0 6 0 0\ncpu0 10 0 5 50 1 0 0 2 0 0\ncpu2 20 0 5 50 1 0 0 4 0 0\nintr 1\ncpu9 x\n"
)


def test_each_cpu_has_its_times_and_stolen_ones_are_not_busy():
    assert parse_cpu_times(TEXT) == {0: CpuTimes(15, 2, 68), 2: CpuTimes(25, 4, 80)}
    assert parse_cpu_times("cpu 1 2 3 4\ncpu0 1 2 3 4\n") == {0: CpuTimes(6, 0, 10)}


@pytest.mark.parametrize("text", ["", "intr 1\n", "cpu 1 2 3 4\n", "cpu0 a b\n", "cpux 1 2 3 4\n"])
def test_a_damaged_state_file_is_refused(text):
    with pytest.raises(ValueError, match=r"no line|invalid literal|not enough"):
        parse_cpu_times(text)


def test_parts_are_counted_in_ticks_and_reset_counters_are_left_out():
    first = {0: CpuTimes(10, 0, 100), 1: CpuTimes(50, 0, 100), 2: CpuTimes(1, 0, 100)}
    last = {0: CpuTimes(40, 0, 200), 1: CpuTimes(5, 0, 10), 2: CpuTimes(1, 0, 100), 3: CpuTimes(1, 0, 2)}
    assert busy_parts(first, last) == {0: 0.3}


def test_stolen_time_is_a_part_of_the_total_time():
    first = {0: CpuTimes(10, 5, 100), 1: CpuTimes(0, 9, 100), 2: CpuTimes(0, 0, 100)}
    last = {0: CpuTimes(20, 30, 200), 1: CpuTimes(50, 3, 200), 2: CpuTimes(0, 0, 100), 3: CpuTimes(1, 1, 2)}
    assert stolen_parts(first, last) == {0: 0.25}


BURNING = (
    "cpu  4383042 921132 978045 2611268 30402 0 50730 11402 1 0\n"
    "cpu0 2099801 498484 471892 1388785 9374 0 17715 5701 0 0\n"
    "cpu1 2283240 422648 506153 1222482 21028 0 33015 5701 1 0\n"
)
THIRTY_SECONDS_LATER = (
    "cpu  4386416 923170 978629 2611268 30402 0 50736 11410 1 0\n"
    "cpu0 2101391 499639 472148 1388785 9374 0 17715 5704 0 0\n"
    "cpu1 2285025 423531 506480 1222483 21028 0 33021 5705 1 0\n"
)


def test_a_virtual_machine_under_kvm_that_burns_all_its_cpus():
    """The numbers are recorded from a real machine."""
    first, last = parse_cpu_times(BURNING), parse_cpu_times(THIRTY_SECONDS_LATER)
    assert stolen_parts(first, last) == {0: 3 / 3004, 1: 4 / 3006}
    assert busy_parts(first, last) == {0: 3001 / 3004, 1: 3001 / 3006}
