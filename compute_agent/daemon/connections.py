"""Servers that nobody can occupy.

Each connection has a thread, their number is bounded, and so is how long one may keep its thread waiting.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import threading
import time
from typing import Any, Final

LOG = logging.getLogger(__name__)

_SECONDS_TO_END: Final = 1.0
"""For a thread whose connection was hung up; it mostly is in no call that takes time."""


class LimitedThreads(socketserver.ThreadingMixIn):
    """To be mixed into a TCP or UNIX server of socketserver.

    A connection is waited for until its handler calls received(), ``receive_timeout`` seconds at most. When
    all threads are taken, a new connection takes the place of the one that has been waited for longest: who
    has said all that is to be said at once is served, however many others are silent. Only when all are being
    served a new one is refused.
    """

    daemon_threads = True
    request_queue_size = 64
    max_connections = 64
    receive_timeout = 10.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._guard = threading.Condition()
        self._waited_for: dict[socket.socket, float] = {}
        """Until when (monotonic seconds), the oldest connection first."""
        self._open: set[socket.socket] = set()
        super().__init__(*arguments, **options)

    def received(self, connection: socket.socket) -> None:
        """All that was waited for has come: what follows may take as long as it takes."""
        with self._guard:
            self._waited_for.pop(connection, None)

    def refuse(self, connection: socket.socket) -> None:
        """Say that nobody has time, without waiting for anything.

        :raises OSError:
        """

    # Called by socketserver

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, or refuse it."""
        with self._guard:
            admitted = self._admit()
            if admitted:
                self._open.add(request)
                self._waited_for[request] = time.monotonic() + self.receive_timeout
        if admitted:
            super().process_request(request, client_address)
            return
        LOG.warning("%s has %d connections and refuses another", type(self).__name__, self.max_connections)
        request.setblocking(False)
        with contextlib.suppress(OSError):
            self.refuse(request)
        self.shutdown_request(request)

    def service_actions(self) -> None:
        """Hang up where nothing came in time."""
        super().service_actions()  # type: ignore[misc]  # of the server that this is mixed into
        now = time.monotonic()
        with self._guard:
            for connection, deadline in list(self._waited_for.items()):
                if deadline > now:
                    break
                self._hang_up(connection)

    def shutdown_request(self, request: Any) -> None:
        """The end of every connection, however it came."""
        with self._guard:
            self._waited_for.pop(request, None)
            self._open.discard(request)
            self._guard.notify_all()
        super().shutdown_request(request)  # type: ignore[misc]  # as above

    def handle_error(self, request: Any, client_address: Any) -> None:
        """What a handler did not think of goes to the log, not to standard error."""
        LOG.exception("A connection of %s could not be served", type(self).__name__)

    # Inner parts, under the guard

    def _admit(self) -> bool:
        if len(self._open) < self.max_connections:
            return True
        oldest = next(iter(self._waited_for), None)
        if oldest is None:
            return False
        self._hang_up(oldest)
        return self._guard.wait_for(lambda: len(self._open) < self.max_connections, _SECONDS_TO_END)

    def _hang_up(self, connection: socket.socket) -> None:
        """Its thread finds the end of the connection, and ends."""
        del self._waited_for[connection]
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
