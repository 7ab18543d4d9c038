"""The command ``placement-manage report``: writes an archive with the state of a service, to report a defect.

Operators make such archives on broken systems. If a part cannot be read, the archive has the reason instead.
In all parts, and also in the log, ``***`` replaces texts that look like passwords or tokens.
``compute_agent.cmd.report`` has the same functions, because the two programs must not import each other.
"""

from __future__ import annotations

import io
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, BinaryIO, Final

import sqlalchemy as sa
from oslo_config import cfg

from placement.cmd.common import open_database
from placement.conf import installed_version
from placement.db import migration, tables

_SECONDS: Final = 60
"""Maximum seconds for reading one part of the archive."""
_MAX_BYTES: Final = 4 << 20
"""Maximum size, in bytes, of a part that comes from a program, a file or the service. A longer log is cut at
its beginning, and any other part at its end.
"""
_HIDDEN: Final = "***"
_SECRETS: Final = (
    (re.compile(r"(?<=://)([^/\s:@]*):\S+@"), r"\1:***@"),
    # this pattern matches up to the end of the line, because a password can have any characters
    (
        re.compile(
            r"(?i)((?:password|passwd|secret|token|authorization)[\w-]*[\"']?[ |,]*[=:|,])[ \"']*[^ |,\"'].*"
        ),
        r"\1 ***",
    ),
    (re.compile(r"(-u|--user)[ =]\S+:\S+"), r"\1 ***"),
    # this pattern matches Fernet tokens of Keystone
    (re.compile(r"\bgAAAA[\w-]{20,}"), "***"),
)
"""Patterns of texts that look like secrets, each with the text that replaces a match."""


def add_report_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``placement-manage report``."""
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(time.strftime("placement-report-%Y%m%d-%H%M%S.tar.gz", time.gmtime())),
        help="archive to write; a file with this name must not exist",
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        help="address of a running service; the archive then also has its version and its metrics",
    )


def make_report(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Write an archive with the state of this service, without secrets, to report a defect."""
    try:
        write_archive(arguments.output, _read_parts(conf, arguments))
    except OSError as error:
        raise ValueError(f"{arguments.output} cannot be written: {error.strerror}") from error
    print(arguments.output)
    return 0


def _read_parts(conf: cfg.ConfigOpts, arguments: Namespace) -> Iterator[tuple[str, str]]:
    files = [word for file in arguments.config_file or () for word in ("--config-file", file)]
    # with -P, Python does not import modules from the current folder, which can belong to another user
    program = (sys.executable, "-P", "-m")
    yield "versions.txt", list_versions()
    yield "options.txt", _text_of(lambda: "\n".join(changed_options(conf)))
    yield "check.txt", run_program([*program, "placement.cmd.status", *files, "upgrade", "check"])
    yield "audit.txt", run_program([*program, "placement.cmd.manage", *files, "audit"])
    yield "database.txt", _text_of(lambda: "\n".join(_describe_database(conf)))
    if arguments.url is not None:
        base = arguments.url.rstrip("/")
        yield "service.txt", _text_of(lambda: fetch_text(f"{base}/ext/v1"))
        yield "metrics.txt", _text_of(lambda: fetch_text(f"{base}/metrics"))
    yield "log.txt", _text_of(lambda: read_log(conf, "placement-api"))


def changed_options(conf: cfg.ConfigOpts) -> Iterator[str]:
    """Yield the options with values other than their defaults; ``***`` replaces secrets."""
    # oslo.config has no public list of the registered options
    holders: list[tuple[str, Mapping[str, Any], Any]] = [("DEFAULT", conf._opts, conf)]
    holders += [(name, group._opts, conf[name]) for name, group in sorted(conf._groups.items())]
    for group, registered, values in holders:
        for name, known in sorted(registered.items()):
            option = known["opt"]
            value = values[name]
            if value != option.default:
                yield f"[{group}] {name} = {_HIDDEN if option.secret and value else value}"


def _describe_database(conf: cfg.ConfigOpts) -> Iterator[str]:
    """Yield the kind and the version of the database, its revision, and the number of rows by table."""
    with open_database(conf) as database, database.read() as conn:
        version = ".".join(map(str, conn.dialect.server_version_info or ()))
        yield f"{conn.dialect.name} {version}"
        yield f"revision {migration.state_of(conn).revision}"
        for table in tables.metadata.sorted_tables:
            count = conn.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            yield f"{table.name} {count}"
        for row in conn.execute(sa.select(tables.change_buckets).order_by(tables.change_buckets.c.id)):
            yield f"bucket {row.id} counter {row.counter} deletions {row.deletions}"


def _text_of(read: Callable[[], str]) -> str:
    """Return the text that ``read`` returns; if ``read`` fails, return the reason."""
    try:
        return read()
    except Exception as error:  # on a broken system, errors of all kinds can occur here
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


def fetch_text(url: str) -> str:
    """Return the text at an address. The request is sent directly, without a proxy.

    :raises requests.RequestException: the service does not answer, or answers with an error.
    :raises TimeoutError: the answer takes too long.
    """
    # this import takes longer than most other commands of the program, so it is only here
    import requests

    deadline = time.monotonic() + _SECONDS
    content = b""
    with requests.Session() as session:
        session.trust_env = False
        with session.get(url, timeout=_SECONDS, stream=True) as answer:
            answer.raise_for_status()
            for piece in answer.iter_content(1 << 16):
                content += piece
                if len(content) >= _MAX_BYTES:
                    break
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{url} takes longer than {_SECONDS} seconds")
    return content.decode(errors="replace")


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
