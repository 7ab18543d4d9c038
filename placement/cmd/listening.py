"""Whether the bundled web server can listen where it is told to, asked before it tries again and again."""

import errno
import os
import socket
import stat
from pathlib import Path
from typing import Final

from gunicorn.util import is_ipv6, parse_address

_HANDED_OVER: Final = ("GUNICORN_FD", "LISTEN_FDS")
"""In the environment of a server that is given its sockets, by the one that it replaces or by systemd."""


def check_bind(bind: str) -> None:
    """:raises ValueError: nobody can listen there; the text names the option and the remedy."""
    if any(name in os.environ for name in _HANDED_OVER):
        return
    try:
        address = parse_address(bind, default_port="")  # its own would be port 8000
    except RuntimeError as error:
        raise ValueError(
            f"--bind {bind}: {error} It is ADDRESS:PORT, as 127.0.0.1:8778, or unix:PATH."
        ) from error
    try:
        if isinstance(address, str):
            _check_path(Path(address))
        elif isinstance(address, tuple):
            _check_port(address)
    except (OSError, OverflowError) as error:
        raise ValueError(f"--bind {bind}: {_reason(error)}; {_remedy(error)}") from error


def _check_port(address: tuple[str, int]) -> None:
    """Take it for a moment, as the server will."""
    family = socket.AF_INET6 if is_ipv6(address[0]) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def _check_path(path: Path) -> None:
    """The server replaces a socket there, and nothing else."""
    if not path.parent.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{path.parent} is not a folder")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, f"user {os.geteuid()} cannot write to {path.parent}")
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        raise FileExistsError(errno.EEXIST, f"{path} is there and is not a socket")


def _reason(error: OSError | OverflowError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _remedy(error: OSError | OverflowError) -> str:
    match getattr(error, "errno", None):
        case errno.EADDRINUSE:
            return "another program listens there (ss -ltnp shows it): end it, or choose another port"
        case errno.EACCES | errno.EPERM:
            return "choose a place where this user may listen: a port from 1024 on, a folder of its own"
        case _:
            return "choose an address of this machine and a port, or unix: and a path in a folder"
