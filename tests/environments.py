"""Environments like those of users: with only the dependencies of the wheel, or with single extras."""

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.programs import environ_without_python

ROOT = Path(__file__).parents[1]
NAME = "placement-compute"
SOURCES = [
    *("setup.cfg", "pyproject.toml", "README.md", "LICENSE"),
    *("bin", "placement", "placement_extras", "compute_agent", "migrations", "etc"),
]


def is_pinned(name: str) -> bool:
    """Whether the installed version of a library is that of ``etc/constraints.txt``."""
    pins = (ROOT / "etc/constraints.txt").read_text().lower().splitlines()
    return f"{name}=={distribution(name).version}".lower() in pins


def run(*command: object, cwd: Path, **variables: str) -> str:
    """Run a command without a terminal and return its output; it has to succeed.

    The command does not inherit PYTHONPATH and similar variables.
    """
    environment = environ_without_python()
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=600,
        check=False,
        stdin=subprocess.DEVNULL,
        env=environment | variables,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def copy_sources(target: Path) -> Path:
    """Copy the sources of a wheel, because building leaves files that the next wheel would contain."""
    target.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, target / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, target)
    return target


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout."""
    source = copy_sources(folder / "source")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, source, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: str, environment: Path) -> None:
    """Install the wheel with pip, which takes the dependencies from the index in the pinned versions.

    pip does not compile them: the few programs of the tests compile only their own imports.
    """
    constraints = ROOT / "etc" / "constraints.txt"
    pip = (environment / "bin" / "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "install", "--no-compile", "--constraint", constraints, wheel, cwd=environment)


def needed(requirement: str) -> dict[str, Distribution]:
    """Return all required distributions by name, as installed beside the tests.

    :raises PackageNotFoundError: one is not installed
    """
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(requirement)]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        for extra in ("", *wanted.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            found[name] = distribution(name)
            for line in found[name].requires or ():
                other = Requirement(line)
                if other.marker is None or other.marker.evaluate({"extra": extra}):
                    waiting.append(other)
    return found


def link(distributions: Sequence[Distribution], folder: Path) -> Path:
    """Link the files of these distributions into a folder for PYTHONPATH."""
    libraries = Path(sysconfig.get_path("purelib"))
    for each in distributions:
        for file in each.files or ():
            source = libraries / str(file)
            if ".." in file.parts or "__pycache__" in file.parts or not source.exists():
                continue  # programs and bytecode
            target = folder / str(file)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)
    return folder


def extras() -> Iterator[str]:
    """Return the extras for users, from the page about installation."""
    page = (ROOT / "doc" / "install" / "package.md").read_text()
    table = page.partition("### Extras")[2]
    for line in table.splitlines():
        if line.startswith("| `"):
            yield from (word.strip("` ") for word in line.split("|")[1].split(","))
