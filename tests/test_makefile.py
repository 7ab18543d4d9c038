"""The targets in the first lines of the Makefile exist."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_every_documented_target_has_commands_or_dependencies() -> None:
    targets = re.findall(r"^# make ([a-z-]+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test"} < set(targets)
    for target in targets:
        done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "Nothing to be done" not in done.stdout, target
