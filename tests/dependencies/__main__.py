"""Quick tests with other versions of the dependencies than those of ``etc/constraints.txt``.

``python -m tests.dependencies [NAME ...] [-- WORDS OF PYTEST]`` runs them with each list of this folder, or
with those that are named. The name ``nova`` is an environment with Nova and this distribution. A list has
the versions of what the service and the agent need; what only tests need stays as it is. The versions are
installed into a folder that comes first on the path.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.builds import BuildFailed
from tests.dependencies.beside_nova import check_environment

LISTS: Final = Path(__file__).parent
ROOT: Final = LISTS.parents[1]
TESTS: Final = (
    *("tests/placement/api", "tests/placement/db", "tests/placement/conf", "tests/placement/store"),
    *("tests/placement_extras", "tests/compute_agent/report", "tests/compute_agent/conf"),
    *("tests/compute_agent/inventory", "tests/compute_agent/drivers", "tests/compute_agent/cmd"),
)
"""The tests of the rooms that call libraries."""


_NOVA: Final = "nova"
_CHOICE: Final = ("-m", "not slow", "--database", "sqlite")


def run_tests(versions: Path, words: Sequence[str]) -> int:
    """Run the tests with the versions of a list, and return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
        command = (*pip, "install", "--no-deps", "--target", folder, "--requirement", versions)
        installed = subprocess.run(command, check=False)
        if installed.returncode:
            return installed.returncode
        pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:schemathesis", *words)
        return subprocess.run(
            pytest, cwd=ROOT, env=os.environ | {"PYTHONPATH": folder}, check=False
        ).returncode


def main() -> int:
    """Run the tests with each list."""
    lists = {path.stem: path for path in sorted(LISTS.glob("*.txt"))}
    parser = argparse.ArgumentParser(prog="python -m tests.dependencies", description=__doc__)
    known = [*lists, _NOVA]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(known)}")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    names, words = parser.parse_args(sys.argv[1:at]).names, sys.argv[at + 1 :]
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
        elif run_tests(lists[name], [*_CHOICE, *TESTS, *words]):
            failed.append(name)
    if failed:
        print(f"Tests fail with {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
