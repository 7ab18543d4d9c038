"""Sends HTTP requests, and limits the time and the size of each answer."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlsplit

from compute_agent.threads import ONCE, ThreadSpec, start_timer

DEADLINE_THREAD: Final = ThreadSpec(
    "http deadline",
    ONCE,
    "shuts down a connection when the time of its answer is over",
    "that of the connection's sockets",
    "nothing",
)

_OK: Final = 200


_MAX_REFUSAL: Final = 4096
"""Maximum number of bytes that are kept of the content of an error answer."""


class AnswerRefusedError(OSError):
    """The server answered with another status than 200. ``content`` is the beginning of the answer."""

    def __init__(self, message: str, content: bytes) -> None:
        super().__init__(message)
        self.content = content


class LargeAnswerError(OSError):
    """The content of an answer is larger than the limit of its reader."""


def read_address(
    address: str, deadline: float, max_bytes: int, context: ssl.SSLContext | None = None, accept: str = "*/*"
) -> bytes:
    """Send a GET request, and return the whole content of the answer.

    :param address: a checked address with http:// or https://. The lookup of its host name has no time limit.
    :param deadline: seconds for the whole answer.
    :param context: the TLS settings for an https address; None trusts the authorities of the system.
    :raises AnswerRefusedError: the answer has another status than 200.
    :raises LargeAnswerError: the answer is larger than ``max_bytes``.
    :raises OSError: the server cannot be reached.
    :raises TimeoutError: the answer was not complete in time.
    :raises http.client.HTTPException: the answer is not HTTP.
    """
    parts = urlsplit(address)
    assert parts.hostname is not None, "the address is checked"
    is_secure = parts.scheme == "https"
    port = parts.port or (http.client.HTTPS_PORT if is_secure else http.client.HTTP_PORT)
    began = time.monotonic()
    plain = _connect(parts.hostname, port, began + deadline)
    # From here on only the timer ends the connection: the socket's own timeout would come at the same moment.
    plain.settimeout(None)
    left = max(0.0, began + deadline - time.monotonic())
    with ExitStack() as stack:
        stack.enter_context(_ended_in_time(plain, left, deadline))
        if is_secure:
            context = context or ssl.create_default_context()
            plain = stack.enter_context(context.wrap_socket(plain, server_hostname=parts.hostname))
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection = http.client.HTTPConnection(parts.hostname, port)
        answer = _exchange_messages(plain, connection, "GET", path, accept, max_bytes)
    if answer.status != _OK:
        raise AnswerRefusedError(f"it answers {answer.status} for {parts.path}", answer.content)
    return answer.content


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer to a request. If the server refuses the request, ``content`` is cut after its beginning."""

    status: int
    content: bytes

    @property
    def is_success(self) -> bool:
        """Whether the request was carried out."""
        return self.status // 100 == _OK // 100


def ask_server(plain: socket.socket, method: str, path: str, deadline: float, max_bytes: int) -> HttpAnswer:
    """Send a request without a body, and return the whole answer.

    :param plain: an open connection. The function closes this connection.
    :param path: the path of the request, with its query.
    :param deadline: seconds for the whole answer.
    :raises LargeAnswerError: the answer is larger than ``max_bytes``.
    :raises OSError: the server does not answer.
    :raises TimeoutError: the answer was not complete in time.
    :raises http.client.HTTPException: the answer is not HTTP.
    """
    plain.settimeout(None)
    with _ended_in_time(plain, deadline, deadline):
        return _exchange_messages(
            plain, http.client.HTTPConnection("localhost"), method, path, "*/*", max_bytes
        )


def _exchange_messages(
    plain: socket.socket,
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    accept: str,
    max_bytes: int,
) -> HttpAnswer:
    connection.sock = plain
    connection.request(method, path, headers={"Accept": accept, "Connection": "close"})
    answer = connection.getresponse()
    if answer.status // 100 != _OK // 100:
        return HttpAnswer(answer.status, answer.read(_MAX_REFUSAL))
    # One more byte than the maximum is read, to notice an answer that is too large.
    content = answer.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise LargeAnswerError(f"the answer is larger than {max_bytes} bytes")
    return HttpAnswer(answer.status, content)


def _connect(host: str, port: int, end: float) -> socket.socket:
    """Connect to the first address of a host that accepts a connection before ``end`` (monotonic seconds).

    :raises OSError: no address accepts a connection; the error is that of the last address.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure = OSError(f"{host} has no address")
    for number, (family, kind, protocol, _, address) in enumerate(found):
        # Each address gets a share of the time that is left, so that an address that does not answer leaves
        # time for the others.
        share = (end - time.monotonic()) / (len(found) - number)
        if share <= 0:
            raise TimeoutError(f"no address of {host} has answered in time")
        try:
            with ExitStack() as stack:
                plain = stack.enter_context(socket.socket(family, kind, protocol))
                plain.settimeout(share)
                plain.connect(address)
                stack.pop_all()
                return plain
        except OSError as error:
            failure = error
    raise failure


class ConnectionWatch:
    """Shuts down connections at a deadline, whatever the state of the connections is.

    A timeout of a socket would not limit the whole time, because the timeout starts again with each byte.
    """

    def __init__(self, seconds: float) -> None:
        """Start the timer; the connections are attached later.

        :raises RuntimeError: no thread can be started for the deadline.
        """
        self.has_expired = False
        # The thread of the timer can shut sockets down while another thread attaches new ones.
        self._lock = threading.Lock()
        self._twins: list[socket.socket] = []
        self._timer = start_timer(DEADLINE_THREAD, seconds, self._end_connections)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()
        with self._lock:
            for twin in self._twins:
                twin.close()
            self._twins.clear()

    def attach_socket(self, connected: socket.socket) -> None:
        """Watch a connection by a second descriptor.

        TLS and ``Connection: close`` close the first descriptor during an answer.
        """
        twin = socket.socket(fileno=os.dup(connected.fileno()))
        with self._lock:
            self._twins.append(twin)
            # If the deadline has passed before this connection was made, the connection is shut down at once.
            if self.has_expired:
                _shut_down(twin)

    def _end_connections(self) -> None:
        with self._lock:
            self.has_expired = True
            for twin in self._twins:
                _shut_down(twin)


def _shut_down(twin: socket.socket) -> None:
    with suppress(OSError):  # not connected any more
        twin.shutdown(socket.SHUT_RDWR)


@contextmanager
def _ended_in_time(plain: socket.socket, left: float, deadline: float) -> Iterator[None]:
    """A context that shuts a connection down after ``left`` seconds, and closes it at the end.

    :raises TimeoutError: the connection was still in use after ``left`` seconds.
    :raises OSError: no thread can be started for the deadline.
    """
    with plain:
        try:
            watch = ConnectionWatch(left)
        except RuntimeError as error:
            raise OSError(f"the deadline of the answer cannot be watched: {error}") from error
        with watch:
            watch.attach_socket(plain)
            try:
                yield
            except (OSError, http.client.HTTPException, ValueError):
                # After the deadline, the error below reports the timeout.
                if not watch.has_expired:
                    raise
    if watch.has_expired:
        raise TimeoutError(late_message(deadline))


def late_message(deadline: float) -> str:
    """The error message for an answer that took too long."""
    return f"the answer was not complete after {deadline:g} seconds"
