"""Environments as users have them: with nothing but what the wheel needs, and with single extras."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
NAME = "placement-compute"
SOURCES = [
    *("setup.cfg", "pyproject.toml", "README.md", "LICENSE"),
    *("bin", "placement", "placement_extras", "compute_agent", "migrations", "etc"),
]


def run(*command: object, cwd: Path, **variables: str) -> str:
    """What a command prints; it has to succeed, and has no terminal.

    PYTHONPATH and the like of this process are not those of the command.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
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
    """A copy of what a wheel is built from: building leaves files that the next wheel would have."""
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
    """The wheel of this checkout."""
    source = copy_sources(folder / "source")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, source, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: str, environment: Path) -> None:
    """Have pip install it, with what it needs from the index in the versions that are pinned.

    The few programs that are run compile what they import, which is a part of all that pip would compile.
    """
    constraints = ROOT / "etc" / "constraints.txt"
    pip = (environment / "bin" / "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "install", "--no-compile", "--constraint", constraints, wheel, cwd=environment)


def needed(requirement: str) -> dict[str, Distribution]:
    """All distributions that are needed, by name, as they are installed beside the tests.

    :raises PackageNotFoundError: one is not.
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
    """A folder for PYTHONPATH that has these distributions, file by file, and no other."""
    libraries = Path(sysconfig.get_path("purelib"))
    for each in distributions:
        for file in each.files or ():
            source = libraries / str(file)
            if ".." in file.parts or "__pycache__" in file.parts or not source.exists():
                continue  # programs, and what is compiled
            target = folder / str(file)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)
    return folder


def extras() -> Iterator[str]:
    """The extras for users: those that the installation's page names."""
    page = (ROOT / "doc" / "install" / "package.md").read_text()
    table = page.partition("### Extras")[2]
    for line in table.splitlines():
        if line.startswith("| `"):
            yield from (word.strip("` ") for word in line.split("|")[1].split(","))
