"""Copies that wait: as many as fit, writes before reads."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from placement_extras.shadow.exchange import MirroredRequest, ShadowRequest

FULL: Final = "too much was waiting to be compared"


@dataclass(frozen=True, slots=True)
class BacklogBounds:
    """How many bytes may wait when one more is added.

    :param reads: with a copy of a read, which is left out otherwise.
    :param writes: with a copy of a write, of which is only kept otherwise that it was there.
    :param any_write: with all that is kept of such a write, which is left out otherwise.
    """

    reads: int
    writes: int
    any_write: int


class ByteBacklog:
    """A queue that never blocks who puts something into it."""

    def __init__(self, bounds: BacklogBounds) -> None:
        self._bounds: Final = bounds
        self._copies: deque[MirroredRequest] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.bytes = 0
        #: how many copies found no room since the beginning
        self.left_out = 0

    def __len__(self) -> int:
        return len(self._copies)

    def put(self, copy: MirroredRequest) -> None:
        """Add one, as far as there is room for it."""
        with self._changed:
            fitting = self._fitting(copy)
            if fitting is None:
                self.left_out += 1
                return
            self._copies.append(fitting)
            self.bytes += fitting.size
            self._changed.notify()

    def _fitting(self, copy: MirroredRequest) -> MirroredRequest | None:
        """What of it there is room for."""
        whole = self._bounds.writes if copy.is_write else self._bounds.reads
        if self.bytes + copy.size <= whole:
            return copy
        stub = _stub(copy)
        return stub if copy.is_write and self.bytes + stub.size <= self._bounds.any_write else None

    def get(self, seconds: float | None = None) -> MirroredRequest | None:
        """The next one; waits for it, so long at most, and is None when there will be none or is none yet."""
        with self._changed:
            self._changed.wait_for(lambda: self._copies or self._closed, seconds)
            if not self._copies:
                return None
            copy = self._copies.popleft()
            self.bytes -= copy.size
            return copy

    @property
    def ended(self) -> bool:
        """Whether there will be none any more."""
        with self._changed:
            return self._closed and not self._copies

    def any(self, holds: Callable[[MirroredRequest], bool]) -> bool:
        """Whether that holds for one of those that wait."""
        with self._changed:
            return any(map(holds, self._copies))

    def close(self, *, keep: bool) -> None:
        """No more will be added; what waits is taken still, if it is to be kept."""
        with self._changed:
            self._closed = True
            if not keep:
                self._copies.clear()
                self.bytes = 0
            self._changed.notify_all()


def _stub(copy: MirroredRequest) -> MirroredRequest:
    """That it was there."""
    request = ShadowRequest(copy.request.method, copy.request.path, (), b"")
    return replace(copy, request=request, received=None, missed=FULL)
