"""The demo from end to end, as `make demo` runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.demo.system import MARK, SCRIPTS

ROOT = Path(__file__).parents[2]
STEPS = [
    "database", "service", "agent", "providers", "candidates", "claim",
    "guest", "kernel", "usages", "stop", "release", "servers", "done", "next",
]  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (SCRIPTS / "compute-agent").exists(),
        reason="the distribution is not installed beside this Python",
    ),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A temporary folder with a short name (the path of a UNIX socket is limited to 107 bytes)."""
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        yield Path(name)


def start(folder: Path, keep: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.demo"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(folder), "KEEP": keep},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_mind_interrupts,
    )


def _mind_interrupts() -> None:
    """Interrupt the demo with its default handler: background processes of a shell ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_the_demo_imports_only_test_modules_that_need_no_test_packages() -> None:
    told = "import sys, tests.demo.__main__; print(*[n for n in sys.modules if n.startswith('tests')])"
    done = subprocess.run([sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, check=True)
    own = {"tests.demo", "tests.demo.__main__", "tests.demo.system"}
    assert set(done.stdout.split()) == {"tests", "tests.ports", *own}


def left_behind(folder: Path) -> list[str]:
    """Files in the folder, and command lines of its processes."""
    found = [str(path) for path in folder.iterdir()]
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={folder}".encode() in environ.read_bytes():
                found.append(environ.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def steps(output: str) -> list[str]:
    """The first word of each line without indentation."""
    return [line.split()[0] for line in output.splitlines() if line and not line.startswith(" ")]


def test_the_demo_completes_every_step_and_leaves_nothing_behind(folder: Path) -> None:
    demo = start(folder)
    output, errors = demo.communicate(timeout=120)
    assert (demo.returncode, errors) == (0, "")
    assert steps(output) == STEPS
    assert left_behind(folder) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("step", ["service", "kernel"])
def test_an_interrupted_demo_leaves_nothing_behind(
    folder: Path, step: str, number: signal.Signals, status: int
) -> None:
    demo = start(folder)
    assert demo.stdout is not None
    for line in demo.stdout:
        if line.startswith(step):
            demo.send_signal(number)
            break
    _output, errors = demo.communicate(timeout=60)
    assert demo.returncode == status, errors
    assert left_behind(folder) == []


def test_the_printed_commands_show_and_end_a_kept_demo(folder: Path) -> None:
    demo = start(folder, keep="1")
    output, errors = demo.communicate(timeout=120)
    assert (demo.returncode, errors) == (0, "")
    assert steps(output)[-3:] == ["kept", "done", "next"]
    look, end = commands(output, "look around:"), commands(output, "end it:")
    try:
        for command in look:
            done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=60)
            assert (done.returncode, done.stdout != "") == (0, True), f"{command}: {done.stderr}"
    finally:
        for command in end:
            subprocess.run(command, shell=True, cwd=ROOT, timeout=60, check=True)
    assert left_behind(folder) == []


def commands(output: str, heading: str) -> list[str]:
    """The lines of the paragraph under the heading."""
    paragraph = output.split(f"{heading}\n")[1].split("\n\n")[0]
    return [line.strip() for line in paragraph.splitlines() if line.startswith(" ")]
