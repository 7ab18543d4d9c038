"""A busy guest CPU at each level of isolation, on real kernels under load: what still disturbs it."""

import json
import os

import pytest

from tests.vm import machine

pytestmark = [pytest.mark.slow, pytest.mark.vm]

SMP = ("--smp", "sockets=1,cores=4,threads=1")
SECONDS = os.environ.get("ISOLATION_SECONDS", "15")


@pytest.mark.parametrize("kernel", ["6.1.", "6.12."])
def test_each_level_disturbs_a_guest_less_and_is_given_back(kernel, share, record_property):
    if not any(version.startswith(kernel) for version in machine.kernels()):
        pytest.skip(f"the machine has no kernel {kernel}")
    machine.stage(share, (*machine.PYTEST, *machine.AGENT))
    options = (*SMP, "--kernel", kernel, "--no-rdt", "--disk", "64M", "--net", "--cache", "none")
    options += ("--env", f"ISOLATION_SECONDS={SECONDS}")
    totals = machine.run_tests(
        "tests/vm/inside_isolation.py", share, *options, timeout=1500 + 4 * float(SECONDS)
    )
    table = json.loads((share / "isolation.json").read_text())
    print(json.dumps(table, indent=1))
    record_property("table", table)
    assert (totals["tests"], totals["skipped"]) == (3, 0)
