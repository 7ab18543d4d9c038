"""One connection of a client: bytes gathered until they are a request, an answer until it is sent."""

import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from gunicorn.http.body import ChunkedReader, LengthReader
from gunicorn.http.parser import RequestParser

#: seconds for the first byte and all headers; for the body; until the next request; to take the answer
HEADERS_WITHIN: Final = 10.0
BODY_WITHIN: Final = 60.0
IDLE_WITHIN: Final = 75.0
ANSWER_WITHIN: Final = 60.0

_MOST_HEADERS: Final = 64 * 1024
_MOST_BODY: Final = 64 * 1024 * 1024
_MOST_AT_ONCE: Final = 256 * 1024
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class TooLarge(Exception):
    """The client sends more than it may; the arguments are the status and the reason."""


class Connection:
    """What is known of a connection. It belongs to the loop, or to the thread that answers its request.

    The thread takes it for a socket: what it sends is kept until :meth:`flush`.
    """

    def __init__(self, cfg: Any, sock: socket.socket, peer: Any, server: Any) -> None:
        self.sock, self.peer, self.server = sock, peer, server
        sock.setblocking(False)
        self._cfg = cfg
        self._received = bytearray()
        self._source: deque[bytes] = deque()
        self._searched = 0
        self._body: _Length | _Chunks | None = None
        self.request: Any = None
        self._unsent = bytearray()
        self.closing = False
        self.deadline = time.monotonic() + HEADERS_WITHIN

    def fileno(self) -> int:
        """As that of a socket."""
        return self.sock.fileno()

    @property
    def held(self) -> int:
        """How many bytes wait here."""
        return len(self._received) + len(self._unsent)

    @property
    def idle(self) -> bool:
        """Whether nothing of a request has come yet, and nothing is left to send."""
        return self.request is None and not self.held

    def receive(self) -> bool:
        """Take what the client has sent; False when it has closed the connection.

        :raises OSError: the connection is lost.
        """
        try:
            data = self.sock.recv(_MOST_AT_ONCE)
        except BlockingIOError:
            return True
        if data and self.idle:
            self.deadline = time.monotonic() + HEADERS_WITHIN
        self._received += data
        return bool(data)

    def complete(self) -> bool:
        """Whether a whole request is there.

        :raises TooLarge: it is too long.
        :raises Exception: of gunicorn's many kinds, where it is no HTTP.
        """
        if self.request is None and not self._read_headers():
            return False
        assert self._body is not None
        end = self._body.end(self._received)
        if end is None:
            if len(self._received) > 2 * _MOST_BODY:
                raise TooLarge(413, "Content Too Large")
            return False
        self._source.append(bytes(self._received[:end]))
        del self._received[:end]
        return True

    def _read_headers(self) -> bool:
        end = self._received.find(b"\r\n\r\n", self._searched)
        self._searched = max(0, len(self._received) - 3)
        if end < 0:
            if len(self._received) > _MOST_HEADERS:
                raise TooLarge(431, "Request Header Fields Too Large")
            return False
        self._source.append(bytes(self._received[: end + 4]))
        del self._received[: end + 4]
        self.request = next(RequestParser(self._cfg, self._drained(), self.peer))
        reader = self.request.body.reader
        self._body = _Chunks() if isinstance(reader, ChunkedReader) else _Length(0)
        if isinstance(reader, LengthReader):
            if reader.length > _MOST_BODY:
                raise TooLarge(413, "Content Too Large")
            self._body = _Length(reader.length)
        self.deadline = time.monotonic() + BODY_WITHIN
        if self._body.end(self._received) is None and self._expects_continue():
            self.sendall(_CONTINUE)
            self.flush()
        return True

    def _expects_continue(self) -> bool:
        return any(
            name == "EXPECT" and value.lower() == "100-continue" for name, value in self.request.headers
        )

    def _drained(self) -> Iterator[bytes]:
        while self._source:
            yield self._source.popleft()

    def answered(self, *, close: bool) -> None:
        """The answer is complete: after it has been sent the next request may come."""
        self.request = self._body = None
        self._source = deque()
        self._searched = 0
        self.closing = close
        self.deadline = time.monotonic() + (ANSWER_WITHIN if self._unsent else IDLE_WITHIN)
        if self._received:
            self.deadline = time.monotonic() + HEADERS_WITHIN

    def send(self, data: bytes) -> int:
        """Where gunicorn asks for a body, which is there already."""
        return len(data)

    def gettimeout(self) -> float:
        """As that of a socket that never blocks."""
        return 0.0

    def sendall(self, data: bytes) -> None:
        """Keep for sending."""
        self._unsent += data

    def flush(self) -> bool:
        """Send as much as the client takes now; whether that was all.

        :raises OSError: the connection is lost.
        """
        while self._unsent:
            try:
                sent = self.sock.send(memoryview(self._unsent)[:_MOST_AT_ONCE])
            except BlockingIOError:
                return False
            del self._unsent[:sent]
        return True

    def close(self) -> None:
        """End the connection. What the client has sent is taken first: else it may lose the answer."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
            self.sock.recv(_MOST_AT_ONCE)
        self.sock.close()


class _Length:
    """A body of known length."""

    def __init__(self, length: int) -> None:
        self._length = length

    def end(self, received: bytearray) -> int | None:
        """Where the body ends, if all of it is there."""
        return self._length if len(received) >= self._length else None


class _Chunks:
    """A chunked body. What it means is found out by gunicorn; here is only where it ends."""

    def __init__(self) -> None:
        self._next = 0

    def end(self, received: bytearray) -> int | None:
        """As for :class:`_Length`; what is no chunk ends where it begins, for gunicorn to refuse."""
        while True:
            if (
                self._next
                and len(received) >= self._next
                and received[self._next - 2 : self._next] != b"\r\n"
            ):
                return len(received)
            line = received.find(b"\r\n", self._next)
            if line < 0:
                return None if len(received) - self._next < _MOST_HEADERS else len(received)
            try:
                size = int(bytes(received[self._next : line]).split(b";")[0], 16)
            except ValueError:
                return len(received)
            if size == 0:
                trailers = received.find(b"\r\n\r\n", line)
                return None if trailers < 0 else trailers + 4
            if size < 0 or line + size > _MOST_BODY:
                raise TooLarge(413, "Content Too Large")
            self._next = line + 2 + size + 2
