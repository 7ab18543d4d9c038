"""Block I/O classes on a real kernel with cgroup v2, on a disk without other users."""

import json

import pytest

from tests.vm import machine

pytestmark = [pytest.mark.slow, pytest.mark.vm]

SMP = ("--smp", "sockets=1,cores=2,threads=1")


def test_rates_and_shares_are_those_of_the_classes(share, placement, record_property):
    machine.stage(share, (*machine.PYTEST, *machine.AGENT))
    options = (*SMP, "--no-rdt", "--disk", "64M", *placement)
    totals = machine.run_tests("tests/vm/inside_blockio.py", share, *options, timeout=1200)
    found = json.loads((share / "blockio.json").read_text())
    print(found)
    record_property("found", found)
    assert (totals["tests"], totals["skipped"]) == (6, 0)
