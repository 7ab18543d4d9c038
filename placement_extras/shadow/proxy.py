"""The process that answers clients. A server of gunicorn forwards their requests to OpenStack Placement.

The process records which requests are in flight at the same time, because the order in which OpenStack
Placement executes such requests is unknown.

Only :mod:`placement_extras.shadow.command` uses this module, because it starts this process.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import urllib3
from urllib3._collections import HTTPHeaderDict  # urllib3 1.26 does not export it
from urllib3.exceptions import HTTPError, ProtocolError
from urllib3.util import SKIP_HEADER

from placement.server.worker import BufferingWorker, BundledServer
from placement_extras.shadow.copy_queue import MirrorOutbox
from placement_extras.shadow.exchange import (
    MAX_KEPT,
    Headers,
    MirroredRequest,
    ReceivedAnswer,
    ShadowRequest,
    is_write,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


@dataclass(slots=True)
class FlightTicket:
    """A request in flight.

    :param number: the position of the request in the order of arrival, from 0 on.
    :param started: the time at which the request arrived, in seconds of the monotonic clock.
    :param beside: the numbers of the writes that have been in flight at the same time.
    """

    number: int
    request: ShadowRequest
    started: float
    beside: set[int] = field(default_factory=set)


class InFlight:
    """The requests that are in flight.

    This object gives each arriving request a number, and makes a copy of each request when it is answered.

    :param put: a function that receives the copies in the order of the answers. This function must not block,
        because it is called while a lock is held.
    """

    def __init__(self, put: Callable[[MirroredRequest], None]) -> None:
        self._put: Final = put
        self._lock = threading.Lock()
        self._next = 0
        self._open: dict[int, FlightTicket] = {}

    def begin_request(self, request: ShadowRequest) -> FlightTicket:
        """Record a new request. The caller must give the returned ticket to :meth:`end_request` once."""
        with self._lock:
            ticket = FlightTicket(self._next, request, time.monotonic())
            self._next += 1
            # only writes are recorded as overlapping, because a read does not change answers to other
            # requests
            writes = is_write(request.method)
            for other in self._open.values():
                if writes:
                    other.beside.add(ticket.number)
                # a request that overlaps a write can see the state before the write, or the state after it
                if is_write(other.request.method):
                    ticket.beside.add(other.number)
            self._open[ticket.number] = ticket
        return ticket

    def settled_until(self) -> float:
        """Return a time of the monotonic clock. All writes that arrived before this time are answered."""
        with self._lock:
            # the lock is held when the time is read, so that each write that begins later has a later time
            now = time.monotonic()
            return min(
                (each.started for each in self._open.values() if is_write(each.request.method)), default=now
            )

    def end_request(self, ticket: FlightTicket, received: ReceivedAnswer | None, missed: str = "") -> None:
        """Record the answer to a request. If the request has no answer, ``missed`` is the reason."""
        with self._lock:
            del self._open[ticket.number]
            seconds, beside = time.monotonic() - ticket.started, frozenset(ticket.beside)
            # the lock is held when the copy is put into the queue, so that copies have the order of the
            # answers
            self._put(
                MirroredRequest(
                    ticket.number, ticket.request, received, ticket.started, seconds, beside, missed
                )
            )


LOG = logging.getLogger(__name__)

TOO_LONG: Final = "its body or its answer is too long to be kept"
NO_ANSWER: Final = "OpenStack Placement did not answer"
CLIENT_LEFT: Final = "the client left before it had the whole answer"
_PIECE_BYTES: Final = 1 << 16  # maximum size of a piece in which a body is forwarded
# headers about one connection (RFC 9110, 7.6.1). They are not forwarded, because the connection to the client
# and the connection to the stock service have different headers of this kind.
_CONNECTION_HEADERS: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)


class RequestForwarder:
    """WSGI application that forwards requests to OpenStack Placement and returns the answers.

    :param stock: URL of OpenStack Placement, with the prefix of its API.
    :param in_flight: the object that records requests and makes the copies.
    :param threads: maximum number of requests in flight.
    :param seconds: seconds without an answer after which OpenStack Placement counts as unavailable.
    """

    def __init__(self, stock: str, in_flight: InFlight, threads: int, seconds: float) -> None:
        self._stock: Final = stock
        self._prefix: Final = urlsplit(stock).path.rstrip("/")
        self._in_flight: Final = in_flight
        self._seconds: Final = seconds
        # the pool has as many connections as threads, so that reads use connections again
        self._kept_pool = self._connection_pool(threads)

    def _connection_pool(self, number: int) -> urllib3.HTTPConnectionPool:
        timeout = urllib3.Timeout(self._seconds)
        return urllib3.connection_from_url(self._stock, maxsize=number, timeout=timeout, retries=False)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Forward one request, and return the answer piece by piece."""
        body, rest = _read_body(environ)
        request = ShadowRequest(
            environ["REQUEST_METHOD"], _request_target(environ), _request_headers(environ), body
        )
        ticket = self._in_flight.begin_request(request)
        try:
            response = self._ask_stock(request, rest)
        except (HTTPError, OSError) as error:
            self._in_flight.end_request(ticket, None, NO_ANSWER)
            LOG.warning(
                "OpenStack Placement at %s does not answer %s %s: %s",
                self._stock,
                request.method,
                request.path,
                error,
            )
            return _bad_gateway(self._stock, start_response)
        # each ticket has to end, because settled_until() never returns a later time than that of an open
        # ticket
        except BaseException:
            self._in_flight.end_request(ticket, None, NO_ANSWER)
            raise
        headers = tuple(response.headers.items())
        passing = _PassingBody(response, headers, self._in_flight, ticket, keep=rest is None)
        try:
            # WSGI requires a text after the number of the status, and HTTP does not
            start_response(f"{response.status} {response.reason or 'Unknown'}", list(_passed_on(headers)))
        except BaseException:
            passing.close()
            raise
        return passing

    def _ask_stock(self, request: ShadowRequest, rest: Iterator[bytes] | None) -> urllib3.BaseHTTPResponse:
        # A server can close an idle connection just when it is used again. A read is then sent again. A write
        # must not be sent again, because it was perhaps executed, so each write gets a new connection.
        if rest is None and not is_write(request.method):
            with suppress(ProtocolError):
                return self._send(self._kept_pool, request, rest)
        return self._send(self._connection_pool(1), request, rest)

    def _send(
        self, pool: urllib3.HTTPConnectionPool, request: ShadowRequest, rest: Iterator[bytes] | None
    ) -> urllib3.BaseHTTPResponse:
        headers = HTTPHeaderDict(request.headers)
        if pool is not self._kept_pool:
            # this header tells the stock service that no other request follows on this connection
            headers["Connection"] = "close"
        # without SKIP_HEADER, urllib3 would add these headers if the client has not sent them
        for name in ("Accept-Encoding", "User-Agent"):
            headers.setdefault(name, SKIP_HEADER)
        # with these options, the client gets the answer in pieces, and compressed as it was received
        return pool.urlopen(
            request.method,
            self._prefix + request.path,
            body=(request.body or None) if rest is None else itertools.chain([request.body], rest),
            headers=headers,
            redirect=False,
            assert_same_host=False,
            preload_content=False,
            decode_content=False,
            enforce_content_length=True,  # not the default of urllib3 1.26
        )


class _PassingBody:
    """The body of a forwarded answer, as an iterator. It keeps a copy of at most :data:`.MAX_KEPT` bytes."""

    def __init__(
        self,
        response: urllib3.BaseHTTPResponse,
        headers: Headers,
        in_flight: InFlight,
        ticket: FlightTicket,
        *,
        keep: bool,
    ) -> None:
        self._response = response
        # urllib3 1.26 has no read1(). Its read() waits until the piece is full, or until the body ends.
        self._read_some = getattr(response, "read1", response.read)
        self._headers = headers
        self._in_flight = in_flight
        self._ticket: FlightTicket | None = ticket
        self._missed = "" if keep else TOO_LONG
        self._pieces: list[bytes] = []
        self._length = 0

    def __iter__(self) -> Iterator[bytes]:
        while piece := self._read():
            yield piece
        self._hand_over()

    def _read(self) -> bytes:
        """Return the next piece of the body; an empty piece at the end of the body."""
        try:
            piece: bytes = self._read_some(_PIECE_BYTES, decode_content=False)
        except (HTTPError, OSError):
            self._missed = NO_ANSWER
            raise
        self._length += len(piece)
        if self._length > MAX_KEPT:
            self._missed = TOO_LONG
            # the kept pieces are dropped, and all further pieces are only forwarded
            self._pieces.clear()
        if not self._missed:
            self._pieces.append(piece)
        return piece

    def close(self) -> None:
        """End the answer. The server calls this after the last piece, or after the client has left."""
        try:
            if self._ticket is not None and not self._missed:
                self._read_rest()
        finally:
            self._hand_over()
            if self._missed:  # perhaps a part of the answer is unread, so the connection is not used again
                self._response.close()
            self._response.release_conn()

    def _read_rest(self) -> None:
        """Read the rest of the answer after the client of a write has left, because the write is replayed."""
        # the type checker does not know that close() calls this method only with a ticket
        assert self._ticket is not None
        if not is_write(self._ticket.request.method):
            self._missed = CLIENT_LEFT
            return
        # after an error, the loop ends, and _read() has recorded the reason
        with suppress(HTTPError, OSError):
            while not self._missed and self._read():
                pass

    def _hand_over(self) -> None:
        # this method is called at the end of the iteration and by close(), but a ticket must end only once
        ticket, self._ticket = self._ticket, None
        if ticket is None:
            return
        received = None
        if not self._missed:
            received = ReceivedAnswer(self._response.status, self._headers, b"".join(self._pieces))
        self._in_flight.end_request(ticket, received, self._missed)


def _read_body(environ: WSGIEnvironment) -> tuple[bytes, Iterator[bytes] | None]:
    """Return the body of a request, and None; of a long body, the beginning and an iterator of the rest."""
    stream: IO[bytes] = environ["wsgi.input"]
    if not environ.get("CONTENT_LENGTH") and "HTTP_TRANSFER_ENCODING" not in environ:
        return b"", None
    body = stream.read(MAX_KEPT)
    if len(body) < MAX_KEPT:
        return body, None
    return body, iter(lambda: stream.read(_PIECE_BYTES), b"")


def _request_target(environ: WSGIEnvironment) -> str:
    """Return the path with the query as the client wrote them, from gunicorn's ``RAW_URI``."""
    # PATH_INFO has no escapes any more, but the stock service must get the escapes that the client wrote
    raw = str(environ["RAW_URI"])
    if not raw.startswith("/"):  # this is an absolute URL, as some clients send it to a proxy
        parts = urlsplit(raw)
        raw = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    return raw


def _request_headers(environ: WSGIEnvironment) -> Headers:
    named = {name[5:]: value for name, value in environ.items() if name.startswith("HTTP_")}
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            named[name] = environ[name]
    # for a body in chunks, the header with its length is removed. If a request has both headers, two servers
    # can disagree about its end, and an attacker can hide another request in the body.
    if "TRANSFER_ENCODING" in named:
        named.pop("CONTENT_LENGTH", None)
    return _passed_on((name.replace("_", "-").title(), str(value)) for name, value in named.items())


def _passed_on(headers: Iterable[tuple[str, str]]) -> Headers:
    """Return the headers to forward; leave out headers about one connection."""
    listed = tuple(headers)
    own = {
        each.strip().lower()
        for name, value in listed
        if name.lower() == "connection"
        for each in value.split(",")
    }
    return tuple((name, value) for name, value in listed if name.lower() not in _CONNECTION_HEADERS | own)


def _bad_gateway(stock: str, start_response: StartResponse) -> Iterable[bytes]:
    detail = f"OpenStack Placement at {stock} does not answer placement-shadow."
    error = {"status": 502, "title": "Bad Gateway", "detail": detail}
    start_response("502 Bad Gateway", [("Content-Type", "application/json")])
    return [json.dumps({"errors": [error]}).encode()]


SECONDS_TO_STOP: Final = 30
"""Maximum seconds after SIGTERM until the requests in flight are answered."""
_SECONDS_TO_SEND: Final = 5.0
"""Maximum seconds after the last answer until the waiting copies are sent to the comparing process."""


@dataclass(frozen=True)
class ProxySettings:
    """Settings of the answering process.

    :param bind: ADDRESS:PORT at which clients connect.
    :param stock: the URL of OpenStack Placement.
    :param threads: maximum number of requests in flight.
    :param stock_seconds: seconds without an answer after which OpenStack Placement counts as unavailable.
    """

    bind: str
    stock: str
    threads: int
    stock_seconds: float


def run_proxy(
    settings: ProxySettings, address: str, key: bytes, control: Connection, set_up_log: Callable[[], None]
) -> None:
    """Answer clients until SIGTERM, or until the other end of ``control`` is closed.

    :param address: path of the UNIX socket of the comparing process, which accepts only senders with ``key``.
    """
    set_up_log()
    # Ctrl-C in a terminal sends SIGINT to all processes, but the parent process decides when this process
    # ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # if the parent process is killed, it sends no signal, but its end of the pipe is closed
    threading.Thread(target=_end_with, args=(control,), daemon=True).start()
    _ProxyServer(settings, address, key).run()


def _end_with(control: Connection) -> None:
    with suppress(EOFError, OSError):
        control.recv_bytes()
    # gunicorn first answers the requests in flight
    os.kill(os.getpid(), signal.SIGTERM)


class _ProxyServer(BundledServer):
    """Runs the proxy in a single worker process, because the process has to know all requests in flight."""

    def __init__(self, settings: ProxySettings, address: str, key: bytes) -> None:
        self._settings = settings
        self._address = address
        self._key = key
        # the outbox is created after the fork, because a forked child does not have the threads of its parent
        self._outbox: MirrorOutbox | None = None
        # each fork adds 1 to this number, so the first worker has 0 predecessors
        self._predecessors = -1
        super().__init__()

    def settings(self) -> Mapping[str, Any]:
        """Return the settings of gunicorn for this program."""
        return {
            "bind": self._settings.bind,
            "workers": 1,
            "threads": self._settings.threads,
            "worker_class": BufferingWorker,
            "timeout": 0,  # no limit is needed here, because stock_seconds limits each request
            "graceful_timeout": SECONDS_TO_STOP,
            "proc_name": "placement-shadow",
            "pre_fork": self._pre_fork,
            "worker_exit": self._worker_exit,
        }

    def load(self) -> WSGIApplication:
        """Create the application; gunicorn calls this in the worker process."""
        self._outbox = MirrorOutbox(self._address, self._key, predecessors=self._predecessors)
        in_flight = InFlight(self._outbox.put)
        self._outbox.start(in_flight.settled_until)
        return RequestForwarder(
            self._settings.stock, in_flight, self._settings.threads, self._settings.stock_seconds
        )

    def _pre_fork(self, server: object, worker: object) -> None:
        self._predecessors += 1

    def _worker_exit(self, server: object, worker: object) -> None:
        if self._outbox is not None:
            self._outbox.stop(_SECONDS_TO_SEND)
