"""The speed of the machine, to compare numbers of several machines and hours."""

import time
from typing import Final

ADDITIONS: Final = 5_000_000


def addition_seconds() -> float:
    """Return the CPU time of five million additions, in seconds."""
    began = time.thread_time()
    for _ in range(ADDITIONS):
        began + 1
    return time.thread_time() - began
