"""Realtime priorities, core scheduling and partitions of guests on real kernels with hardware threads."""

import json
import os

import pytest

from tests.vm import kernel, machine

pytestmark = [pytest.mark.slow, pytest.mark.vm]

SMP = ("--smp", "sockets=1,cores=4,threads=2")


@pytest.mark.parametrize(
    ("booted", "skipped"), [("6.1.", 3), ("6.12.", 3), (str(kernel.KERNEL), 1)], ids=["6.1", "6.12", "core"]
)
def test_schedules_are_set_kept_and_given_back(booted, skipped, share, placement, record_property):
    if not os.path.exists(booted) and not any(version.startswith(booted) for version in machine.kernels()):
        pytest.skip(f"the machine has no kernel {booted}")
    machine.stage(share, (*machine.PYTEST, *machine.AGENT))
    options = (*SMP, "--no-rdt", "--kernel", booted)
    totals = machine.run_tests("tests/vm/inside_schedules.py", share, *options, *placement)
    used = json.loads((share / "cores.json").read_text())
    print(used)
    record_property("cores", used)
    assert (totals["tests"], totals["skipped"]) == (9, skipped)
