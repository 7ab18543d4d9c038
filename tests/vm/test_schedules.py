"""Realtime priorities, core scheduling and partitions of guests on real kernels with hardware threads."""

import json
import os

import pytest

from tests.vm import machine

pytestmark = [pytest.mark.slow, pytest.mark.vm]

SMP = ("--smp", "sockets=1,cores=4,threads=2")


CORE_KERNEL = machine.FOLDER / "core/vmlinux"
"""A kernel with core scheduling, which Debian's have not; `python -m tests.vm.kernel` makes it."""


@pytest.mark.parametrize(
    ("kernel", "skipped"), [("6.1.", 2), ("6.12.", 2), (str(CORE_KERNEL), 1)], ids=["6.1", "6.12", "core"]
)
def test_schedules_are_set_kept_and_given_back(kernel, skipped, share, placement, record_property):
    if not os.path.exists(kernel) and not any(version.startswith(kernel) for version in machine.kernels()):
        pytest.skip(f"the machine has no kernel {kernel}")
    machine.stage(share, (*machine.PYTEST, *machine.AGENT))
    options = (*SMP, "--no-rdt", "--kernel", kernel)
    totals = machine.run_tests("tests/vm/inside_schedules.py", share, *options, *placement)
    used = json.loads((share / "cores.json").read_text())
    print(used)
    record_property("cores", used)
    assert (totals["tests"], totals["skipped"]) == (8, skipped)
