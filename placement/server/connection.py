"""Has the connection of a client, with buffers.

A connection buffers each request until the whole request has arrived, and each answer until it is sent.
"""

import select
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from gunicorn.http.body import ChunkedReader, LengthReader
from gunicorn.http.parser import RequestParser

from placement.server.plain_http import PlainRequest, make_base, read_plain

HEADERS_TIMEOUT: Final = 10.0
"""The maximum number of seconds from the start of a connection or a request to the end of the headers."""
BODY_TIMEOUT: Final = 60.0
"""The maximum number of seconds from the end of a request's headers to the end of its body."""
IDLE_TIMEOUT: Final = 75.0
"""The maximum number of seconds for which a connection waits for its next request."""
ANSWER_TIMEOUT: Final = 60.0
"""The maximum number of seconds in which a client reads an answer, or each MiB of a longer answer."""

MAX_HEADERS: Final = 64 * 1024
"""The maximum size in bytes of all headers of a request, and of all trailers."""
MAX_BODY: Final = 64 * 1024 * 1024
"""The maximum size in bytes of a request's body."""
_MAX_CHUNKS: Final = 100_000
"""The maximum number of chunks in a body."""
# the pieces are small, because for each chunk in a piece gunicorn copies the rest of the piece
_PIECE: Final = 8 * 1024
"""The size in bytes of the pieces in which gunicorn reads a body."""
_RENEWED_AFTER: Final = 1024 * 1024
"""A client gets a new deadline after each time that it has read this number of bytes of an answer."""
_READ_AT_ONCE: Final = 256 * 1024
"""The maximum number of bytes that one system call reads."""
# an answer of 1 MB is sent a third faster than in pieces of 256 KiB
_SENT_AT_ONCE: Final = 64 * 1024
"""The maximum number of bytes that one system call sends."""
# poll() does not know EPOLLONESHOT
_POLLED: Final = select.POLLIN | select.POLLOUT
_HTTP_1_1: Final = (1, 1)
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class TooLarge(Exception):
    """A request is too large; the arguments are the HTTP status, the reason phrase and the limit."""


class ClientConnection:
    """A connection, which only the thread that has taken it uses.

    gunicorn uses this object instead of the socket. The object keeps the bytes that gunicorn sends until
    :meth:`flush`.
    """

    def __init__(self, cfg: Any, sock: socket.socket, peer: Any, server: Any) -> None:
        self.sock, self.peer, self.server = sock, peer, server
        #: the key of the connection in the worker's ClientPoll
        self.fd = sock.fileno()
        sock.setblocking(False)
        self._cfg = cfg
        #: the part of the WSGI environment that all plain requests of this connection have in common
        self.base_environ = make_base(cfg, self, peer, server)
        #: the received bytes of incomplete headers, of an incomplete body, and of later requests
        self._received = bytearray()
        #: the complete parts of the current request, in pieces that are not read yet
        self._source: deque[bytes] = deque()
        #: the number of bytes of the current request's body; 0 until the whole body has arrived
        self._handed_on = 0
        #: the position at which the search for the end of the headers continues
        self._searched = 0
        self._body: _SizedBody | _ChunkedBody | None = None
        self.request: Any = None
        #: the bytes of answers that are not sent yet
        self._unsent = bytearray()
        #: the number of bytes of the answer that were sent since the deadline was set
        self._taken = 0
        self.closing = False
        self.deadline = time.monotonic() + HEADERS_TIMEOUT
        #: the time at which the connection was made or its last request ended
        self.last_used = time.monotonic()
        self._has_asked = False
        #: the number of this connection's bytes in the worker's current total
        self.counted = 0
        #: whether a thread has taken the connection
        self.is_taken = False
        #: the events of epoll for which the connection waits while it is not taken
        self.awaited = 0

    def fileno(self) -> int:
        """Return the file descriptor, like the method of a socket."""
        return self.fd

    @property
    def client(self) -> str:
        """The address of the client for the log; for a UNIX socket, a text with the path of the socket."""
        if isinstance(self.peer, tuple):
            return "{}:{}".format(*self.peer)
        return f"a client of {self.server}"

    @property
    def held_bytes(self) -> int:
        """The number of bytes in the buffers, including the body of the current request."""
        return len(self._received) + self._handed_on + len(self._unsent)

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes of answers that are not sent yet."""
        return len(self._unsent)

    @property
    def is_idle(self) -> bool:
        """Return whether no byte of the next request has arrived, and all bytes of answers are sent."""
        return self.request is None and not self.held_bytes

    @property
    def is_at_rest(self) -> bool:
        """Return whether the last request was answered, and no byte of the next request has arrived."""
        return self._has_asked and self.is_idle

    def receive(self) -> bool:
        """Read bytes; return False if the client has closed the connection.

        :raises OSError: the connection is lost.
        """
        try:
            data = self.sock.recv(_READ_AT_ONCE)
        except BlockingIOError:
            # no bytes have arrived since the last call
            return True
        if data and self.is_idle:
            self.deadline = time.monotonic() + HEADERS_TIMEOUT
        elif self.request is None and self._received:
            # the first bytes of the request were in the buffer before, together with another request
            self.deadline = min(self.deadline, time.monotonic() + HEADERS_TIMEOUT)
        self._received += data
        return bool(data)

    @property
    def is_ready(self) -> bool:
        """Return whether the events have occurred for which the connection waits."""
        return self.has_event(self.awaited & _POLLED)

    def has_event(self, events: int) -> bool:
        """Return whether one of these events of poll(2) has occurred, or the connection is lost."""
        poll = select.poll()
        poll.register(self.sock, events)
        return bool(poll.poll(0))

    def has_arrivals(self) -> bool:
        """Read bytes; return whether a part of the next request has arrived."""
        with suppress(OSError):
            return self.receive() and not self.is_idle
        return False

    def is_complete(self) -> bool:
        """Return whether a whole request has arrived.

        :raises TooLarge: the request is too long.
        :raises Exception: the bytes are not HTTP; gunicorn raises exceptions of many classes.
        """
        if self.request is None and not self._read_headers():
            return False
        # the type checker does not know that _read_headers() has made the body
        assert self._body is not None
        end = self._body.end_position(self._received)
        if end is None:
            return False
        for at in range(0, end, _PIECE):
            self._source.append(bytes(self._received[at : min(at + _PIECE, end)]))
        del self._received[:end]
        self._handed_on = end
        return True

    def _read_headers(self) -> bool:
        end = self._received.find(b"\r\n\r\n", self._searched)
        # the search continues before the last bytes, because the end of the headers can arrive in two parts
        self._searched = max(0, len(self._received) - 3)
        if end < 0:
            if len(self._received) > MAX_HEADERS:
                raise _headers_too_large()
            return False
        head = bytes(self._received[: end + 4])
        del self._received[: end + 4]
        plain = self.request = read_plain(head)
        if plain is not None:
            self._body = _SizedBody(plain.length)
        else:
            self._source.append(head)
            self.request = next(RequestParser(self._cfg, self._drain_source(), self.peer))
            reader = self.request.body.reader
            length = reader.length if isinstance(reader, LengthReader) else 0
            self._body = _ChunkedBody() if isinstance(reader, ChunkedReader) else _SizedBody(length)
        self.deadline = time.monotonic() + BODY_TIMEOUT
        # a client that expects "100 Continue" waits for this interim answer before it sends the body
        if self._body.end_position(self._received) is None and self._expects_continue():
            self.sendall(_CONTINUE)
            self.flush()
        return True

    def _expects_continue(self) -> bool:
        return self.request.version >= _HTTP_1_1 and any(
            name == "EXPECT" and value.lower() == "100-continue" for name, value in self.request.headers
        )

    def read_body(self) -> bytes:
        """Return the whole body of the current request.

        :raises Exception: the chunks of the body are invalid; gunicorn raises exceptions of many classes.
        """
        if isinstance(self.request, PlainRequest):
            return b"".join(self._drain_source())
        # the variable has a type for the type checker, because gunicorn has no types
        content: bytes = self.request.body.read()
        return content

    def _drain_source(self) -> Iterator[bytes]:
        while self._source:
            yield self._source.popleft()

    def end_request(self, *, close: bool) -> None:
        """End the current request when its answer is complete, so that the next request can follow."""
        self.request = self._body = None
        self._has_asked = True
        self.last_used = time.monotonic()
        self._source = deque()
        self._handed_on = self._searched = self._taken = 0
        self.closing = close
        if self._unsent:
            self.deadline = time.monotonic() + ANSWER_TIMEOUT
        else:
            self._expect_request()

    def _expect_request(self) -> None:
        # if the next request is in the buffer, its answer may have to wait until the client has read this one
        self.deadline = time.monotonic() + (ANSWER_TIMEOUT if self._received else IDLE_TIMEOUT)

    def send(self, data: bytes) -> int:
        """Ignore gunicorn's interim answer ("100 Continue"), because the whole body has arrived already."""
        return len(data)

    def gettimeout(self) -> float:
        """Return 0, like the method of a socket that does not block."""
        return 0.0

    def sendall(self, data: bytes) -> None:
        """Buffer bytes of the answer until :meth:`flush`."""
        self._unsent += data

    def take_back(self) -> None:
        """Drop the buffered answer, of which no byte is sent yet, so that another answer can replace it."""
        self._unsent.clear()

    def flush(self) -> bool:
        """Send as many bytes as the socket takes; return whether all bytes are sent.

        A slow client gets more time while it continues to read.

        :raises OSError: the connection is lost.
        """
        if not self._unsent:
            return True
        while self._unsent:
            try:
                sent = self.sock.send(memoryview(self._unsent)[:_SENT_AT_ONCE])
            except BlockingIOError:
                # the socket's buffer is full, and stays full until the client reads
                return False
            del self._unsent[:sent]
            self._taken += sent
            if self._taken >= _RENEWED_AFTER and self.request is None:
                self._taken = 0
                self.deadline = time.monotonic() + ANSWER_TIMEOUT
        if self.request is None:
            self._expect_request()
        return True

    def close(self) -> None:
        """Read the bytes that have arrived, and then close the connection."""
        # if bytes stayed unread, the kernel would reset the connection, and the client would perhaps lose the
        # answer; if an error occurs, the client has closed the connection already
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
            self.sock.recv(_READ_AT_ONCE)
        self.sock.close()


def _headers_too_large() -> TooLarge:
    most = f"Headers, and trailers, may have at most {MAX_HEADERS // 1024} KiB."
    return TooLarge(431, "Request Header Fields Too Large", most)


def _body_too_large() -> TooLarge:
    most = f"A body may have at most {MAX_BODY // 1024**2} MiB, and {_MAX_CHUNKS} chunks."
    return TooLarge(413, "Content Too Large", most)


class _SizedBody:
    """A body with a known length.

    :raises TooLarge: the body is too long.
    """

    def __init__(self, length: int) -> None:
        if length > MAX_BODY:
            raise _body_too_large()
        self._length = length

    def end_position(self, received: bytearray) -> int | None:
        """Return the position of the end of the body; None if a part of the body has not arrived."""
        return self._length if len(received) >= self._length else None


class _ChunkedBody:
    """A chunked body; this class only finds the end of the body, and gunicorn decodes the body."""

    def __init__(self) -> None:
        self._next = 0
        self._count = 0
        self._searched = 0

    def end_position(self, received: bytearray) -> int | None:
        """Return the position of the end of the body; None if a part of the body has not arrived.

        If a chunk is invalid, the position is the end of the received bytes, and gunicorn refuses the body.
        """
        while True:
            # if no line end follows the chunk, the body is invalid
            if (
                self._next
                and len(received) >= self._next
                and received[self._next - 2 : self._next] != b"\r\n"
            ):
                return len(received)
            line = received.find(b"\r\n", self._next)
            if line < 0:
                return None if len(received) - self._next < MAX_HEADERS else len(received)
            try:
                # the extensions of a chunk follow a semicolon (RFC 9112, 7.1.1), and have no meaning here
                size = int(bytes(received[self._next : line]).split(b";")[0], 16)
            except ValueError:
                return len(received)
            if size == 0:
                return self._end_of_trailers(received, line)
            self._count += 1
            if size < 0 or line + size > MAX_BODY or self._count > _MAX_CHUNKS:
                raise _body_too_large()
            self._next = line + 2 + size + 2

    def _end_of_trailers(self, received: bytearray, begin: int) -> int | None:
        end = received.find(b"\r\n\r\n", max(begin, self._searched))
        if (len(received) if end < 0 else end) - begin > MAX_HEADERS:
            raise _headers_too_large()
        if end < 0:
            self._searched = len(received) - 3
            return None
        return end + 4
