"""OpenStack Placement in an environment of its own, since it shares its import name with this service.

It is installed with pip, in pinned versions, once: the environment stays in the user's cache folder.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VERSION: Final = "16.0.0"
_REQUIREMENTS: Final = Path(__file__).with_name("reference-requirements.txt")
_SECONDS: Final = 900


class ReferenceMissing(Exception):
    """The reference cannot be installed; the message says why."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Where the programs of the environment are."""

    programs: Path

    def program(self, name: str) -> str:
        """The path of an installed script."""
        return str(self.programs / name)


def install() -> Reference:
    """The environment, made if it is not there as the pinned versions want it.

    :raises ReferenceMissing: when pip fails.
    """
    pins = hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()[:12]
    folder = _cache() / f"reference-{VERSION}-{pins}"
    complete = folder / ".complete"
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run(sys.executable, "-m", "venv", str(folder))
        pip = [
            str(folder / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        _run(*pip, "--requirement", str(_REQUIREMENTS))
        complete.touch()
    return Reference(folder / "bin")


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "placement-compute"


def _run(*command: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise ReferenceMissing(f"{' '.join(command)} did not end within {_SECONDS} s") from error
    if done.returncode:
        last_words = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise ReferenceMissing(f"{' '.join(command)} failed:\n{last_words}")
