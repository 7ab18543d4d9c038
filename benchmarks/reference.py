"""The references of this project, OpenStack Placement and Nova, each in a separate environment.

Placement has the import name of this service. Pip installs the pinned versions once. The environments stay in
the user's cache folder.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VERSION: Final = "16.0.0"
_REQUIREMENTS: Final = Path(__file__).with_name("reference-requirements.txt")
_SECONDS: Final = 900
_COMPLETE: Final = ".complete"


class ReferenceMissing(Exception):
    """Pip cannot install the reference; the message has the reason."""


@dataclass(frozen=True, slots=True)
class ReferenceInstall:
    """The folder with the programs of the environment."""

    programs: Path

    def program_path(self, name: str) -> str:
        """Return the path of an installed script."""
        return str(self.programs / name)


def install_reference() -> ReferenceInstall:
    """Install OpenStack Placement, if it is missing.

    :raises ReferenceMissing: pip has failed.
    """
    return ReferenceInstall(install_environment(f"reference-{VERSION}", _REQUIREMENTS))


def install_environment(name: str, requirements: Path) -> Path:
    """Return the folder with the programs of an environment, and create it if it lacks the pinned versions.

    If several processes need an environment at once, one creates it and the others wait.

    :raises ReferenceMissing: pip has failed.
    """
    folder = _environment_folder(name, requirements)
    complete = folder / _COMPLETE
    with _lock_folder(folder):
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            _run_command(sys.executable, "-m", "venv", str(folder))
            pip = [
                str(folder / "bin" / "python"),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ]
            _run_command(*pip, "--requirement", str(requirements))
            complete.touch()
    return folder / "bin"


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Hold a lock, so that only one process creates the environment. The end of the process releases it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_installed(name: str, requirements: Path) -> bool:
    """Return whether an environment is complete."""
    return (_environment_folder(name, requirements) / _COMPLETE).exists()


def _environment_folder(name: str, requirements: Path) -> Path:
    pins = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    return _cache_folder() / f"{name}-{pins}"


def _cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "placement-compute"


def _run_command(*command: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise ReferenceMissing(f"{' '.join(command)} did not end within {_SECONDS} s") from error
    if done.returncode:
        last_words = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise ReferenceMissing(f"{' '.join(command)} failed:\n{last_words}")
