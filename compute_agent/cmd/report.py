"""``compute-agent report``: an archive with the state of a host, for the report of a defect.

The archive has the output of commands, the metrics, and the end of the log. Reports are made where something
is broken, so a part that cannot be read has the reason as its text. Values that look like passwords or tokens
are replaced, in the log as well.
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
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.request import urlopen

from oslo_utils.strutils import mask_password

from compute_agent import installed_version
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
"""Commands by the name of the file that has their output."""

_SECONDS: Final = 60
"""Seconds that one command may take."""
_MAX_BYTES: Final = 4 << 20
"""Bytes that the archive has of one part: of a log the last ones, of other parts the first ones."""
_URL_PASSWORD: Final = re.compile(r"(?<=://)([^/\s:@]*):[^@/\s]+@")
_TOKEN: Final = re.compile(r"\bgAAAA[\w-]{20,}")
"""A Fernet token of Keystone."""


class DefectReport(AgentCommand):
    """Write an archive with the state of this host, without secrets, for the report of a defect.

    The daemon need not run. Names of guests, hosts and files are in the archive: read it before you send it.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the options."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--output",
            type=Path,
            default=Path(time.strftime("compute-agent-report-%Y%m%d-%H%M%S.tar.gz", time.gmtime())),
            help="file to write; it must not exist",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Collect the parts and write the archive."""
        write_archive(parsed_args.output, dict(self._read_parts()))
        self.app.stdout.write(f"{parsed_args.output}\n")

    def _read_parts(self) -> Iterator[tuple[str, str]]:
        yield "versions.txt", list_versions()
        for name, words in _COMMANDS.items():
            yield f"{name}.txt", self._output_of(words)
        try:
            conf = self.load_own_conf()
        except Exception as error:  # any option of any file may be wrong
            yield "log.txt", f"The configuration cannot be read: {error}"
            return
        yield "metrics.txt", _read_metrics(conf)
        yield "log.txt", read_log(conf.log_file, conf.log_dir)

    def _output_of(self, words: Sequence[str]) -> str:
        # a program of its own: a command that hangs or fails is one part of the archive
        files = [word for file in self.app.options.config_file or () for word in ("--config-file", file)]
        code = "import sys; from compute_agent.cmd.main import main; sys.exit(main())"
        return run_program([sys.executable, "-c", code, *files, *words])


def run_program(command: Sequence[str]) -> str:
    """Return the output of a program, errors included, and its exit status unless it is 0."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"Not available: {error}"
    status = f"\nExit status {done.returncode}\n" if done.returncode else ""
    return done.stdout[:_MAX_BYTES] + status


def list_versions() -> str:
    """Return the versions of the program, Python, the kernel and all installed packages."""
    lines = {f"{each.name} {each.version}" for each in distributions()}
    first = [
        f"placement-compute {installed_version()}",
        f"Python {platform.python_version()}",
        platform.platform(),
    ]
    return "\n".join([*first, *sorted(lines, key=str.lower), ""])


def _read_metrics(conf: cfg.ConfigOpts) -> str:
    if not conf.daemon.http_port:
        return "Not available: [daemon] http_port is 0"
    address = conf.daemon.http_address
    host = f"[{address}]" if ":" in address else address
    try:
        with urlopen(f"http://{host}:{conf.daemon.http_port}/metrics", timeout=_SECONDS) as answer:
            content: bytes = answer.read(_MAX_BYTES)
    except OSError as error:
        return f"Not available: {error}"
    return content.decode(errors="replace")


def read_log(file: str | None, folder: str | None) -> str:
    """Return the end of the log: of the file of ``[DEFAULT] log_file``, or of the unit's journal."""
    if file is None:
        journal = ("journalctl", "--unit", "compute-agent", "--lines", "5000", "--no-pager", "--quiet")
        return run_program(journal)
    path = Path(folder or "", file)
    try:
        with path.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _MAX_BYTES))
            return log.read(_MAX_BYTES).decode(errors="replace")
    except OSError as error:
        return f"Not available: {error}"


def without_secrets(text: str) -> str:
    """Return the text with passwords and tokens replaced by ``***``."""
    return _TOKEN.sub("***", _URL_PASSWORD.sub(r"\1:***@", mask_password(text)))


def write_archive(path: Path, parts: Mapping[str, str]) -> None:
    """Write a new archive that only its owner can read.

    :raises OSError: the file exists, or cannot be written; then there is none.
    """
    folder = path.name.removesuffix(".tar.gz")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in parts.items():
                content = without_secrets(text).encode(errors="replace")
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
                archive.addfile(entry, io.BytesIO(content))
    except BaseException:
        path.unlink(missing_ok=True)
        raise


COMMANDS: Final[Commands] = {"report": DefectReport}
