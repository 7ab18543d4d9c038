"""The WSGI application that clients talk to: what the stock service answers, as it is."""

import itertools
import json
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Final
from urllib.parse import urlsplit

import urllib3
from urllib3.exceptions import HTTPError, ProtocolError
from urllib3.util import SKIP_HEADER

from placement_extras.shadow.exchange import MAX_KEPT, Headers, ReceivedAnswer, ShadowRequest, is_write
from placement_extras.shadow.in_flight import FlightTicket, InFlight

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

LOG = logging.getLogger(__name__)

TOO_LONG: Final = "its body or its answer is too long to be kept"
NO_ANSWER: Final = "OpenStack Placement did not answer"
CLIENT_LEFT: Final = "the client left before it had the whole answer"
_PIECE: Final = 1 << 16
# They are about one connection (RFC 9110, 7.6.1), and each side has its own.
_OF_CONNECTIONS: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)


class RequestForwarder:
    """Passes requests on to a URL, and answers back.

    :param stock: the stock service, with the prefix that it is mounted at.
    :param threads: how many requests are in flight at most.
    :param seconds: how long the stock service may be silent.
    """

    def __init__(self, stock: str, in_flight: InFlight, threads: int, seconds: float) -> None:
        self._stock: Final = stock
        self._prefix: Final = urlsplit(stock).path.rstrip("/")
        self._in_flight: Final = in_flight
        self._seconds: Final = seconds
        self._kept = self._connections(threads)

    def _connections(self, number: int) -> urllib3.HTTPConnectionPool:
        timeout = urllib3.Timeout(self._seconds)
        return urllib3.connection_from_url(self._stock, maxsize=number, timeout=timeout, retries=False)

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """WSGI."""
        body, rest = _body(environ)
        request = ShadowRequest(environ["REQUEST_METHOD"], _target(environ), _headers(environ), body)
        ticket = self._in_flight.begin(request)
        began = time.monotonic()
        try:
            response = self._ask(request, rest)
        except (HTTPError, OSError) as error:
            self._in_flight.end(ticket, None, time.monotonic() - began, NO_ANSWER)
            LOG.warning("%s does not answer %s %s: %s", self._stock, request.method, request.path, error)
            return _unanswered(self._stock, start_response)
        except BaseException:
            self._in_flight.end(ticket, None, time.monotonic() - began, NO_ANSWER)
            raise
        headers = tuple((name, value) for name, value in response.headers.items())
        passing = _PassingBody(response, headers, self._in_flight, ticket, began, keep=rest is None)
        try:
            start_response(f"{response.status} {response.reason or 'Unknown'}", list(_passed_on(headers)))
        except BaseException:
            passing.close()
            raise
        return passing

    def _ask(self, request: ShadowRequest, rest: Iterator[bytes] | None) -> urllib3.BaseHTTPResponse:
        # A server may close a connection just when it is used again. A read is sent again then; a write may
        # have been carried out, so that each has a connection of its own.
        if rest is None and not is_write(request.method):
            with suppress(ProtocolError):
                return self._send(self._kept, request, rest)
        return self._send(self._connections(1), request, rest)

    def _send(
        self, pool: urllib3.HTTPConnectionPool, request: ShadowRequest, rest: Iterator[bytes] | None
    ) -> urllib3.BaseHTTPResponse:
        headers = urllib3.HTTPHeaderDict(request.headers)
        if pool is not self._kept:
            headers["Connection"] = "close"
        for name in ("Accept-Encoding", "User-Agent"):
            headers.setdefault(name, SKIP_HEADER)
        return pool.urlopen(
            request.method,
            self._prefix + request.path,
            body=(request.body or None) if rest is None else itertools.chain([request.body], rest),
            headers=headers,
            redirect=False,
            assert_same_host=False,
            preload_content=False,
            decode_content=False,
        )


class _PassingBody:
    """The body of an answer on its way, of which a copy is kept."""

    def __init__(
        self,
        response: urllib3.BaseHTTPResponse,
        headers: tuple[tuple[str, str], ...],
        in_flight: InFlight,
        ticket: FlightTicket,
        began: float,
        *,
        keep: bool,
    ) -> None:
        self._response = response
        self._headers = headers
        self._in_flight = in_flight
        self._ticket: FlightTicket | None = ticket
        self._began = began
        self._missed = "" if keep else TOO_LONG
        self._pieces: list[bytes] = []
        self._length = 0

    def __iter__(self) -> Iterator[bytes]:
        while piece := self._read():
            yield piece
        self._end()

    def _read(self) -> bytes:
        """The next piece, empty at the end."""
        try:
            piece: bytes = self._response.read1(_PIECE, decode_content=False)
        except (HTTPError, OSError):
            self._missed = NO_ANSWER
            raise
        self._length += len(piece)
        if self._length > MAX_KEPT:
            self._missed = TOO_LONG
            self._pieces.clear()
        if not self._missed:
            self._pieces.append(piece)
        return piece

    def close(self) -> None:
        """Called by the server, at the end or when the client has left."""
        try:
            if self._ticket is not None and not self._missed:
                self._leave()
        finally:
            self._end()
            if self._missed:
                self._response.close()
            self._response.release_conn()

    def _leave(self) -> None:
        """The client has left: what it wrote is written all the same, and the rest of the answer is short."""
        assert self._ticket is not None
        if not is_write(self._ticket.request.method):
            self._missed = CLIENT_LEFT
            return
        with suppress(HTTPError, OSError):
            while not self._missed and self._read():
                pass

    def _end(self) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is None:
            return
        received = None
        if not self._missed:
            received = ReceivedAnswer(self._response.status, self._headers, b"".join(self._pieces))
        self._in_flight.end(ticket, received, time.monotonic() - self._began, self._missed)


def _body(environ: "WSGIEnvironment") -> tuple[bytes, Iterator[bytes] | None]:
    """The body, and what follows where it is too long to be kept."""
    stream: IO[bytes] = environ["wsgi.input"]
    if not environ.get("CONTENT_LENGTH") and "HTTP_TRANSFER_ENCODING" not in environ:
        return b"", None
    body = stream.read(MAX_KEPT)
    if len(body) < MAX_KEPT:
        return body, None
    return body, iter(lambda: stream.read(_PIECE), b"")


def _target(environ: "WSGIEnvironment") -> str:
    """The path and the query, just as the client wrote them: gunicorn keeps that."""
    raw = str(environ["RAW_URI"])
    if not raw.startswith("/"):  # the absolute form, for proxies
        parts = urlsplit(raw)
        raw = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    return raw


def _headers(environ: "WSGIEnvironment") -> Headers:
    named = {name[5:]: value for name, value in environ.items() if name.startswith("HTTP_")}
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            named[name] = environ[name]
    if "TRANSFER_ENCODING" in named:  # by which the body was read: it has the length that it has
        named.pop("CONTENT_LENGTH", None)
    return _passed_on((name.replace("_", "-").title(), str(value)) for name, value in named.items())


def _passed_on(headers: Iterable[tuple[str, str]]) -> Headers:
    """Those that are not about one connection, by their names or by what the sender says."""
    listed = tuple(headers)
    own = {
        each.strip().lower()
        for name, value in listed
        if name.lower() == "connection"
        for each in value.split(",")
    }
    return tuple((name, value) for name, value in listed if name.lower() not in _OF_CONNECTIONS | own)


def _unanswered(stock: str, start_response: "StartResponse") -> Iterable[bytes]:
    detail = f"OpenStack Placement at {stock} does not answer placement-shadow."
    error = {"status": 502, "title": "Bad Gateway", "detail": detail}
    start_response("502 Bad Gateway", [("Content-Type", "application/json")])
    return [json.dumps({"errors": [error]}).encode()]
