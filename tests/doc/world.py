"""A machine for one page, which runs the page's blocks in order, as a reader would type them.

The machine consists of new namespaces on this one. Mounts: empty folders replace the folders to which pages
write. Network: a loopback device with every port free. Processes: all end with the machine. Therefore paths,
ports and commands are those of the page, and nothing is left afterwards. The programs in `stand_ins` replace
commands that need a network or systemd.
"""

import contextlib
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.doc.pages import ROOT, Block

SECONDS: Final = 240
"""Maximum seconds of a block: a guard against hanging."""


def _program(name: str) -> bool:
    return shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") is not None


HAS: Final = {
    "resctrl": Path("/sys/fs/resctrl/schemata").exists(),
    "postgresql": any(Path("/usr/lib/postgresql").glob("*/bin/initdb")),
    "mariadb": _program("mariadbd"),
    "sqlite3": _program("sqlite3"),
    "nginx": _program("nginx"),
    "haproxy": _program("haproxy"),
    "libvirt": _program("libvirtd") and importlib.util.find_spec("libvirt") is not None,
    "cgroup": "CGROUP_ROOT" in os.environ,
}
"""Requirements of blocks that not every machine meets. ``CGROUP_ROOT`` names a group of cgroup v2."""

EMPTY: Final = (
    *map(Path, ("/home", "/opt/placement-compute", "/run")),
    *map(Path, ("/var/backups", "/var/lib/compute-agent", "/var/lib/placement")),
)
"""Folders that are new and empty in the machine."""

COPIED: Final = (Path("/etc"),)
"""Folders of which the machine has a copy."""

_LOCK: Final = Path(tempfile.gettempdir(), "placement-doc-machines")
"""Each machine has it locked, shared. Its lines are the folders that machines have made."""

_NAMESPACES: Final = ("unshare", "-m", "-n", "-p", "--fork", "--kill-child", "--mount-proc")

_SETUP: Final = """
set -e
mount --make-rprivate /
ip link set lo up
while [ "$1" != -- ]; do mount --bind "$1" "$2"; shift 2; done
shift
mkdir -p /run/lock "$HOME"
cd
exec "$@"
"""


class DocumentWorldMissing(Exception):
    """The host cannot make such a machine; the text has the reason."""


def require_namespaces() -> None:
    """Check that the host can make namespaces.

    :raises DocumentWorldMissing: it cannot
    """
    if os.geteuid() != 0:
        raise DocumentWorldMissing("only root may make namespaces")
    tried = subprocess.run([*_NAMESPACES, "true"], capture_output=True, check=False)
    if tried.returncode:
        raise DocumentWorldMissing(f"namespaces cannot be made here: {tried.stderr.decode().strip()}")


class DocumentMachine:
    """One machine with a shell that runs the blocks."""

    def __init__(self, folder: Path, shell: "subprocess.Popen[str]") -> None:
        self._folder = folder
        self._shell = shell
        self._count = 0

    def run(self, block: Block) -> str:
        """Run a block and return its output.

        :raises AssertionError: a command failed, or none of a block marked `fails`; has the output
        """
        self._count += 1
        printed = self._folder / f"{self._count}.out"
        status = self._type(block, printed)
        text = printed.read_text() if printed.exists() else ""
        problem = "did not fail" if block.mark == "fails" else f"failed ({status})"
        assert (status != "0") == (block.mark == "fails"), f"{block} {problem}:\n{block.text}\n{text}"
        return text

    def write(self, block: Block) -> None:
        """Write an ini block into its file, relative to the shell's folder."""
        redirection = ">>" if block.is_addition else ">"
        script = f"cat {redirection} {block.file} <<'END-OF-FILE'\n{block.text}END-OF-FILE\n"
        self.run(Block(block.page, block.line, "bash", f'mkdir -p "$(dirname {block.file})"\n{script}'))

    def _type(self, block: Block, printed: Path) -> str:
        """Source a block, so that variables, folder and jobs stay for the next; return its exit status."""
        script, done = printed.with_suffix(".sh"), printed.with_suffix(".done")
        script.write_text(block.text)
        os.mkfifo(done)
        guard = "set +e" if block.mark == "fails" else "set -eE"
        assert self._shell.stdin is not None
        self._shell.stdin.write(
            f"{guard}; trap 'echo failed > {done}' EXIT; . {script} > {printed} 2>&1; status=$?; "
            f"set +e; trap - EXIT; echo $status > {done}\n"
        )
        self._shell.stdin.flush()
        try:
            told = subprocess.run(["cat", done], capture_output=True, text=True, timeout=SECONDS, check=True)
        except subprocess.TimeoutExpired:
            return f"no end within {SECONDS} s"
        return told.stdout.strip()


@dataclass(frozen=True)
class Installed:
    """Folder with the installed programs of this checkout; by default that of the running Python."""

    programs: Path = Path(sysconfig.get_path("scripts"))
    libraries: str = sysconfig.get_path("purelib")
    """Folders, as in ``PYTHONPATH``."""


@contextlib.contextmanager
def machine(setup: str = "", installed: Installed = Installed()) -> Iterator[DocumentMachine]:
    """Make a machine and run `setup`, a shell script, in it.

    :raises DocumentWorldMissing: the host cannot make one
    """
    require_namespaces()
    with _places():
        yield from _running(setup, installed)


@contextlib.contextmanager
def _places() -> Iterator[None]:
    """The folders that machines have in another form, made where they are absent.

    Machines may run side by side. To remove a folder unmounts it in each of them, so the last one removes
    what any of them has made.
    """
    with _LOCK.open("a+") as made:
        fcntl.flock(made, fcntl.LOCK_SH)
        for place in EMPTY:
            with contextlib.suppress(FileExistsError):
                place.mkdir(parents=True)
                made.write(f"{place}\n")
                made.flush()
        try:
            yield
        finally:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(made, fcntl.LOCK_EX | fcntl.LOCK_NB)
                made.seek(0)
                for line in made.read().splitlines():
                    with contextlib.suppress(OSError):  # another program uses it by now
                        Path(line).rmdir()
                made.truncate(0)


def _running(setup: str, installed: Installed) -> Iterator[DocumentMachine]:
    # paths of UNIX sockets are limited to 107 bytes
    folder = Path(tempfile.mkdtemp(prefix="doc-", dir="/tmp"))
    shell = None
    try:
        command = [*_NAMESPACES, "bash", "-c", _SETUP, "setup", *_folders(folder), "--"]
        with (folder / "shell.err").open("w") as errors:
            shell = subprocess.Popen(
                [*command, "bash", "--noprofile", "--norc"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                text=True,
                env=_environment(installed),
            )
        made = DocumentMachine(folder, shell)
        if setup:
            made.run(Block("the machine", 0, "bash", setup))
        yield made
    finally:
        if shell is not None:
            shell.kill()
            shell.wait()
            assert shell.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                shell.stdin.close()
        shutil.rmtree(folder, ignore_errors=True)


def _folders(folder: Path) -> list[str]:
    """Create the machine's folders below `folder`; return the mount point of each."""
    mounts: list[str] = []
    for place in EMPTY:
        (folder / place.name).mkdir()
    for place in COPIED:
        shutil.copytree(place, folder / place.name, symlinks=True, ignore_dangling_symlinks=True)
    for place in (*EMPTY, *COPIED):
        mounts += [str(folder / place.name), str(place)]
    return mounts


def _environment(installed: Installed) -> dict[str, str]:
    """Return a minimal environment with this checkout's programs last in PATH and with its libraries."""
    stand_ins = Path(__file__).parent / "stand_ins"
    system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {
        "HOME": "/home/reader",
        "LANG": "C.UTF-8",
        "PATH": f"{stand_ins}:{system}:{installed.programs}",
        "PYTHONPATH": installed.libraries,
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "CHECKOUT": str(ROOT),
        **{name: os.environ[name] for name in ("CGROUP_ROOT",) if name in os.environ},
    }
