"""The whole agent on real kernels, end to end against a placement service outside of the machine."""

import json

import pytest

from tests.vm import machine

pytestmark = [pytest.mark.slow, pytest.mark.vm]

SMP = ("--smp", "sockets=2,cores=2,threads=2")


@pytest.mark.parametrize("cpu", ["intel", "amd"])
def test_an_agent_in_the_machine_with_a_service_outside(cpu, share, placement, record_property):
    machine.stage(share, (*machine.PYTEST, *machine.AGENT))
    totals = machine.run_tests("tests/vm/inside_machine.py", share, *SMP, "--cpu", cpu, *placement)
    record_property("totals", totals)
    record_property("megabytes_a_second", json.loads((share / "rates.json").read_text()))
    assert totals["skipped"] == 0
    assert totals["tests"] >= 9
