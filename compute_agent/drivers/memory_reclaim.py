"""Makes the kernel reclaim memory of a cgroup by ``memory.reclaim`` (cgroup-v2.rst, since Linux 5.19).

The kernel writes back and swaps out the pages that the group has not used for longest. The group has no limit
afterwards, and gets pages back when it uses them, so nothing has to be undone.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Final

RECLAIM: Final = "memory.reclaim"

# A write takes as long as the reclaim. 16 MiB take a tenth of a second on a disk of 160 MB/s.
PIECE: Final = 16 * 2**20
"""Number of bytes of one write, small enough that the time limit is exceeded only by little."""


def reclaim_memory(
    group: str, amount: int, seconds: float, monotonic: Callable[[], float] = time.monotonic
) -> int:
    """Have the kernel reclaim up to ``amount`` bytes of a group, for about ``seconds``.

    The last write may take longer than the limit of time.

    :param group: the folder of the group.
    :return: the reclaimed bytes, as far as the kernel confirms them.
    :raises OSError: the kernel has no such file, or refuses the write.
    """
    end, done = monotonic() + seconds, 0
    file = os.open(f"{group}/{RECLAIM}", os.O_WRONLY)
    try:
        while done < amount:
            piece = min(PIECE, amount - done)
            os.write(file, str(piece).encode())
            done += piece
            if monotonic() >= end:
                break
    except OSError as error:
        # EAGAIN: the kernel has reclaimed less than this piece.
        if error.errno != errno.EAGAIN:
            raise
    finally:
        os.close(file)
    return done
