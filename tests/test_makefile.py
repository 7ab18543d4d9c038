"""What the first lines of the Makefile promise is there."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_every_target_that_is_told_of_has_something_to_do() -> None:
    targets = re.findall(r"^# make ([a-z-]+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test"} < set(targets)
    for target in targets:
        done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "Nothing to be done" not in done.stdout, target
