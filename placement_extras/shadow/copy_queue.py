"""Copies of requests between the process that answers clients and the one that compares.

The answering process never waits: copies that the other one does not take in time are in a bounded
:class:`ByteBacklog`, where writes displace reads.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Client, Connection
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


LOG = logging.getLogger(__name__)

BOUNDS: Final = BacklogBounds(reads=64 << 20, writes=64 << 20, any_write=256 << 20)
"""Of what waits to be sent."""
_SECONDS_BETWEEN_TRIES: Final = 0.5
_SECONDS_OF_SILENCE: Final = 0.1
"""Then the other process is told that nothing was answered."""


@dataclass(frozen=True, slots=True)
class OutboxDelivery:
    """One copy, or none where nothing was answered for a while.

    :param left_out: how many copies found no room before it was sent.
    :param settled: writes that came in before that time of the monotonic clock are in this delivery or
        in one before it.
    :param predecessors: how many processes answered clients before the one that sends it.
    """

    copy: MirroredRequest | None
    left_out: int
    settled: float
    predecessors: int = 0


class MirrorOutbox:
    """Sends copies to the address where the other process listens, from a thread of its own.

    :param predecessors: how many processes answered clients before this one.
    """

    def __init__(
        self, address: str, key: bytes, bounds: BacklogBounds = BOUNDS, predecessors: int = 0
    ) -> None:
        self._address: Final = address
        self._key: Final = key
        self._predecessors: Final = predecessors
        self._waiting = ByteBacklog(bounds)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shadow-outbox", daemon=True)

    def start(self, settled: Callable[[], float]) -> None:
        """Begin to send.

        :param settled: the time before which no write came in whose copy has not been put here.
        """
        self._settled = settled
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Send what waits, for that long at most, and end."""
        self._stopped.set()
        self._waiting.close(keep=True)
        self._thread.join(seconds)

    def put(self, copy: MirroredRequest) -> None:
        """Have a copy sent; never blocks."""
        self._waiting.put(copy)

    def _run(self) -> None:
        connection: Connection | None = None
        try:
            while not self._waiting.ended:
                message = pickle.dumps(self._next())
                while True:
                    connection = connection or self._connect()
                    if connection is None:
                        return
                    try:
                        connection.send_bytes(message)
                        break
                    except OSError:
                        connection.close()
                        connection = None
        finally:
            if connection is not None:
                connection.close()

    def _next(self) -> OutboxDelivery:
        copy = self._waiting.get(_SECONDS_OF_SILENCE)
        settled = self._settled()
        if len(self._waiting):  # what waits may have come in before that
            settled = 0.0
        return OutboxDelivery(copy, self._waiting.left_out, settled, self._predecessors)

    def _connect(self) -> Connection | None:
        """None when nobody listens and we are to stop."""
        reported = False
        while True:
            with suppress(OSError, EOFError):
                return Client(self._address, "AF_UNIX", authkey=self._key)
            if not reported:
                LOG.warning(
                    "Nothing is compared: the comparing process does not listen; requests are passed on"
                )
                reported = True
            if self._stopped.wait(_SECONDS_BETWEEN_TRIES):
                return None
