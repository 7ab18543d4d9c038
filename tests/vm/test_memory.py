"""Steps of memory before eviction on a real kernel with swap."""

import json

import pytest

from tests.vm import machine

pytestmark = [pytest.mark.slow, pytest.mark.vm]

SMP = ("--smp", "sockets=1,cores=2,threads=1")


def test_memory_is_taken_by_steps_before_guests_have_to_leave(share, placement, record_property):
    machine.stage(share, (*machine.PYTEST, *machine.AGENT))
    totals = machine.run_tests(
        "tests/vm/inside_memory.py", share, *SMP, "--no-rdt", "--disk", "1500M", *placement, timeout=1800
    )
    found = json.loads((share / "memory.json").read_text())
    print(found)
    record_property("found", found)
    assert (totals["tests"], totals["skipped"]) == (4, 0)
    # The neighbour of a higher class has not waited for the memory that the other guests gave back.
    assert found["waited"]["1"] <= found["waited"]["2"] + found["waited"]["3"]
