"""From the process that answers clients to the one that compares: copies, as many as fit.

The process that answers never waits for the other. Where more copies wait than fit,
reads are left out, and of writes only is said that they were there.
"""

import logging
import pickle
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Client, Connection
from typing import Final

from placement.shadow.exchange import Copy, Request

LOG = logging.getLogger(__name__)

_MAX_BYTES: Final = 64 << 20
_MAX_STUBS: Final = 100_000
_SECONDS_BETWEEN_TRIES: Final = 0.5
FULL: Final = "too much was waiting to be compared"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One copy, and how many reads were left out before it since the process began."""

    copy: Copy
    left_out: int


class Outbox:
    """Sends copies to the address where the other process listens, from a thread of its own."""

    def __init__(self, address: str, key: bytes, max_bytes: int = _MAX_BYTES) -> None:
        self._address: Final = address
        self._key: Final = key
        self._max_bytes: Final = max_bytes
        self._waiting: deque[Copy] = deque()
        self._bytes = 0
        self._left_out = 0
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shadow-outbox", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Send what waits, for that long at most, and end."""
        self._stopped.set()
        with self._changed:
            self._changed.notify()
        self._thread.join(seconds)

    def put(self, copy: Copy) -> None:
        """Have a copy sent; never blocks."""
        with self._changed:
            if self._bytes + copy.size > self._max_bytes:
                if not copy.is_write or len(self._waiting) > _MAX_STUBS:
                    self._left_out += 1
                    return
                copy = _stub(copy)
            self._waiting.append(copy)
            self._bytes += copy.size
            self._changed.notify()

    def _run(self) -> None:
        connection: Connection | None = None
        try:
            while (delivery := self._next()) is not None:
                message = pickle.dumps(delivery)
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

    def _next(self) -> Delivery | None:
        with self._changed:
            while not self._waiting:
                if self._stopped.is_set():
                    return None
                self._changed.wait()
            copy = self._waiting.popleft()
            self._bytes -= copy.size
            return Delivery(copy, self._left_out)

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


def _stub(copy: Copy) -> Copy:
    request = Request(copy.request.method, copy.request.path, (), b"")
    return replace(copy, request=request, received=None, missed=FULL)
