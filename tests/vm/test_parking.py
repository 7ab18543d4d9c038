"""Idle cores are parked and woken on a real kernel, with CPUs that really go offline."""

import pytest

from tests.vm import machine

pytestmark = [pytest.mark.slow, pytest.mark.vm]

SMP = ("--smp", "sockets=2,cores=2,threads=2")


def test_cores_are_parked_woken_and_given_back(share, placement):
    machine.stage(share, (*machine.PYTEST, *machine.AGENT))
    totals = machine.run_tests("tests/vm/inside_parking.py", share, *SMP, *placement)
    assert (totals["tests"], totals["skipped"]) == (4, 0)
