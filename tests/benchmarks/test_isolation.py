"""The benchmark of isolation measures all controllers that it names."""

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def test_the_program_measures_every_part() -> None:
    command = [sys.executable, "-m", "benchmarks.isolation", "--guests", "4", "--rounds", "2"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("masks, bans and partitions", "threads of QEMU", "realtime", "core scheduling", "noise"):
        assert f"{part}: " in done.stdout
