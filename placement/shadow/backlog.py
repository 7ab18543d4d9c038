"""Copies that wait to be replayed: as many as fit, writes before reads."""

import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from placement.shadow.exchange import Copy
from placement.shadow.outbox import FULL

_MAX_BYTES: Final = 256 << 20


@dataclass
class Backlog:
    """A queue with a bound: reads are refused when half of it is full, writes when all of it is."""

    max_bytes: int = _MAX_BYTES

    def __post_init__(self) -> None:
        self._copies: deque[Copy] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.bytes = 0
        self.left_out = 0

    def __len__(self) -> int:
        return len(self._copies)

    def put(self, copy: Copy) -> None:
        """Add one; of a write that does not fit is kept that it was there."""
        with self._changed:
            bound = self.max_bytes if copy.is_write else self.max_bytes // 2
            if self.bytes + copy.size > bound:
                if not copy.is_write or self.bytes > 2 * bound:
                    self.left_out += 1
                    return
                copy = replace(copy, request=replace(copy.request, body=b""), received=None, missed=FULL)
            self._copies.append(copy)
            self.bytes += copy.size
            self._changed.notify()

    def get(self) -> Copy | None:
        """The next one; waits for it, and is None when there will be none."""
        with self._changed:
            while not self._copies and not self._closed:
                self._changed.wait()
            if not self._copies:
                return None
            copy = self._copies.popleft()
            self.bytes -= copy.size
            return copy

    def close(self, *, keep: bool) -> None:
        """No more will be added; what waits is taken still, if it is to be kept."""
        with self._changed:
            self._closed = True
            if not keep:
                self._copies.clear()
            self._changed.notify_all()
