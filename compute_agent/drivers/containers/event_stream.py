"""The stream of events of an engine (``GET /events``), with one JSON object on each line.

A thread reads lines. Events contain the labels of a container, so a line can be very long. A line that is too
long is skipped, and the agent reads all containers. A stream without events is opened again after a while,
because a broken connection may cause no error.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import socket
from collections.abc import Callable
from typing import Final

from compute_agent.drivers.containers.container_state import changed_key
from compute_agent.threads import NO_LOCK, ThreadSpec, start_thread

LOG = logging.getLogger(__name__)

_MAX_LINE: Final = 1 << 16

_SILENCE_SECONDS: Final = 300.0
"""Seconds without an event after which the stream is opened again."""

_OK: Final = 200

EVENTS_THREAD: Final = ThreadSpec(
    "container-events",
    "when the engine of containers has an event",
    "reads events of Podman or Docker, and hands them on as hints",
    NO_LOCK,
    "the engine over its socket; the queue of ``containers``",
)


class EventStream:
    """Follows the events of an engine, in a thread of its own."""

    def __init__(
        self,
        connect: Callable[[], socket.socket],
        path: str,
        on_change: Callable[[str], None],
        silence: float = _SILENCE_SECONDS,
    ) -> None:
        """Connect, and start the thread.

        :param connect: connects to the engine; raises OSError.
        :param path: the path of the request, with its query.
        :param on_change: called from the thread with the id of a container that may have changed. An empty id
            means all containers: at the beginning of the stream, after a gap, and at the end of the stream.
        :raises OSError: the engine does not answer.
        """
        self._connect = connect
        self._path = path
        self._on_change = on_change
        self._silence = silence
        self._closed = False
        self.reason = ""
        """The reason for the end of the stream; empty while it is open."""
        self._socket = self._request_events()
        self._thread = start_thread(EVENTS_THREAD, self._run)

    @property
    def is_open(self) -> bool:
        """Whether the stream is still open, as far as the agent has noticed."""
        return not self.reason

    def close(self) -> None:
        """End the stream."""
        self._closed = True
        self.reason = self.reason or "it was closed"
        # shutdown() wakes the thread, which closes the socket.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _request_events(self) -> socket.socket:
        plain = self._connect()
        request = f"GET {self._path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\r\n"
        try:
            plain.sendall(request.encode("ascii"))
            plain.settimeout(self._silence)
        except OSError:
            plain.close()
            raise
        return plain

    # The thread

    def _run(self) -> None:
        reason = ""
        while not reason and not self._closed:
            try:
                reason = self._follow_events()
                if not reason:
                    self._socket = self._request_events()
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = f"the stream of events ended: {error}"
        self.reason = self.reason or reason or "it was closed"
        self._socket.close()
        self._on_change("")

    def _follow_events(self) -> str:
        """Report the events of one request.

        Return the reason why the stream has ended, or an empty text if no event came for ``silence`` seconds.
        """
        with self._socket as plain, http.client.HTTPResponse(plain, method="GET") as answer:
            try:
                answer.begin()
                if answer.status != _OK:
                    return f"the engine answers {answer.status} to the request for events"
                # Events before this answer were missed, so all containers are read.
                self._on_change("")
                while line := answer.readline(_MAX_LINE):
                    self._handle_line(line, answer)
            except TimeoutError:
                return ""
        return "the engine closed the stream of events"

    def _handle_line(self, line: bytes, answer: http.client.HTTPResponse) -> None:
        if not line.endswith(b"\n") and len(line) >= _MAX_LINE:
            LOG.debug(
                "An event of a container is longer than %d bytes, so the agent reads all containers",
                _MAX_LINE,
            )
            while line and not line.endswith(b"\n"):
                line = answer.readline(_MAX_LINE)
            self._on_change("")
        elif line.strip():
            key = changed_key(line)
            if key is not None:
                self._on_change(key)
