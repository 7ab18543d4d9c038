"""A virtual machine with cache and bandwidth control: a real kernel checks every write.

`python -m tests.vm.machine` creates it once, as root on Debian 12, in some minutes, with the scripts in the
folder `shared/vm` beside the checkout. The machine is outside of the checkout (in $RDT_VM, else /opt/rdt-vm).
Tests skip without it.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

CHECKOUT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("PLACEMENT_COMPUTE_SHARED", CHECKOUT.parent / "shared"))
SCRIPTS = SHARED / "vm"
HOST = "10.0.2.2"
"""The loopback of this host, as seen from a machine with `--net`."""
FOLDER = Path(os.environ.get("RDT_VM", "/opt/rdt-vm"))
PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
AGENT = (
    *("cliff", "keystoneauth1", "marshmallow", "os-resource-classes", "os-traits", "oslo.config", "oslo.log"),
    *("prometheus_client", "SQLAlchemy", "stevedore"),
)
"""Requirements of the agent; their own requirements are added."""
_WAIT_SECONDS = 400  # guests and agent are both slow there


class MachineMissing(Exception):
    """The machine is missing; the text has the reason."""


@dataclass(frozen=True)
class Result:
    """Output and exit status of a command in the machine."""

    status: int
    output: str


def find() -> None:
    """Check that the machine exists.

    :raises MachineMissing: it does not
    """
    if not (SCRIPTS / "vm-run").is_file():
        raise MachineMissing(f"no {SCRIPTS / 'vm-run'}")
    for name in ("qemu-rdt", "rootfs.cpio"):
        if not (FOLDER / name).is_file():
            raise MachineMissing(f"no {FOLDER / name}: python -m tests.vm.machine makes it")


def kernels(folder: Path = FOLDER) -> list[str]:
    """Versions of the kernels that the machine can boot, such as `6.12.95+deb12-amd64`."""
    return sorted(path.name.removeprefix("vmlinux-") for path in folder.glob("vmlinux-*"))


def stage(folder: Path, requirements: Iterable[str] = PYTEST) -> None:
    """Put into a folder what a test run in the machine needs: both packages of this checkout, and the
    distributions named with all that they require.
    """
    for name in ("compute_agent", "tests/compute_agent", "tests/vm"):
        shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tests/waits.py", "tests/programs.py"):
        shutil.copy(CHECKOUT / name, folder / name)
    for distribution in _with_requirements(requirements):
        for file in distribution.files or ():
            # No console scripts, and no bytecode, because the machine has another interpreter.
            if ".." not in file.parts and file.suffix != ".pyc":
                target = folder / "site" / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), target)


def _with_requirements(names: Iterable[str]) -> Iterable[importlib.metadata.Distribution]:
    found: dict[str, importlib.metadata.Distribution] = {}
    todo = list(names)
    while todo:
        name = todo.pop().lower()
        if name not in found:
            found[name] = importlib.metadata.distribution(name)
            requirements = map(Requirement, found[name].requires or ())
            todo += [one.name for one in requirements if one.marker is None or one.marker.evaluate()]
    return found.values()


def run(command: str, share: Path, *options: str, timeout: float = 900) -> Result:
    """Boot, run a shell command as root in the shared folder, and return its output."""
    done = subprocess.run(
        [
            sys.executable,
            str(SCRIPTS / "vm-run"),
            *("--vm", str(FOLDER), "--share", str(share), "--timeout", str(timeout)),
            *("--env", "PYTHONPATH=/mnt/share:/mnt/share/site", "--env", "PYTHONDONTWRITEBYTECODE=1"),
            *options,
            "--",
            command,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    return Result(done.returncode, done.stdout)


def run_tests(
    modules: str, share: Path, *options: str, before: str = "", timeout: float = 900
) -> dict[str, int]:
    """Run test modules of the checkout in the machine, without their conftest files: how many `tests` there
    were, and of them `failures`, `errors` and `skipped`.

    ``before`` is a shell command that goes first. Raises AssertionError if anything failed.
    """
    how = "-q -ra --noconftest --import-mode=importlib -c /dev/null --rootdir=/mnt/share -p no:cacheprovider"
    command = f"python3 -m pytest {how} --junitxml=/mnt/share/result.xml {modules}"
    options = ("--env", f"PLACEMENT_WAIT_SECONDS={_WAIT_SECONDS}", *options)
    result = run(f"{before} && {command}" if before else command, share, *options, timeout=timeout)
    print(result.output)
    assert result.status == 0, result.output
    suite = ElementTree.parse(share / "result.xml").getroot().find("testsuite")
    assert suite is not None, "pytest has written no report"
    totals = {key: int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped")}
    assert totals["failures"] == totals["errors"] == 0, totals
    return totals


def build() -> int:
    """Create the missing parts, which takes some minutes."""
    try:
        find()
    except MachineMissing as missing:
        print(missing)
        for script in ("build.sh", "make-rootfs.sh"):
            subprocess.run([str(SCRIPTS / script), str(FOLDER)], check=True)
    print(f"{FOLDER} is there, with kernels {', '.join(kernels())}")
    return 0


if __name__ == "__main__":
    sys.exit(build())
