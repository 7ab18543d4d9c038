"""Earlier releases: their commits in ``releases.txt``, and installations of their own wheels.

Each release is built from the sources of its commit, and installed with the dependencies that its own
``etc/constraints.txt`` pins. Installations stay in ``build/releases``, one for each commit.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.version import Version

from tests.builds import export_commit, run
from tests.programs import environ_without_python

ROOT: Final = Path(__file__).parents[2]
RECORD: Final = "tests/upgrade/releases.txt"
FOLDER: Final = ROOT / "build/releases"
_EXTRAS: Final = "postgresql,mysql,console"


@dataclass(frozen=True, slots=True)
class Release:
    """A version and its commit."""

    version: Version
    commit: str


@dataclass(frozen=True, slots=True)
class InstalledRelease:
    """A release with its own environment.

    :ivar programs: the folder of its programs.
    """

    version: Version
    programs: Path

    def command(self, name: str) -> str:
        """Return the path of a program."""
        return str(self.programs / name)

    def run(self, name: str, *words: object, accepted: tuple[int, ...] = (0,)) -> str:
        """Return the output of a program.

        :raises AssertionError: its exit status is none of the accepted ones.
        """
        command = [self.command(name), *map(str, words)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            stdin=subprocess.DEVNULL,
            env=environ_without_python(),
        )
        assert done.returncode in accepted, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout


def read_releases(checkout: Path = ROOT) -> list[Release]:
    """Return the recorded releases, newest first."""
    lines = (line.split() for line in (checkout / RECORD).read_text().splitlines() if line[:1] not in "#")
    return [Release(Version(version), commit) for version, commit in lines]


def add_release(checkout: Path, release: Release) -> None:
    """Record a release before the others."""
    path = checkout / RECORD
    lines = path.read_text().splitlines(keepends=True)
    first = next((at for at, line in enumerate(lines) if not line.startswith("#")), len(lines))
    lines.insert(first, f"{release.version} {release.commit}\n")
    path.write_text("".join(lines))


def install_release(release: Release, checkout: Path = ROOT) -> InstalledRelease:
    """Return the installation of a release, which is made if there is none yet.

    :raises BuildFailed: git does not have the commit, or pip fails.
    """
    commit = run("git", "rev-parse", "--verify", f"{release.commit}^{{commit}}", folder=checkout).strip()
    folder = FOLDER / commit
    installed = InstalledRelease(release.version, folder / "environment/bin")
    if (folder / "complete").exists():
        return installed
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    source = export_commit(commit, folder / "source", checkout)
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    # sources before 0.1.0 took their version from tags
    version = {"SETUPTOOLS_SCM_PRETEND_VERSION": str(release.version)}
    run(sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", folder, source, **version)
    (wheel,) = folder.glob("*.whl")
    run(sys.executable, "-m", "venv", folder / "environment")
    constraints = ("--constraint", source / "etc/constraints.txt")
    run(installed.command("python"), *pip, "install", *constraints, f"{wheel}[{_EXTRAS}]")
    shutil.rmtree(source)
    (folder / "complete").touch()
    return installed


def current_release(checkout: Path = ROOT) -> Release:
    """Return the last commit of the checkout, with the version that it declares."""
    line = next(
        line for line in (checkout / "setup.cfg").read_text().splitlines() if line.startswith("version")
    )
    return Release(Version(line.partition("=")[2].strip()), "HEAD")
