"""Atomic writes of the agent's own files, locks, and reads of other files up to a size limit.

After a crash, a file has either its complete old content or its complete new content. The agent refuses
folders and files that another user could have made or changed. A lock file has the name of
the lock's holder. When the holding process ends, the kernel releases the lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from compute_agent.model.messages import printable_text

MAX_ASIDE: Final = 5
"""Maximum number of damaged files that are kept under one name; put_aside() removes the oldest files."""

MAX_BYTES: Final = 64 << 20
"""Maximum size in bytes of a file that is read into memory, so that hostile content cannot exhaust the
memory.
"""

_ASIDE: Final = ".damaged-"

_TEMPORARY: Final = re.compile(r"\..+\.[a-z0-9_]{8}")
"""Names of the temporary files of write_durably(): tempfile adds eight characters to the prefix."""


class UnsafeFileError(OSError):
    """Another user could have made or changed a file or folder. The text says what to do about it."""


def secure_folder(folder: Path) -> None:
    """Make ``folder`` if it is absent (mode 0750), and check that no other user can replace it.

    :raises UnsafeFileError: another user owns the folder or a folder above it, or may write to one of them.
    :raises OSError: the folder cannot be made.
    """
    # The folder is checked before mkdir, so that nothing is made below a folder of another user. It is
    # checked again afterwards, because the umask decides the modes of new folders.
    check_folder(folder)
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    check_folder(folder)


def check_folder(folder: Path) -> None:
    """Check that no other user can replace a folder, or redirect a symbolic link in its path.

    An absent folder does not count as an error.

    :raises UnsafeFileError: another user owns the folder or a folder above it, or may write to one of them.
    """
    # The real folder is checked first, and then each link. The owner of a link, or of the folder that
    # contains the link, could change its target later.
    real = folder.resolve()
    _check_part(real, folder, stat.S_IWOTH | stat.S_IWGRP)
    _check_above(real, folder)
    for link in _symbolic_links(folder.absolute()):
        _check_owner(link, link.lstat(), folder)
        _check_above(link.parent.resolve() / link.name, folder)


def _symbolic_links(path: Path) -> Iterator[Path]:
    """Yield the symbolic links in a path. The path was resolved before, so its links form no circle."""
    for part in (path, *path.parents):
        if part.is_symlink():
            yield part
            yield from _symbolic_links(part.parent / part.readlink())


def _check_above(path: Path, folder: Path) -> None:
    # A group is allowed to write to the folders above, because in most cases it is the user's own group. In a
    # sticky folder such as /tmp, only the owner of an entry can rename the entry.
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
            f"{part} (mode {stat.S_IMODE(status.st_mode):04o}) is writable for other users, who could"
            f" replace the agent's files in {folder}: chmod {'o' if sticky else 'go'}-w {part}"
        )


def _check_owner(part: Path, status: os.stat_result, folder: Path) -> None:
    if status.st_uid not in _trusted_users():
        link = " is a symbolic link that" if stat.S_ISLNK(status.st_mode) else ""
        raise UnsafeFileError(
            f"{part}{link} belongs to user {status.st_uid}, who could replace the agent's files in"
            f" {folder}: chown it to user {os.geteuid()}, or choose another folder"
        )


def open_own(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a regular file of the agent, without following a symbolic link, and return its descriptor.

    :param flags: the flags of open(2).
    :param mode: the mode of the file if open(2) creates it.

    :raises UnsafeFileError: the path is a link or no regular file, or another user may write to it.
    :raises OSError: the file is absent or cannot be opened.
    """
    try:
        # O_NONBLOCK: open(2) of a FIFO would wait for its other end without limit.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        # O_NOFOLLOW gives ELOOP at a symbolic link, O_NONBLOCK gives ENXIO at a FIFO
        # without a reader.
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _unusable_file(path) from error
        raise
    try:
        # The descriptor is checked, not the path: the path perhaps leads to another file by now.
        _check_status(path, os.fstat(descriptor))
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_own(path: Path) -> None:
    """Check a file that a library will open, in the same way as open_own().

    An absent file does not count as an error.

    :raises UnsafeFileError: the path is a link or no regular file, or another user may write to it.
    """
    with contextlib.suppress(FileNotFoundError):
        _check_status(path, path.lstat())


def read_own(path: Path) -> bytes:
    """Read a file of the agent.

    :raises UnsafeFileError: the path is a link or no regular file, or another user may write to it.
    :raises OSError: the file is absent, cannot be read, or has more than ``MAX_BYTES``.
    """
    with os.fdopen(open_own(path, os.O_RDONLY), "rb") as file:
        # One byte more than allowed is read, to notice a file that is too large; the size can change during
        # the read.
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"larger than {MAX_BYTES} bytes", str(path))
    return content


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Read a regular file that belongs to operators or packages. Symbolic links are followed.

    :raises OSError: the path is not a regular file, has more than ``max_bytes``, or cannot be read.
    """
    # O_NONBLOCK: open(2) of a FIFO would wait for its other end without limit.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is not a regular file")
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(f"{path} is larger than {max_bytes} bytes")
    return content


def write_durably(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace the content of ``path`` durably: temporary file, fsync, rename, fsync of the folder.

    :raises OSError: for example, the disk is full. No temporary file remains. The old file is unchanged,
        unless only the last fsync, that of the folder, has failed.
    """
    # The temporary file is in the same folder, because a rename is atomic only within one file system.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            # The content is synced before the rename. Otherwise a file system could write the new name first,
            # and after a power cut the file would be empty.
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        # The first error is reported, not an error of this removal.
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # errors of write(2) and fsync(2) name no file
        raise
    sync_folder(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files that a killed write_durably() has left.

    No other thread may write to the folder during the call.
    """
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            path = folder / name
            # lstat() is used, because a link of this name belongs to an operator: write_durably() makes
            # regular files.
            if _TEMPORARY.fullmatch(name) and stat.S_ISREG(path.lstat().st_mode):
                path.unlink()


def put_aside(path: Path) -> Path:
    """Rename a file that cannot be used, so that an operator can examine it; return its new path.

    The last ``MAX_ASIDE`` files of each name are kept.

    :raises OSError: the file cannot be renamed.
    """
    aside = path.with_name(f"{path.name}{_ASIDE}{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
    os.rename(path, aside)
    sync_folder(path.parent)
    # The time in the name sorts as text, so the first names are the oldest.
    names = sorted(name for name in os.listdir(path.parent) if name.startswith(path.name + _ASIDE))
    for name in names[:-MAX_ASIDE]:
        # If an old file stays, it does no harm. The new file is already renamed.
        with contextlib.suppress(OSError):
            os.unlink(path.with_name(name))
    return aside


def remove_durably(path: Path) -> None:
    """Remove ``path`` so that it stays removed after a power cut. An absent file is not an error."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Call fsync(2) for a folder, so that renames and removals in it survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _trusted_users() -> frozenset[int]:
    """The ids of users that may own files of the agent: the agent's user, and root."""
    return frozenset({0, os.geteuid()})


def _check_status(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _unusable_file(path)
    if status.st_uid not in _trusted_users() or status.st_mode & stat.S_IWOTH:
        raise UnsafeFileError(
            f"{path} belongs to user {status.st_uid} (mode {stat.S_IMODE(status.st_mode):04o}), so other"
            " users can change its content: move it away, or chown and chmod it"
        )


def _unusable_file(path: Path) -> UnsafeFileError:
    kind = "a symbolic link" if path.is_symlink() else "not a regular file"
    return UnsafeFileError(f"{path} is {kind} and is not used: move it away")


_MAX_LENGTH: Final = 1000
"""Maximum length in bytes of the holder's name at the start of a lock file."""

_ATTEMPTS: Final = 10
"""Number of attempts to lock a file that other processes keep removing, before the lock counts as held."""


class LockedError(Exception):
    """Another process holds the lock. The text names the holder, if the lock file contains a name."""


def hold_lock(path: Path, holder: str) -> int:
    """Lock the file ``path``, write ``holder`` into it, and return its descriptor.

    If the file is absent, it is created; the folder must exist. The lock is held until the descriptor is
    closed or the process ends.

    :raises LockedError: another process holds the lock.
    :raises UnsafeFileError: the path is a link or no regular file, or another user may write to it.
    :raises OSError: the file cannot be opened or written.
    """
    for _ in range(_ATTEMPTS):
        descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The file was perhaps removed between open(2) and flock(2). Its lock is then worthless, because
            # another process locks the next file with this name.
            if is_held(path, descriptor):
                content = f"{holder}\n".encode()[:_MAX_LENGTH]
                os.pwrite(descriptor, content, 0)
                # The file is cut after the write, so that a reader sees a name with old text behind it, but
                # never an empty file.
                os.ftruncate(descriptor, len(content))
                return descriptor
        except BlockingIOError as error:
            other = printable_text(os.pread(descriptor, _MAX_LENGTH, 0).decode(errors="replace").strip())
            os.close(descriptor)
            raise LockedError(other or "a process that has not written its name") from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # removed between open(2) and flock(2): the next attempt makes a new file
    raise LockedError("a process that removes the lock file again and again")


def is_held(path: Path, descriptor: int) -> bool:
    """Whether ``descriptor`` is the file at ``path``, and not a removed one that another process replaced."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
