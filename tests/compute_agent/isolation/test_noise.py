"""Tests of counting interruptions by CPU and cause, from files of kernels of different architectures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compute_agent.isolation.noise import (
    TICK,
    CpuCounters,
    NoiseReader,
    NoiseReading,
    ThreadCounters,
    compare_readings,
    parse_interrupts,
    parse_softirqs,
)

X86 = """\
           CPU0       CPU2       CPU3
  0:         33          5          0  IO-APIC   2-edge      timer
 24:          1          0          7  IO-APIC   5-edge      ACPI:Ged
 28:          0         12          0 PCI-MSIX-0000:00:01.0   0-edge      virtio0-config, eth0
 30:          0          3          0  PCI-MSI 524288-edge
LOC:       1000       2000       3000   Local timer interrupts
RES:          5          6          0   Rescheduling interrupts
ERR:          9
MIS:          0
"""
ARM = """\
           CPU0       CPU1
 11:       9000       8000     GICv3  27 Level     arch_timer
 45:          4          0     GICv3  79 Level     eth0
IPI0:        10         20       Rescheduling interrupts
"""
SOFTIRQS = """\
                    CPU0       CPU2       CPU3
          HI:          0          0          1
      NET_RX:         10         20          0
"""


def cpus(*numbers):
    return frozenset(numbers)


def test_interrupts_of_x86_are_named_by_their_devices():
    found = parse_interrupts(X86, cpus(1, 2, 3))
    assert found == {
        2: {
            TICK: 2005,
            "interrupt 28 (virtio0-config, eth0)": 12,
            "interrupt 30": 3,
            "RES Rescheduling interrupts": 6,
        },
        3: {TICK: 3000, "interrupt 24 (ACPI:Ged)": 7},
    }


def test_the_tick_of_arm_has_a_number():
    assert parse_interrupts(ARM, cpus(0, 1)) == {
        0: {TICK: 9000, "interrupt 45 (eth0)": 4, "IPI0 Rescheduling interrupts": 10},
        1: {TICK: 8000, "IPI0 Rescheduling interrupts": 20},
    }


@pytest.mark.parametrize("text", ["", "CPU0\n", "nonsense\n 1: x\n", "CPU0 CPU1\n 30: x\n:\n"])
def test_odd_files_have_no_interrupts(text):
    assert all(not causes for causes in parse_interrupts(text, cpus(0, 1)).values())
    assert all(not causes for causes in parse_softirqs(text, cpus(0, 1)).values())


def test_softirqs_are_counted_by_kind():
    assert parse_softirqs(SOFTIRQS, cpus(2, 3)) == {2: {"softirq NET_RX": 20}, 3: {"softirq HI": 1}}


def test_this_machine_counts_its_ticks_and_its_threads():
    reader = NoiseReader(Path("/"))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        reading = reader.read_counters(frozenset(os.sched_getaffinity(0)), {child.pid, 2**22 + 1})
        assert set(reading.threads) == {child.pid}
        assert reading.threads[child.pid].cpu in os.sched_getaffinity(0)
        assert any(TICK in one.interrupts for one in reading.cpus.values())
    finally:
        child.kill()
        child.communicate()


def reading(seconds, interrupts, switches=0, delay=0, softirqs=0, tid=7):
    return NoiseReading(
        seconds,
        {2: CpuCounters({TICK: 100 * int(seconds), "eth0": interrupts}, {"softirq NET_RX": softirqs})},
        {tid: ThreadCounters(2, switches, delay)},
    )


def test_noise_is_what_happened_between_two_readings():
    found = compare_readings(reading(10, 5, 1, 1000), reading(20, 45, 4, 1_201_000, 20))[2]
    assert (found.tick, found.interrupts, found.softirqs) == (100, 4, 2)
    assert (found.involuntary, found.delay_us) == (0.3, 120)
    assert found.causes == {"eth0": 4.0, "softirq NET_RX": 2.0}
    assert found.all_interruptions == 6.3


def test_counters_that_went_back_are_no_noise():
    found = compare_readings(reading(10, 50, 9), reading(20, 5, 1))[2]
    assert (found.interrupts, found.involuntary, found.delay_us) == (0, None, None)


def test_cpus_and_threads_of_one_reading_have_no_noise():
    assert compare_readings(NoiseReading(1), reading(2, 5)) == {}
    found = compare_readings(reading(1, 5, tid=8), reading(2, 5))[2]
    assert (found.involuntary, found.causes) == (None, {})


def test_a_kernel_without_schedstat_has_no_delay():
    before, now = reading(1, 0, 1, None), reading(2, 0, 3, None)
    found = compare_readings(before, now)[2]
    assert (found.involuntary, found.delay_us) == (2, None)


def test_no_time_gives_no_rate():
    with pytest.raises(ValueError, match="no time"):
        compare_readings(reading(2, 5), reading(2, 6))
