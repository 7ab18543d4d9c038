"""File locks with the name of their holder. When the holding process ends, the kernel releases the lock."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from compute_agent.files import open_own
from compute_agent.model.messages import printable_text

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
