"""Quick tests with other versions of the dependencies than those of ``etc/constraints.txt``.

``python -m tests.dependencies [NAME ...] [-- WORDS OF PYTEST]`` runs them with each list of this folder, or
with those that are named. The name ``nova`` is an environment with Nova and this distribution. A list has
the versions of what the service and the agent need; what only tests need stays as it is. The versions are
installed into a folder below ``build/dependencies`` that comes first on the path, and is kept until the list
changes. ``--core`` runs the tests of ``make check`` that call most libraries.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.builds import BuildFailed
from tests.dependencies.beside_nova import check_environment

LISTS: Final = Path(__file__).parent
ROOT: Final = LISTS.parents[1]
FOLDER: Final = ROOT / "build/dependencies"
TESTS: Final = (
    *("tests/placement/api", "tests/placement/db", "tests/placement/conf", "tests/placement/store"),
    *("tests/placement_extras", "tests/compute_agent/report", "tests/compute_agent/conf"),
    *("tests/compute_agent/inventory", "tests/compute_agent/drivers", "tests/compute_agent/cmd"),
)
"""The tests of the rooms that call libraries."""
CORE: Final = (
    *("tests/placement/api", "tests/placement/db", "tests/placement/conf"),
    *("tests/compute_agent/conf", "tests/compute_agent/cmd/test_commands.py", "--brief"),
)
"""The tests of ``--core``, without those that take long."""
_NOVA: Final = "nova"
_CHOICE: Final = ("-m", "not slow", "--database", "sqlite")


def install_versions(versions: Path, parent: Path = FOLDER) -> Path:
    """Return the folder with the versions of a list, which is made if there is none yet.

    :raises subprocess.CalledProcessError: pip fails.
    """
    marks = (versions.read_bytes(), sys.version.encode())
    folder = parent / f"{versions.stem}-{hashlib.sha256(b''.join(marks)).hexdigest()[:16]}"
    if folder.exists():
        return folder
    for outdated in parent.glob(f"{versions.stem}-*"):
        shutil.rmtree(outdated)
    parent.mkdir(parents=True, exist_ok=True)
    incomplete = parent / f"incomplete-{folder.name}"
    shutil.rmtree(incomplete, ignore_errors=True)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    command = (*pip, "install", "--no-deps", "--target", incomplete, "--requirement", versions)
    subprocess.run(command, check=True)
    return incomplete.rename(folder)


def run_tests(versions: Path, words: Sequence[str]) -> int:
    """Run the tests with the versions of a list, and return the exit status."""
    try:
        folder = install_versions(versions)
    except subprocess.CalledProcessError as failure:
        return failure.returncode
    pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:schemathesis", *words)
    environ = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(pytest, cwd=ROOT, env=environ, check=False).returncode


def main() -> int:
    """Run the tests with each list."""
    lists = {path.stem: path for path in sorted(LISTS.glob("*.txt"))}
    parser = argparse.ArgumentParser(prog="python -m tests.dependencies", description=__doc__)
    known = [*lists, _NOVA]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(known)}")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser.add_argument("--core", action="store_true", help="run the tests of make check only")
    arguments, words = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1 :]
    names = arguments.names
    if unknown := set(names) - set(known):
        parser.error(f"there is no list {', '.join(sorted(unknown))}")
    failed = []
    for name in names or known:
        print(f"== {name}", flush=True)
        if name == _NOVA:
            try:
                check_environment()
            except BuildFailed as failure:
                print(failure, file=sys.stderr)
                failed.append(name)
        elif run_tests(lists[name], [*_CHOICE, *(CORE if arguments.core else TESTS), *words]):
            failed.append(name)
    if failed:
        print(f"Tests fail with {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
