"""``placement-manage report``: an archive with the state of a service, for the report of a defect.

A part that cannot be read has the reason as its text, because reports are made where something is broken.
Values that look like passwords or tokens are replaced, in the log as well.
"""

from __future__ import annotations

import io
import os
import platform
import re
import subprocess
import sys
import tarfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

import requests
import sqlalchemy as sa
from oslo_config import cfg
from oslo_utils.strutils import mask_password

from placement.cmd.common import open_database
from placement.conf import installed_version
from placement.db import tables

_SECONDS: Final = 60
"""Seconds that one part may take."""
_MAX_BYTES: Final = 4 << 20
"""Bytes that the archive has of one part: of a log the last ones, of other parts the first ones."""
_URL_PASSWORD: Final = re.compile(r"(?<=://)([^/\s:@]*):[^@/\s]+@")
_TOKEN: Final = re.compile(r"\bgAAAA[\w-]{20,}")
"""A Fernet token of Keystone."""
_HIDDEN: Final = "***"


def add_report_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``report``."""
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(time.strftime("placement-report-%Y%m%d-%H%M%S.tar.gz", time.gmtime())),
        help="file to write; it must not exist",
    )
    parser.add_argument(
        "--url", metavar="URL", help="address of a running service; its version and metrics are added"
    )


def make_report(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Write an archive with the state of this service, without secrets, for the report of a defect."""
    write_archive(arguments.output, dict(_read_parts(conf, arguments)))
    print(arguments.output)
    return 0


def _read_parts(conf: cfg.ConfigOpts, arguments: Namespace) -> Iterator[tuple[str, str]]:
    files = [word for file in arguments.config_file or () for word in ("--config-file", file)]
    program = (sys.executable, "-m")
    yield "versions.txt", list_versions()
    yield "options.txt", _text_of(lambda: "\n".join(changed_options(conf)))
    yield "check.txt", run_program([*program, "placement.cmd.status", *files, "upgrade", "check"])
    yield "audit.txt", run_program([*program, "placement.cmd.manage", *files, "audit"])
    yield "database.txt", _text_of(lambda: "\n".join(_describe_database(conf)))
    if arguments.url is not None:
        base = arguments.url.rstrip("/")
        yield "service.txt", _text_of(lambda: fetch_text(f"{base}/ext/v1"))
        yield "metrics.txt", _text_of(lambda: fetch_text(f"{base}/metrics"))
    yield "log.txt", read_log(conf.log_file, conf.log_dir)


def _text_of(read: Callable[[], str]) -> str:
    """Return the text, or the reason why it cannot be read."""
    try:
        return read()
    except Exception as error:  # the report is about a failure of any kind
        return f"Not available: {type(error).__name__}: {error}"


def list_versions() -> str:
    """Return the versions of the program, Python, the kernel and all installed packages."""
    lines = {f"{each.name} {each.version}" for each in distributions()}
    first = [
        f"placement-compute {installed_version()}",
        f"Python {platform.python_version()}",
        platform.platform(),
    ]
    return "\n".join([*first, *sorted(lines, key=str.lower), ""])


def changed_options(conf: cfg.ConfigOpts) -> Iterator[str]:
    """Yield the options that are not at their defaults, with ``***`` for secrets."""
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
        for (revision,) in conn.execute(sa.text("SELECT version_num FROM alembic_version")):
            yield f"revision {revision}"
        for table in tables.metadata.sorted_tables:
            count = conn.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            yield f"{table.name} {count}"
        for row in conn.execute(sa.select(tables.change_buckets).order_by(tables.change_buckets.c.id)):
            yield f"bucket {row.id} counter {row.counter} deletions {row.deletions}"


def fetch_text(url: str) -> str:
    """Return the text at an address.

    :raises requests.RequestException: there is none, or it takes too long.
    """
    with requests.get(url, timeout=_SECONDS, stream=True) as answer:
        answer.raise_for_status()
        return answer.raw.read(_MAX_BYTES, decode_content=True).decode(errors="replace")


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


def read_log(file: str | None, folder: str | None) -> str:
    """Return the end of the log: of the file of ``[DEFAULT] log_file``, or of the unit's journal."""
    if file is None:
        journal = ("journalctl", "--unit", "placement-api", "--lines", "5000", "--no-pager", "--quiet")
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
    return _TOKEN.sub(_HIDDEN, _URL_PASSWORD.sub(r"\1:***@", mask_password(text)))


def write_archive(path: Path, parts: Mapping[str, str]) -> None:
    """Write a new archive that only its owner can read.

    :raises ValueError: the file exists, or cannot be written; then there is none.
    """
    folder = path.name.removesuffix(".tar.gz")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in parts.items():
                content = without_secrets(text).encode(errors="replace")
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
                archive.addfile(entry, io.BytesIO(content))
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ValueError(f"{path} cannot be written: {error.strerror}") from error
        raise
