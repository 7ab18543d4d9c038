"""Checks whether a user can work with the file of an SQLite database, and explains why not.

Even to read a database, SQLite creates other files (``-wal``, ``-shm``) in its folder, so the user needs the
permission to write there. SQLite's own error message ("unable to open database file") shows neither the file
nor the folder.
"""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy.engine import make_url

SERVICE_USER: Final = "placement"
"""The user under which the systemd units run the service."""

_READ_WRITE: Final = os.R_OK | os.W_OK
_BESIDE: Final = ("", "-wal", "-shm")
"""The files of a database have its name with one of these suffixes."""


@dataclass(frozen=True, slots=True)
class SystemUser:
    """A user of the operating system, with the ids that file permissions depend on."""

    name: str
    uid: int
    groups: frozenset[int]

    @classmethod
    def find_user(cls, name: str) -> "SystemUser | None":
        """Return the user with this name; None if there is no such user."""
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            return None
        return cls(name, entry.pw_uid, frozenset(os.getgrouplist(name, entry.pw_gid)))


def path_of(url: str) -> Path | None:
    """Return the file of an SQLite database; None for other databases and for databases in memory.

    :raises sqlalchemy.exc.ArgumentError: the URL is invalid.
    """
    parsed = make_url(url)
    name = parsed.database or ""
    if parsed.get_backend_name() != "sqlite" or name in ("", ":memory:") or name.startswith("file:"):
        return None
    return Path(name).absolute()


def missing_file(url: str) -> str | None:
    """Return an error about a missing file, with the command that creates it; None if the file exists."""
    path = path_of(url)
    if path is None or path.exists():
        return None
    return f"There is no database {path}: 'placement-manage db sync' makes it, run as the service's user."


def file_obstacle(url: str, user: SystemUser | None = None) -> str | None:
    """Return the reason, with the remedy, why a user cannot use or create the file; None if the user can.

    :param user: the user; None for the user of this process.
    """
    path = path_of(url)
    if path is None:
        return None
    folder, owner = path.parent, SERVICE_USER if user is None else user.name
    if not _may_exist(folder):
        return (
            f"There is no folder {folder} for the database {path.name}: make it for the service's user:"
            f" install --directory --mode 750 --owner {owner} --group {owner} {folder}"
        )
    who = _own_name() if user is None else user.name
    if user is not None:
        for above in reversed(folder.parents):
            if not _has_access(above, os.X_OK, user):
                return f"User {who} may not enter the folder {above}, in which the database {path} is."
    remedy = f"make the service's user its owner: chown --recursive {owner}: {folder}"
    if not _has_access(folder, _READ_WRITE | os.X_OK, user):
        return (
            f"User {who} may not write in {folder}, where SQLite writes files next to {path.name}: {remedy}"
        )
    for name in (path.with_name(path.name + suffix) for suffix in _BESIDE):
        if _may_exist(name) and not _has_access(name, _READ_WRITE, user):
            return f"User {who} may not write {name}: {remedy}"
    return None


def _may_exist(path: Path) -> bool:
    """Return whether a path exists. Also return True if this process has no right to see it.

    Another check then reports the missing right.
    """
    try:
        return path.exists()
    except PermissionError:
        return True


def _has_access(path: Path, wanted: int, user: SystemUser | None) -> bool:
    if user is None:
        # effective ids are checked, because the kernel uses these ids, which sudo and setuid change
        return os.access(path, wanted, effective_ids=True)
    found = path.stat()
    # the kernel checks exactly one of the three parts of the mode. So an owner without a permission does not
    # get this permission from the group.
    shift = 6 if found.st_uid == user.uid else 3 if found.st_gid in user.groups else 0
    return found.st_mode >> shift & wanted == wanted


def _own_name() -> str:
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        # in a container, the user id of the process sometimes has no name
        return str(uid)
