"""The command ``compute-agent report``: it makes an archive with the state of a host for a bug report.

The archive has the output of commands, the metrics, and the end of the log. A part that cannot be read has
the reason as its text, because the host is perhaps broken. Texts that look like passwords or tokens are
replaced in all parts. The module ``placement.cmd.report`` has the same functions, because neither program
imports the other.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from compute_agent import installed_version
from compute_agent.bounded_http import read_address
from compute_agent.cmd.base import AgentCommand, Commands

if TYPE_CHECKING:
    from oslo_config import cfg

_COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    "options": ("config", "show", "--origin"),
    "check": ("config", "check"),
    "status": ("status", "-f", "json"),
    "guests": ("guest", "list", "-f", "json"),
    "topology": ("topology", "show"),
    "inventories": ("inventory", "show"),
    "watermarks": ("watermark", "list"),
    "audit": ("audit",),
    "events": ("event", "list"),
}
"""The commands of the archive, by the name of the file for their output."""

_SECONDS: Final = 60
"""Maximum seconds for each part of the archive."""
_MAX_BYTES: Final = 4 << 20
"""Maximum bytes of each part in the archive. A log file is cut at its beginning, other parts at their end."""
_SECRETS: Final = (
    (re.compile(r"(?<=://)([^/\s:@]*):\S+@"), r"\1:***@"),
    # the pattern matches up to the end of the line, because a password can contain any character
    (
        re.compile(
            r"(?i)((?:password|passwd|secret|token|authorization)[\w-]*[\"']?[ |,]*[=:|,])[ \"']*[^ |,\"'].*"
        ),
        r"\1 ***",
    ),
    (re.compile(r"(-u|--user)[ =]\S+:\S+"), r"\1 ***"),
    # Fernet tokens of Keystone
    (re.compile(r"\bgAAAA[\w-]{20,}"), "***"),
)
"""Patterns of texts that look like secrets, each with its replacement."""


class DefectReport(AgentCommand):
    """Write an archive with the state of this host for the report of a defect.

    The command replaces texts that look like passwords or tokens. The archive contains names of guests, hosts
    and files, so read it before you send it. The daemon need not run.
    """

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--output",
            type=Path,
            default=Path(time.strftime("compute-agent-report-%Y%m%d-%H%M%S.tar.gz", time.gmtime())),
            help="file to write; it must not exist",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Collect the parts and write the archive."""
        write_archive(parsed_args.output, self._read_parts())
        self.app.stdout.write(f"{parsed_args.output}\n")

    def _read_parts(self) -> Iterator[tuple[str, str]]:
        yield "versions.txt", list_versions()
        for name, words in _COMMANDS.items():
            yield f"{name}.txt", self._output_of(words)
        yield "metrics.txt", _text_of(lambda: _read_metrics(self.load_own_conf()))
        yield "log.txt", _text_of(lambda: read_log(self.load_own_conf(), "compute-agent"))

    def _output_of(self, words: Sequence[str]) -> str:
        # each command is a process of its own, so that a command that hangs or fails affects only its part
        files = [word for file in self.app.options.config_file or () for word in ("--config-file", file)]
        code = "import sys; from compute_agent.cmd.main import main; sys.exit(main())"
        # with -P, root runs no module from the current folder, which is perhaps /tmp
        return run_program([sys.executable, "-P", "-c", code, *files, *words])


def _read_metrics(conf: cfg.ConfigOpts) -> str:
    if not conf.daemon.http_port:
        return "Not available: [daemon] http_port is 0"
    address = conf.daemon.http_address
    host = f"[{address}]" if ":" in address else address
    content = read_address(f"http://{host}:{conf.daemon.http_port}/metrics", _SECONDS, _MAX_BYTES)
    return content.decode(errors="replace")


def _text_of(read: Callable[[], str]) -> str:
    """Return the text, or the reason why the text cannot be read."""
    try:
        return read()
    except Exception as error:  # the report is about a failure of any kind
        return f"Not available: {type(error).__name__}: {error}"


def list_versions() -> str:
    """Return the versions of the program, Python, the kernel and all installed Python packages."""
    lines = {f"{each.name} {each.version}" for each in distributions()}
    first = [
        f"placement-compute {installed_version()}",
        f"Python {platform.python_version()}",
        platform.platform(),
    ]
    return "\n".join([*first, *sorted(lines, key=str.lower), ""])


def run_program(command: Sequence[str], *, keeps_end: bool = False) -> str:
    """Return the output and the errors of a program; after a failure, also the exit status or the reason.

    :param keeps_end: whether the end of a long output is returned instead of its beginning.
    """
    end = ""
    # the output goes into a file, because it can have any size
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=_SECONDS, check=False
            )
            if done.returncode:
                end = f"\nExit status {done.returncode}\n"
        except (OSError, subprocess.TimeoutExpired) as error:
            end = f"Not available: {error}"
        if keeps_end:
            return read_end(output) + end
        output.seek(0)
        return output.read(_MAX_BYTES).decode(errors="replace") + end


def read_log(conf: cfg.ConfigOpts, unit: str) -> str:
    """Return the end of the log file from the options; without a log file, the end of the unit's journal."""
    if conf.log_file is None and conf.log_dir is None:
        journal = ("journalctl", "--unit", unit, "--lines", "5000", "--no-pager", "--quiet")
        return run_program(journal, keeps_end=True)
    # if only the folder is configured, oslo.log names the file after the program
    path = Path(conf.log_dir or "", conf.log_file or f"{unit}.log")
    with path.open("rb") as log:
        return read_end(log)


def read_end(file: BinaryIO) -> str:
    """Return the last whole lines of a file, at most :data:`_MAX_BYTES` bytes."""
    start = max(0, os.fstat(file.fileno()).st_size - _MAX_BYTES)
    file.seek(start)
    if start:
        # the first line is incomplete. Without its beginning, a secret in it perhaps cannot be recognised.
        file.readline()
    return file.read(_MAX_BYTES).decode(errors="replace")


def without_secrets(text: str) -> str:
    """Return the text, in which ``***`` replaces passwords and tokens."""
    for pattern, shown in _SECRETS:
        text = pattern.sub(shown, text)
    return text


def write_archive(path: Path, parts: Iterable[tuple[str, str]]) -> None:
    """Write a new archive that only its owner can read.

    :param parts: the name and the text of each file in the archive. Each part is read just before it is
        written.
    :raises OSError: the archive already exists, or cannot be written. An incomplete archive is removed.
    """
    folder = path.name.removesuffix(".tar.gz")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in parts:
                content = without_secrets(text).encode(errors="replace")
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
                archive.addfile(entry, io.BytesIO(content))
    except BaseException:
        path.unlink(missing_ok=True)
        raise


COMMANDS: Final[Commands] = {"report": DefectReport}
