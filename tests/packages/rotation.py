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
    """The rules of a program, for a folder of the test's own; logrotate runs when it is told to."""

    def __init__(self, program: str, folder: Path, logs: Path) -> None:
        if LOGROTATE is None:
            pytest.skip("logrotate is not installed")
        self._state = folder / "logrotate.state"
        self._rules = folder / "logrotate.conf"
        text = (ETC / program / f"{program}.logrotate").read_text()
        assert RULES[program] in text
        text = text.replace(RULES[program], f"{logs}/")
        self._rules.write_text(re.sub(r"^ *su .*\n", "", text, flags=re.M))  # the user is that of the test
        self._rules.chmod(0o644)

    def __call__(self, *options: str) -> str:
        """What logrotate says, which is nothing unless it is asked to."""
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
    """Every line of a log and of its older parts."""
    lines = []
    for part in logs.glob(f"{name}*"):
        with (gzip.open if part.suffix == ".gz" else open)(part, "rt") as file:
            lines += file.read().splitlines()
    return lines
