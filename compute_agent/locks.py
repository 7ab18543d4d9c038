"""Locks that die with their holder, and say who that is."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from compute_agent.files import open_own
from compute_agent.model.messages import printable

_MAX_LENGTH: Final = 1000
"""Bytes of what a holder says of itself."""

_ATTEMPTS: Final = 10


class LockedError(Exception):
    """Somebody else holds the lock; the text says who, as far as that is known."""


def hold(path: Path, holder: str) -> int:
    """Take the lock that is the file ``path``, and write into it who has it.

    The file is made if absent, in a folder that is there. The lock is held until the descriptor that is
    returned is closed, at the end of the process at the latest.

    :raises LockedError:
    :raises UnsafeFileError:
    :raises OSError:
    """
    for _ in range(_ATTEMPTS):
        descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_held(path, descriptor):
                content = f"{holder}\n".encode()[:_MAX_LENGTH]
                os.pwrite(descriptor, content, 0)
                os.ftruncate(descriptor, len(content))
                return descriptor
        except BlockingIOError as error:
            other = printable(os.pread(descriptor, _MAX_LENGTH, 0).decode(errors="replace").strip())
            os.close(descriptor)
            raise LockedError(other or "somebody who does not say who") from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # it was removed between the two, and is nobody's any more
    raise LockedError("somebody who removes it all the time")


def is_held(path: Path, descriptor: int) -> bool:
    """Whether the lock in ``descriptor`` is still that of ``path``.

    The file may have been removed, and somebody else may have the next one.
    """
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
