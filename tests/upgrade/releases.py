"""Earlier releases: their commits in ``releases.txt``, and installations of their own wheels and packages.

Each release is built from the sources of its commit, with the dependencies that its own
``etc/constraints.txt`` pins. A wheel is installed into an environment. Debian packages are unpacked into a
folder: their programs run there with Debian's Python, and the machine's own packages stay unchanged.
Installations stay in ``build/releases``, one for each commit and kind.
"""

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from packaging.version import Version

from tests.builds import build_debian, export_commit, run
from tests.programs import environ_without_python

ROOT: Final = Path(__file__).parents[2]
RECORD: Final = "tests/upgrade/releases.txt"
FOLDER: Final = ROOT / "build/releases"
Source = Literal["wheel", "packages"]
"""The files of a release from which it is installed: its wheel, or its Debian packages."""
_EXTRAS: Final = "postgresql,mysql,console"
_PIP: Final = ("-m", "pip", "--quiet", "--disable-pip-version-check")


@dataclass(frozen=True, slots=True)
class Release:
    """A version and its commit."""

    version: Version
    commit: str


@dataclass(frozen=True, slots=True)
class InstalledRelease:
    """A release with its own environment.

    :ivar source: the wheel or the packages.
    :ivar folder: the folder of the installation; it has the name of the commit.
    """

    version: Version
    source: Source
    folder: Path

    @property
    def name(self) -> str:
        """A name for files, which no other installation has."""
        return f"{self.folder.name[:12]}-{self.source}"

    @property
    def programs(self) -> Path:
        """The folder of its programs."""
        inside = {"wheel": "environment/bin", "packages": "packages/opt/placement-compute/bin"}
        return self.folder / inside[self.source]

    def command(self, name: str) -> tuple[str, str]:
        """Return the words that start a program.

        The first lines of a package's programs name the interpreter below ``/opt``, so it is a word here.
        """
        return str(self.programs / "python3"), str(self.programs / name)

    def run(self, name: str, *words: object, accepted: tuple[int, ...] = (0,)) -> str:
        """Return the output of a program.

        :raises AssertionError: its exit status is none of the accepted ones.
        """
        command = [*self.command(name), *map(str, words)]
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


def install_release(release: Release, source: Source, checkout: Path = ROOT) -> InstalledRelease:
    """Return the installation of a release, which is made if there is none yet.

    :raises BuildFailed: git does not have the commit, or a program of the build fails.
    """
    commit = run("git", "rev-parse", "--verify", f"{release.commit}^{{commit}}", folder=checkout).strip()
    installed = InstalledRelease(release.version, source, FOLDER / commit)
    complete = installed.folder / f"{source}.complete"
    if complete.exists():
        return installed
    installed.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        sources = export_commit(commit, Path(name, "source"), checkout)
        install = {"wheel": _install_wheel, "packages": _unpack_packages}[source]
        install(sources, installed, Path(name))
    complete.touch()
    return installed


def _install_wheel(sources: Path, installed: InstalledRelease, folder: Path) -> None:
    """Build the wheel in a folder, and install it into an environment."""
    words = ("wheel", "--no-deps", "--wheel-dir", folder, sources)
    run(sys.executable, *_PIP, *words, **_version_variable(installed))
    (wheel,) = folder.glob("*.whl")
    environment = installed.programs.parent
    run(sys.executable, "-m", "venv", "--clear", environment)
    constraints = ("--constraint", sources / "etc/constraints.txt")
    run(*installed.command("pip"), *_PIP[2:], "install", *constraints, f"{wheel}[{_EXTRAS}]")


def _unpack_packages(sources: Path, installed: InstalledRelease, folder: Path) -> None:
    """Build the Debian packages in a folder, and unpack them."""
    words = ("-m", "build", "--sdist", "--outdir", folder, sources)
    run(sys.executable, *words, **_version_variable(installed))
    (sdist,) = folder.glob("*.tar.gz")
    epoch = str(int((sources / "setup.cfg").stat().st_mtime))
    unpacked = installed.folder / "packages"
    shutil.rmtree(unpacked, ignore_errors=True)
    for package in build_debian(sources, sdist, folder, epoch):
        run("dpkg-deb", "--extract", package, unpacked)


def _version_variable(installed: InstalledRelease) -> dict[str, str]:
    """Return the variable of the version for sources before 0.1.0, which took it from tags."""
    return {"SETUPTOOLS_SCM_PRETEND_VERSION": str(installed.version)}


def current_release(checkout: Path = ROOT) -> Release:
    """Return the last commit of the checkout, with the version that it declares."""
    line = next(
        line for line in (checkout / "setup.cfg").read_text().splitlines() if line.startswith("version")
    )
    return Release(Version(line.partition("=")[2].strip()), "HEAD")
