"""From the process that answers clients to the one that compares: copies, as many as fit.

The process that answers never waits for the other: what it does not take in time waits in a
:class:`~placement.shadow.backlog.Backlog`.
"""

import logging
import pickle
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from typing import Final

from placement.shadow.backlog import Backlog, Bounds
from placement.shadow.exchange import Copy

LOG = logging.getLogger(__name__)

BOUNDS: Final = Bounds(reads=64 << 20, writes=64 << 20, any_write=256 << 20)
"""Of what waits to be sent."""
_SECONDS_BETWEEN_TRIES: Final = 0.5


@dataclass(frozen=True, slots=True)
class Delivery:
    """One copy, and how many found no room before it was sent."""

    copy: Copy
    left_out: int


class Outbox:
    """Sends copies to the address where the other process listens, from a thread of its own."""

    def __init__(self, address: str, key: bytes, bounds: Bounds = BOUNDS) -> None:
        self._address: Final = address
        self._key: Final = key
        self._waiting = Backlog(bounds)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shadow-outbox", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Send what waits, for that long at most, and end."""
        self._stopped.set()
        self._waiting.close(keep=True)
        self._thread.join(seconds)

    def put(self, copy: Copy) -> None:
        """Have a copy sent; never blocks."""
        self._waiting.put(copy)

    def _run(self) -> None:
        connection: Connection | None = None
        try:
            while (copy := self._waiting.get()) is not None:
                message = pickle.dumps(Delivery(copy, self._waiting.left_out))
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
