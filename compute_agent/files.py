"""The agent's own files: whole after a crash, and nobody else's; and how those of others are read.

After a crash there is the old content or the new one, never a part. A folder or a file that another user
could have made or changed is not used.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

MAX_ASIDE: Final = 5
"""Files of one name that are kept aside; the oldest go."""

MAX_BYTES: Final = 64 << 20
"""Bytes of a file that are read into memory."""

_ASIDE: Final = ".damaged-"

_TEMPORARY: Final = re.compile(r"\..+\.[a-z0-9_]{8}")
"""Names that write_durably() has from tempfile."""


class UnsafeFileError(OSError):
    """A file or folder that somebody else may have made or may change; with what to do about it."""


def secure_folder(folder: Path) -> None:
    """Make ``folder`` if it is absent (mode 0750), and see that nobody else can put anything in its place.

    :raises UnsafeFileError: somebody else owns it or one of those above it, or may write there.
    :raises OSError:
    """
    check_folder(folder)
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    check_folder(folder)  # what is new has the modes that the umask lets it have


def check_folder(folder: Path) -> None:
    """Symbolic links on the way may lead where they like, as long as nobody else can lead them elsewhere.

    :raises UnsafeFileError: as secure_folder() does; what is not there yet is right.
    """
    real = folder.resolve()
    _check_part(real, folder, stat.S_IWOTH | stat.S_IWGRP)
    _check_above(real, folder)
    for link in _links(folder.absolute()):
        _check_owner(link, link.lstat(), folder)
        _check_above(link.parent.resolve() / link.name, folder)


def _links(path: Path) -> Iterator[Path]:
    """The symbolic links on the way to a path, of which resolve() has shown that they come to an end."""
    for part in (path, *path.parents):
        if part.is_symlink():
            yield part
            yield from _links(part.parent / part.readlink())


def _check_above(path: Path, folder: Path) -> None:
    # Above the folder itself a group may be trusted (that of the user, mostly), and in a folder such as
    # /tmp nobody can rename what others have.
    for part in path.parents:
        _check_part(part, folder, stat.S_IWOTH, sticky=True)


def _check_part(part: Path, folder: Path, shared: int, *, sticky: bool = False) -> None:
    try:
        status = part.stat()
    except FileNotFoundError:
        return
    _check_owner(part, status, folder)
    if status.st_mode & shared and not (sticky and status.st_mode & stat.S_ISVTX):
        raise UnsafeFileError(
            f"{part} (mode {stat.S_IMODE(status.st_mode):04o}) can be written by others, who could"
            f" replace what the agent keeps in {folder}: chmod {'o' if sticky else 'go'}-w {part}"
        )


def _check_owner(part: Path, status: os.stat_result, folder: Path) -> None:
    if status.st_uid not in _trusted():
        link = " is a symbolic link that" if stat.S_ISLNK(status.st_mode) else ""
        raise UnsafeFileError(
            f"{part}{link} belongs to user {status.st_uid}, who could replace what the agent keeps in"
            f" {folder}: chown it to user {os.geteuid()}, or choose another folder"
        )


def open_own(path: Path, flags: int, mode: int = 0o600) -> int:
    """The descriptor of a regular file of our own, not of what a symbolic link leads to.

    ``flags`` and ``mode`` are those of open(2).

    :raises UnsafeFileError:
    :raises OSError:
    """
    try:
        # A FIFO that somebody put there is not to be waited for.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _odd(path) from error
        raise
    try:
        _check(path, os.fstat(descriptor))
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_own(path: Path) -> None:
    """As open_own(), for a file that a library opens; an absent one is right.

    :raises UnsafeFileError:
    """
    with contextlib.suppress(FileNotFoundError):
        _check(path, path.lstat())


def read_own(path: Path) -> bytes:
    """The content of a file of our own.

    :raises UnsafeFileError:
    :raises OSError:
    """
    with os.fdopen(open_own(path, os.O_RDONLY), "rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"larger than {MAX_BYTES} bytes", str(path))
    return content


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The content of a regular file of others, to which symbolic links may lead.

    :raises OSError: it is none, is larger than that, or cannot be read.
    """
    # A FIFO that somebody put there is not to be waited for.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is no regular file")
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(f"{path} is larger than {max_bytes} bytes")
    return content


def write_durably(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace ``path`` with ``content``: temporary file, fsync, rename, fsync of the folder.

    :raises OSError: disk full, no permission; the old file is then untouched and no temporary file is left.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # of a write the kernel does not say it
        raise
    sync_folder(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Remove what write_durably() left in a folder when it was killed. Nobody may write there meanwhile.

    What cannot be removed stays: it is in nobody's way.
    """
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            path = folder / name
            if _TEMPORARY.fullmatch(name) and stat.S_ISREG(path.lstat().st_mode):
                path.unlink()


def put_aside(path: Path) -> Path:
    """Rename a file that cannot be used, so that somebody can look at it; its new name.

    Of each name the last ``MAX_ASIDE`` are kept.

    :raises OSError:
    """
    aside = path.with_name(f"{path.name}{_ASIDE}{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
    os.rename(path, aside)
    sync_folder(path.parent)
    names = sorted(name for name in os.listdir(path.parent) if name.startswith(path.name + _ASIDE))
    for name in names[:-MAX_ASIDE]:
        with contextlib.suppress(OSError):
            os.unlink(path.with_name(name))
    return aside


def remove_durably(path: Path) -> None:
    """Remove ``path`` so that it stays removed after a power cut; an absent file is no error."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """fsync(2) a folder, which makes renames and removals in it durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _trusted() -> frozenset[int]:
    """The users whose files are believed: our own, and root, who could do anything anyway."""
    return frozenset({0, os.geteuid()})


def _check(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _odd(path)
    if status.st_uid not in _trusted() or status.st_mode & stat.S_IWOTH:
        raise UnsafeFileError(
            f"{path} belongs to user {status.st_uid} (mode {stat.S_IMODE(status.st_mode):04o}), so that"
            " others decide what is in it: move it away, or chown and chmod it"
        )


def _odd(path: Path) -> UnsafeFileError:
    kind = "a symbolic link" if path.is_symlink() else "no regular file"
    return UnsafeFileError(f"{path} is {kind} and is not used: move it away")
