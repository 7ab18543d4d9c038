"""Client of the judge in Nova's environment."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

from tests.nova.flavors import Case

_FOLDER: Final = Path(__file__).parent
REQUIREMENTS: Final = _FOLDER / "requirements.txt"
_SECONDS: Final = 900


def verdicts(programs: Path, asked: list[Case]) -> list[dict[str, Any]]:
    """Return the result of :mod:`tests.nova.judge` for each case."""
    return _said(programs, "judge.py", "".join(f"{json.dumps(case)}\n" for case in asked))


def of_unit_tests(programs: Path) -> list[Case]:
    """Return the cases of Nova's unit tests from :mod:`tests.nova.tables`, which takes minutes."""
    return _said(programs, "tables.py", "")


def _said(programs: Path, program: str, asked: str) -> list[dict[str, Any]]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OS_"))}
    done = subprocess.run(
        [programs / "python", "-P", _FOLDER / program],
        env=environ,
        input=asked,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    assert not done.returncode, done.stderr[-8000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
