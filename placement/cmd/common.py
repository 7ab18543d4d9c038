"""Functions that several commands share: opening the database, printing tables, checking addresses."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gunicorn.util import is_ipv6, parse_address
from oslo_config import cfg
from prettytable import PrettyTable
from sqlalchemy import exc
from sqlalchemy.engine import make_url

from placement.db.database import ServiceDatabase
from placement.maintenance import sync

_HANDED_OVER: Final = ("GUNICORN_FD", "LISTEN_FDS")
"""Environment variables. If one of them is set, a server inherits sockets, from its predecessor or from
systemd.
"""


def check_bind(bind: str) -> None:
    """Raise ValueError if the server cannot listen at this address. The message has the remedy."""
    if any(name in os.environ for name in _HANDED_OVER):
        # the server inherits its sockets, and does not use the address
        return
    try:
        # without a port, gunicorn would listen at its default port 8000
        address = parse_address(bind, default_port="")
    except RuntimeError as error:
        raise ValueError(
            f"--bind {bind}: {error} Give ADDRESS:PORT, such as 127.0.0.1:8778, or unix:PATH."
        ) from error
    try:
        # an address of any other type is the number of an open descriptor, which needs no check
        if isinstance(address, str):
            _check_path(Path(address))
        elif isinstance(address, tuple):
            _check_port(address)
    except (OSError, OverflowError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise ValueError(f"--bind {bind}: {reason}; {_error_remedy(error)}") from error


def _check_port(address: tuple[str, int]) -> None:
    """Bind a socket to the address for a moment, to test whether the server can do so."""
    family = socket.AF_INET6 if is_ipv6(address[0]) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # the server also uses this option, so that closed connections of its predecessor do not prevent its
        # start
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def _check_path(path: Path) -> None:
    """Check that the server can create its socket at a path, where it replaces only a socket."""
    if not path.parent.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{path.parent} is not a folder")
    # both permissions for the folder are needed to create the socket, and to remove it later
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, f"user {os.geteuid()} cannot write to {path.parent}")
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        raise FileExistsError(errno.EEXIST, f"{path} exists and is not a socket")


def _error_remedy(error: OSError | OverflowError) -> str:
    match getattr(error, "errno", None):
        case errno.EADDRINUSE:
            return "another program listens there (ss -ltnp shows it): end it, or choose another port"
        case errno.EACCES | errno.EPERM:
            return "choose a place where this user may listen: a port from 1024 on, a folder of its own"
        case _:
            return "choose an address of this machine and a port, or unix: and a path in a folder"


_PASSWORDS: Final = frozenset({"password", "passwd"})
"""Parameters of a URL (after the question mark) in which drivers also accept a password."""


def open_database(conf: cfg.ConfigOpts) -> AbstractContextManager[ServiceDatabase]:
    """Return the configured database, or raise Unavailable if this version cannot work with its schema."""
    return sync.open_database(conf.placement_database.connection)


def warn_of_password(program: str, argument: str, url: str, instead: str) -> None:
    """Print a warning if the URL in an argument has a password; ``instead`` is a safe way to pass the URL."""
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError):
        # the code that uses the URL refuses an invalid one
        return
    if parsed.password is not None or not _PASSWORDS.isdisjoint(parsed.query):
        warn_of_secret(program, argument, "a password", instead)


def warn_of_secret(program: str, argument: str, secret: str, instead: str) -> None:
    """Print a warning that all users of the host can read a secret; ``instead`` is a safe way to pass it."""
    print(
        f"{program}: warning: {argument} holds {secret}, which the list of processes shows"
        f" to every user of this host: {instead}",
        file=sys.stderr,
    )


Command = Callable[[cfg.ConfigOpts, Namespace], int]
"""A function that runs a command and returns its exit status."""


def _no_arguments(parser: ArgumentParser) -> None:
    """Add no argument to the parser, for commands without arguments."""


@dataclass(frozen=True, slots=True)
class ManageCommand:
    """A command of ``placement-manage``. The docstring of ``run`` is the help of the command.

    :param words: the name of the command: one word, or two words such as ``db sync``.
    :param add_arguments: a function that adds the arguments of the command to a parser.
    """

    words: str
    run: Command
    add_arguments: Callable[[ArgumentParser], None] = _no_arguments


def table_text(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table as text, with columns of numbers aligned to the right."""
    table = PrettyTable(list(titles))
    table.align = "l"
    for index, title in enumerate(titles):
        if rows and all(isinstance(row[index], int) for row in rows):
            table.align[title] = "r"
    table.add_rows([list(row) for row in rows])
    return str(table)


def print_table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table, in the format of :func:`table_text`."""
    print(table_text(titles, rows))


def print_json(document: Mapping[str, Any]) -> None:
    """Print a document as JSON."""
    print(json.dumps(document, indent=2))
