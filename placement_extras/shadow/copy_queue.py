"""Sends copies of requests from the answering process to the comparing process.

The answering process never waits for the comparing process. Copies wait in a :class:`ByteBacklog`, which has
a limited size. When the space becomes scarce, the backlog leaves out reads first, and then writes.
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

NO_ROOM: Final = "too much was waiting to be compared"


@dataclass(frozen=True, slots=True)
class BacklogBounds:
    """Maximum sizes, in bytes, of a queue of copies.

    A copy is added only if the queue with this copy does not exceed the maximum for this kind of copy.

    :param reads: the maximum for the copy of a read. A read that does not fit is left out.
    :param writes: the maximum for the whole copy of a write. Instead of a copy that does not fit, a stub
        without body and answer is added.
    :param any_write: the maximum for a stub. If not even the stub fits, the write is left out.
    """

    reads: int
    writes: int
    any_write: int


class ByteBacklog:
    """A queue of copies with a limit in bytes; :meth:`put` never blocks."""

    def __init__(self, bounds: BacklogBounds) -> None:
        self._bounds: Final = bounds
        self._copies: deque[MirroredRequest] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.bytes = 0
        #: number of copies, since the start, for which the queue had no room
        self.left_out = 0

    def __len__(self) -> int:
        return len(self._copies)

    def put(self, copy: MirroredRequest) -> None:
        """Add a copy; if it does not fit, add its stub. If neither fits, count the copy in ``left_out``."""
        with self._changed:
            fitting = self._fitting_copy(copy)
            if fitting is None:
                self.left_out += 1
                return
            self._copies.append(fitting)
            self.bytes += fitting.size
            self._changed.notify()

    def _fitting_copy(self, copy: MirroredRequest) -> MirroredRequest | None:
        """Return the copy if it fits, otherwise its stub if this fits, otherwise None."""
        whole = self._bounds.writes if copy.is_write else self._bounds.reads
        if self.bytes + copy.size <= whole:
            return copy
        stub = _empty_copy(copy)
        return stub if copy.is_write and self.bytes + stub.size <= self._bounds.any_write else None

    def get(self, seconds: float | None = None) -> MirroredRequest | None:
        """Return the next copy; None if no copy came for ``seconds``, or if the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._copies or self._closed, seconds)
            if not self._copies:
                return None
            copy = self._copies.popleft()
            self.bytes -= copy.size
            return copy

    @property
    def has_ended(self) -> bool:
        """Return whether the queue is closed and empty."""
        with self._changed:
            return self._closed and not self._copies

    def any_waiting(self, holds: Callable[[MirroredRequest], bool]) -> bool:
        """Return whether the condition holds for any copy in the queue."""
        with self._changed:
            return any(map(holds, self._copies))

    def close(self, *, keep: bool) -> None:
        """Close the queue. If ``keep`` is False, drop the waiting copies."""
        with self._changed:
            self._closed = True
            if not keep:
                self._copies.clear()
                self.bytes = 0
            self._changed.notify_all()


def _empty_copy(copy: MirroredRequest) -> MirroredRequest:
    """Return the copy of a request without its body and without the answer."""
    # the stub remains in the queue, because the databases differ after a lost write, which has to be reported
    request = ShadowRequest(copy.request.method, copy.request.path, (), b"")
    return replace(copy, request=request, received=None, missed=NO_ROOM)


LOG = logging.getLogger(__name__)

OUTBOX_BOUNDS: Final = BacklogBounds(reads=64 << 20, writes=64 << 20, any_write=256 << 20)
"""Bounds of the copies that wait to be sent, in the memory of the answering process."""
_RETRY_SECONDS: Final = 0.5
"""Pause between two attempts to connect to the comparing process."""
_SILENCE_SECONDS: Final = 0.1
"""After this number of seconds without a copy, a delivery without a copy reports the new ``settled`` time."""


@dataclass(frozen=True, slots=True)
class OutboxDelivery:
    """One copy for the comparing process, or None if no request was answered for a while.

    :param left_out: number of copies since the start for which the queue had no room.
    :param settled: a time of the monotonic clock in seconds. Each write that came in before this time is in
        this delivery or in an earlier one.
    :param predecessors: number of processes that answered clients before the sender.
    """

    copy: MirroredRequest | None
    left_out: int
    settled: float
    predecessors: int = 0


class MirrorOutbox:
    """Sends copies to the socket of the comparing process, in a separate thread.

    :param predecessors: number of processes that answered clients before this one.
    """

    def __init__(
        self, address: str, key: bytes, bounds: BacklogBounds = OUTBOX_BOUNDS, predecessors: int = 0
    ) -> None:
        self._address: Final = address
        self._key: Final = key
        self._predecessors: Final = predecessors
        self._waiting = ByteBacklog(bounds)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shadow-outbox", daemon=True)

    def start(self, settled: Callable[[], float]) -> None:
        """Start the thread that sends copies.

        :param settled: a function that returns a time of the monotonic clock. :meth:`put` has already
            received the copies of all writes that came in before this time.
        """
        self._settled = settled
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Send the waiting copies for at most ``seconds``, then end the thread."""
        self._stopped.set()
        self._waiting.close(keep=True)
        self._thread.join(seconds)

    def put(self, copy: MirroredRequest) -> None:
        """Add a copy to the copies that wait to be sent. This call never blocks."""
        self._waiting.put(copy)

    def _run(self) -> None:
        connection: Connection | None = None
        try:
            while not self._waiting.has_ended:
                message = pickle.dumps(self._next_delivery())
                # after a lost connection, the delivery is sent again, because the databases would differ if a
                # write were lost
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

    def _next_delivery(self) -> OutboxDelivery:
        copy = self._waiting.get(_SILENCE_SECONDS)
        settled = self._settled()
        if len(self._waiting):  # one of the waiting copies can be a write from before that time
            settled = 0.0
        return OutboxDelivery(copy, self._waiting.left_out, settled, self._predecessors)

    def _connect(self) -> Connection | None:
        """Wait until the comparing process listens, and connect; return None if :meth:`stop` is called."""
        reported = False
        while True:
            with suppress(OSError, EOFError):
                return Client(self._address, "AF_UNIX", authkey=self._key)
            if not reported:
                LOG.warning(
                    "Nothing is compared, because the comparing process does not accept connections;"
                    " requests are passed on"
                )
                reported = True
            if self._stopped.wait(_RETRY_SECONDS):
                return None
