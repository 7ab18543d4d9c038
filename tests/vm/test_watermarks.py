"""Watermarks on a real kernel with cgroup v2, in a machine with idle CPUs."""

import json

import pytest

from tests.vm import machine

pytestmark = [pytest.mark.slow, pytest.mark.vm]

SMP = ("--smp", "sockets=1,cores=2,threads=1")


def test_the_machine_gets_below_its_watermark_and_limits_are_removed(share, placement, record_property):
    machine.stage(share, (*machine.PYTEST, *machine.AGENT))
    totals = machine.run_tests(
        "tests/vm/inside_watermarks.py", share, *SMP, "--no-rdt", *placement, timeout=1800
    )
    found = json.loads((share / "watermarks.json").read_text())
    print(found)
    record_property("found", found)
    assert (totals["tests"], totals["skipped"]) == (5, 0)
