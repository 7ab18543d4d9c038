"""``placement-manage report``: writes an archive with the state of a service, for the report of a defect.

Operators make reports of broken systems, so a part that cannot be read contains the reason instead. In all
parts, also in the log, ``***`` replaces texts that look like passwords or tokens.
``compute_agent.cmd.report`` has the same functions, because neither program may import the other.
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
"""Maximum number of bytes of a part from a program, a file or the service. A log keeps its last bytes, any
other part its first bytes.
"""
_HIDDEN: Final = "***"
_SECRETS: Final = (
    (re.compile(r"(?<=://)([^/\s:@]*):\S+@"), r"\1:***@"),
    # the pattern takes the rest of the line, because a password may have any character
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
"""Patterns of texts that look like secrets, each with the text that replaces a match."""


def add_report_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``placement-manage report``."""
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(time.strftime("placement-report-%Y%m%d-%H%M%S.tar.gz", time.gmtime())),
        help="file to write; it must not exist",
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        help="address of a running service; the report then has the version and the metrics of this service",
    )


def make_report(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Write an archive with the state of this service, without secrets, for the report of a defect."""
    try:
        write_archive(arguments.output, _read_parts(conf, arguments))
    except OSError as error:
        raise ValueError(f"{arguments.output} cannot be written: {error.strerror}") from error
    print(arguments.output)
    return 0


def _read_parts(conf: cfg.ConfigOpts, arguments: Namespace) -> Iterator[tuple[str, str]]:
    files = [word for file in arguments.config_file or () for word in ("--config-file", file)]
    # -P: root runs no module of the current folder, which may be /tmp
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


def fetch_text(url: str) -> str:
    """Return the text at an address, without a proxy.

    :raises requests.RequestException: the service gives no answer, or an error.
    :raises TimeoutError: the answer takes too long.
    """
    # the import takes longer than most other commands of the program
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
    """The output of a program with its errors, and after a failure the exit status or the error.

    :param keeps_end: whether to return the end of a long output instead of its beginning.
    """
    end = ""
    # this is a file, because the output has no limit
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
    """Return the end of the log file that the options name, or else of the unit's journal."""
    if conf.log_file is None and conf.log_dir is None:
        journal = ("journalctl", "--unit", unit, "--lines", "5000", "--no-pager", "--quiet")
        return run_program(journal, keeps_end=True)
    # oslo.log names the file like the program
    path = Path(conf.log_dir or "", conf.log_file or f"{unit}.log")
    with path.open("rb") as log:
        return read_end(log)


def read_end(file: BinaryIO) -> str:
    """Return the last whole lines of a file, at most :data:`_MAX_BYTES` bytes."""
    start = max(0, os.fstat(file.fileno()).st_size - _MAX_BYTES)
    file.seek(start)
    if start:
        # the first line is cut, and may be a secret without the name that marks it
        file.readline()
    return file.read(_MAX_BYTES).decode(errors="replace")


def without_secrets(text: str) -> str:
    """Return the text, in which ``***`` replaces passwords and tokens."""
    for pattern, shown in _SECRETS:
        text = pattern.sub(shown, text)
    return text


def write_archive(path: Path, parts: Iterable[tuple[str, str]]) -> None:
    """Write a new archive that only its owner can read.

    :param parts: the name of each file in the archive, with the file's text. The function reads the iterable
        while it writes the archive.
    :raises OSError: the file exists already, or cannot be written. An incomplete archive is removed.
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
