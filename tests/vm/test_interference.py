"""Interference with the bandwidth of a real resctrl, in a machine whose counters the test moves."""

import json

import pytest

from tests.vm import machine

pytestmark = [pytest.mark.slow, pytest.mark.vm]

SMP = ("--smp", "sockets=1,cores=3,threads=1")


def test_bandwidth_goes_down_and_up_in_a_real_kernel(share, placement, record_property):
    machine.stage(share, (*machine.PYTEST, *machine.AGENT))
    totals = machine.run_tests(
        "tests/vm/inside_interference.py",
        share,
        *SMP,
        *placement,
        before="modprobe msr",
        timeout=2400,
    )
    found = json.loads((share / "found.json").read_text())
    print(json.dumps(found, indent=1))
    record_property("found", found)
    assert (totals["tests"], totals["skipped"]) == (1, 0)
