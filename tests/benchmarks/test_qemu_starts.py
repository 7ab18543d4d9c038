"""The benchmark of QEMU guests with a killed agent runs on a small scale, and spreads its kills."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.qemu_starts import kills_of
from tests.compute_agent import libvirtd
from tests.demo.system import SCRIPTS

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize(("starts", "kills"), [(200, 50), (10, 4), (5, 0), (7, 6)])
def test_kills_are_spread_over_the_starts_and_of_both_kinds(starts, kills):
    spread = list(kills_of(starts, kills))
    counts = Counter(spread)
    assert len(spread) == starts
    assert (counts["running"], counts["starting"]) == (kills - kills // 2, kills // 2)
    assert sum(kill is not None for kill in spread[: starts // 2]) == starts // 2 * kills // starts


@pytest.mark.slow
def test_no_guest_moves_when_the_agent_is_killed(tmp_path):
    try:
        libvirtd.find()
    except libvirtd.LibvirtMissing as missing:
        pytest.skip(str(missing))
    if not (SCRIPTS / "compute-agent").exists():
        pytest.skip("the distribution is not installed")
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "benchmarks.qemu_starts", "--starts", "4", "--kills", "2"]
    done = subprocess.run(
        [*command, "--json", str(report)], cwd=CHECKOUT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert (found["starts"], found["kills_while_starting"], found["kills_while_running"]) == (4, 1, 1)
    assert (found["moved"], len(found["times"])) == (0, 3)
