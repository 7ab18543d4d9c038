"""Asking Nova what it makes of flavors."""

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
    """What :mod:`tests.nova.judge` says of each, in an environment that has Nova."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OS_"))}
    done = subprocess.run(
        [programs / "python", "-P", _FOLDER / "judge.py"],
        env=environ,
        input="".join(f"{json.dumps(case)}\n" for case in asked),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    assert not done.returncode, done.stderr[-8000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
