"""logrotate, with the rules of a program."""

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ETC = Path(__file__).parents[2] / "etc"
LOGROTATE = shutil.which("logrotate", path="/usr/sbin:/usr/bin")
RULES = {"placement": "/var/log/placement/", "compute-agent": "/var/log/compute-agent/"}


class Rotation:
    """The rules of a program for a temporary folder; logrotate runs on demand."""

    def __init__(self, program: str, folder: Path, logs: Path) -> None:
        if LOGROTATE is None:
            pytest.skip("logrotate is not installed")
        self._state = folder / "logrotate.state"
        self._rules = folder / "logrotate.conf"
        text = (ETC / program / f"{program}.logrotate").read_text()
        assert RULES[program] in text
        text = text.replace(RULES[program], f"{logs}/")
        # the files belong to the user of the test
        self._rules.write_text(re.sub(r"^ *su .*\n", "", text, flags=re.M))
        self._rules.chmod(0o644)

    def __call__(self, *options: str) -> str:
        """Run logrotate and return its output, which is empty without `--debug` or an error."""
        done = subprocess.run(
            [str(LOGROTATE), "--state", self._state, *options, self._rules],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr


def lines_of(logs: Path, name: str) -> list[str]:
    """Return all lines of a log and of its rotated parts."""
    lines = []
    for part in logs.glob(f"{name}*"):
        with (gzip.open if part.suffix == ".gz" else open)(part, "rt") as file:
            lines += file.read().splitlines()
    return lines
