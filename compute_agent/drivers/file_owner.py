"""Files that are their owner's to write, such as those of a process in /proc, of a root without capabilities.

Root passes over the permissions of files by CAP_DAC_OVERRIDE, which the agent's unit does not leave it. With
CAP_SETUID a thread can be another user to file systems alone (setfsuid(2)).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_LIBC = ctypes.CDLL(None)


@contextmanager
def acting_as_owner(path: str) -> Iterator[None]:
    """To file systems this thread is the owner of a file meanwhile; who may not be that stays who it is.

    :raises OSError: the file is not there.
    """
    before = _LIBC.setfsuid(os.stat(path).st_uid)
    try:
        yield
    finally:
        _LIBC.setfsuid(before)
