"""Interference with bandwidth and cache ways of a real resctrl, in a machine with modelled counters."""

import json

import pytest

from tests.vm import machine

pytestmark = [pytest.mark.slow, pytest.mark.vm]

SMP = ("--smp", "sockets=1,cores=3,threads=1")
CACHE = ("--rdt", "l3-size-kb=2097152")
"""Of 2 GiB: other processes do not fill it while an agent that shares a CPU with a guest reads its usage."""


@pytest.mark.parametrize("signal", ["memory_bandwidth", "llc_occupancy"])
def test_bandwidth_and_ways_go_down_and_up_in_a_real_kernel(signal, share, placement, record_property):
    machine.stage(share, (*machine.PYTEST, *machine.AGENT))
    totals = machine.run_tests(
        f"tests/vm/inside_interference.py -k {signal}",
        share,
        *SMP,
        *CACHE,
        *placement,
        before="modprobe msr",
        timeout=2400,
    )
    found = json.loads((share / "found.json").read_text())
    print(json.dumps(found, indent=1))
    record_property("found", found)
    assert (totals["tests"], totals["skipped"]) == (1, 0)
