"""Files that the kernel makes up as they are read (/proc, /sys, cgroups).

A few system calls for each and no more, as every round reads hundreds.
"""

from __future__ import annotations

import os
from typing import Final

_CHUNK: Final = 1 << 16


def read(path: str, max_bytes: int | None = None) -> bytes:
    """The content of a file, ``max_bytes`` of it unless that is None.

    :raises OSError:
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, _CHUNK if max_bytes is None else min(max_bytes, _CHUNK)):
            parts.append(part)
            if max_bytes is not None and (max_bytes := max_bytes - len(part)) == 0:
                break
        return b"".join(parts)
    finally:
        os.close(descriptor)


def read_piece(path: str) -> bytes:
    """The content of a file that the kernel makes in one piece, so that one read(2) has all of it.

    So are all of a cgroup but the lists of its processes and threads.

    :raises OSError:
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.read(descriptor, _CHUNK)
    finally:
        os.close(descriptor)
    return found if len(found) < _CHUNK else read(path)


def read_text(path: str) -> str:
    """The content of a file as text; what is no UTF-8 is replaced.

    :raises OSError:
    """
    return read(path).decode(errors="replace")


def read_optional(path: str) -> str | None:
    """The content of a file as text; None where it is missing or cannot be read.

    Reading fails with ENODEV when a cgroup was removed or a CPU went offline meanwhile, with EOPNOTSUPP when
    PSI is switched off, and in containers with EACCES.
    """
    try:
        return read_text(path)
    except OSError:
        return None


def write_text(path: str, text: str) -> None:
    """Write to a file that is there, at once as the kernel needs it.

    :raises OSError:
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
