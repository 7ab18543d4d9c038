"""Realtime priorities, core scheduling and partitions of guests on real kernels with hardware threads."""

import json

import pytest

from tests.vm import machine

pytestmark = [pytest.mark.slow, pytest.mark.vm]

SMP = ("--smp", "sockets=1,cores=4,threads=2")


@pytest.mark.parametrize("kernel", ["6.1.", "6.12."])
def test_schedules_are_set_kept_and_given_back(kernel, share, placement, record_property):
    if not any(version.startswith(kernel) for version in machine.kernels()):
        pytest.skip(f"the machine has no kernel {kernel}")
    machine.stage(share, (*machine.PYTEST, *machine.AGENT))
    options = (*SMP, "--no-rdt", "--kernel", kernel)
    totals = machine.run_tests("tests/vm/inside_schedules.py", share, *options, *placement)
    record_property("cores", json.loads((share / "cores.json").read_text()))
    assert (totals["tests"], totals["skipped"]) == (6, 0)
