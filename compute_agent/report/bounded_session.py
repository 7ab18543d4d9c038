"""Limits the size of HTTP answers, and the time until their last byte.

The server is not trusted. Without limits, a few megabytes of gzip could decompress to gigabytes, and one byte
every few seconds would satisfy any timeout between two bytes. The agent runs as root on each compute host, so
one hostile server could stop all agents. Therefore each request has a deadline in every state of its
connection: connecting, TLS handshake, headers, body. Each answer has a size limit after decompression.
Deadline and limit apply to Keystone and to Placement.
"""

from __future__ import annotations

import socket
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import requests
from keystoneauth1.session import TCPKeepAliveAdapter
from oslo_config import cfg
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection

from compute_agent.bounded_http import ConnectionWatch

MAX_ANSWER_BYTES: Final = 16 * 2**20
"""Maximum number of bytes of an answer after decompression. The tree of a host with 1,000 guests has about 1
MB.
"""

MAX_CONTAINERS: Final = 2**19
"""Maximum number of objects and lists in an answer. An ordinary answer has at least 32 bytes for each object
or list.

As text, an empty list has two bytes. When it is parsed, it takes a hundred times as many: 16 MiB of empty
lists take 1.2 GB. With this limit parsing takes at most 300 MB.
"""

REQUEST_TIMEOUTS: Final = 3
"""The time limit of a whole request, as a multiple of the longest time between two bytes."""

ROUND_SECONDS: Final = 300.0
"""The time limit in seconds for all requests of one report. The first report of a large host sends some
hundreds of requests.
"""

# An answer is read in pieces of this number of bytes, and its size is checked after each piece.
_PIECE_BYTES: Final = 2**16

_LOCAL: Final = threading.local()
"""Data of each thread: the ``deadline`` of the current report, and the ``watch`` of the current request."""


class AnswerTooLargeError(requests.RequestException):
    """The answer has more than ``MAX_ANSWER_BYTES`` or ``MAX_CONTAINERS``, or an unusable encoding."""


class AnswerTooSlowError(requests.RequestException):
    """The last byte of the answer did not arrive before the deadline."""


@contextmanager
def round_deadline(seconds: float = ROUND_SECONDS) -> Iterator[None]:
    """Limit the time of all requests that this thread sends within the context, to ``seconds`` in total."""
    _LOCAL.deadline = time.monotonic() + seconds
    try:
        yield
    finally:
        _LOCAL.deadline = None


def bounded_session(options: cfg.ConfigOpts.GroupAttr) -> requests.Session:
    """A session for keystoneauth1 that limits the size and the time of answers.

    :param options: the options of ``[placement]``; ``timeout`` is the longest time between two bytes, in
        seconds.
    """
    session = requests.Session()
    # keystoneauth1 sets these options only on sessions that it makes itself. Its older releases do not have
    # these options.
    tls = {name: options[name] for name in ("tls_ciphers", "tls_min_version") if name in options}
    # Without a timeout, only the limit of the whole report applies.
    adapter = BoundedAdapter(REQUEST_TIMEOUTS * options.timeout if options.timeout else ROUND_SECONDS, **tls)
    # The list is a copy, because mount() changes the dictionary.
    for scheme in list(session.adapters):
        session.mount(scheme, adapter)
    return session


class BoundedAdapter(TCPKeepAliveAdapter):
    """An HTTP adapter that reads answers completely, up to ``MAX_ANSWER_BYTES``, within ``seconds``."""

    def __init__(self, seconds: float, **tls: Any) -> None:
        self._seconds = seconds
        super().__init__(**tls)

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        """Make connections that a :class:`ConnectionWatch` can end."""
        super().init_poolmanager(*arguments, **options)
        # urllib3 takes the class of its connections from the class of the pool.
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
        """Make connections to proxies that a :class:`ConnectionWatch` can end."""
        manager = super().proxy_manager_for(*arguments, **options)
        manager.pool_classes_by_scheme = _POOLS
        return manager

    def send(self, request: requests.PreparedRequest, *arguments: Any, **options: Any) -> requests.Response:
        """Send a request and read its whole answer.

        :raises AnswerTooLargeError: the answer exceeds a limit, or has an encoding that is not accepted.
        :raises AnswerTooSlowError: the deadline of the request or of the report has passed.
        """
        options["stream"] = True  # stream=True, because requests itself would read the answer without a limit
        seconds = self._seconds
        if (deadline := getattr(_LOCAL, "deadline", None)) is not None:
            seconds = min(seconds, deadline - time.monotonic())
        too_slow = AnswerTooSlowError(f"the answer was not complete after {max(0.0, seconds):.0f} s")
        if seconds <= 0:
            raise too_slow
        with ConnectionWatch(seconds) as watch:
            _LOCAL.watch = watch
            try:
                response = super().send(request, *arguments, **options)
                try:
                    content = _read_bounded(response)
                except BaseException:
                    # The rest of the answer is still in the connection, which therefore cannot serve another
                    # request.
                    response.close()
                    raise
            except AnswerTooLargeError:
                raise
            # When the watch shuts a connection down, any layer can raise its own error: ssl, http.client,
            # urllib3.
            except Exception as error:
                if watch.has_expired:
                    raise too_slow from error
                if isinstance(error, requests.RequestException):
                    raise
                raise requests.ConnectionError(error, request=request) from error
            finally:
                _LOCAL.watch = None
            if watch.has_expired:  # a truncated answer without Content-Length looks complete
                response.close()
                raise too_slow
        # These attributes are what requests itself sets after reading, so that `content`, `text` and `json()`
        # read nothing more.
        response._content = content
        # The type stubs of requests do not have this attribute.
        response._content_consumed = True  # type: ignore[attr-defined]
        # Without an encoding requests would guess one, which takes minutes for a large answer.
        response.encoding = response.encoding or "utf-8"
        return response


def _read_bounded(response: requests.Response) -> bytes:
    """The decompressed body of a response.

    :raises AnswerTooLargeError: the body exceeds a limit, or has an encoding that is not accepted.
    """
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        # Several encodings in a row multiply their effect: each one can expand the body a thousandfold.
        raise AnswerTooLargeError(f"the answer has the encoding {encoding[:50]!r}, which is not accepted")
    # With 32 added, zlib detects by itself whether the header is that of gzip or of zlib.
    inflater = zlib.decompressobj(32 + zlib.MAX_WBITS) if encoding not in ("", "identity") else None
    content = bytearray()
    # decode_content=False, because urllib3 would decompress without a limit.
    while piece := response.raw.read(_PIECE_BYTES, decode_content=False):
        while piece:
            if inflater is None:
                content += piece
                piece = b""
            else:
                try:
                    # The limit is at least 1 here; 0 would mean "no limit" to zlib.
                    content += inflater.decompress(piece, MAX_ANSWER_BYTES + 1 - len(content))
                except zlib.error as error:
                    raise AnswerTooLargeError(f"the answer cannot be decompressed: {error}") from error
                piece = inflater.unconsumed_tail
            if len(content) > MAX_ANSWER_BYTES:
                raise AnswerTooLargeError(f"the answer has more than {MAX_ANSWER_BYTES // 2**20} MiB")
    # Brackets are counted before the answer is parsed. Brackets inside of texts count, too, because no real
    # answer has many.
    if content.count(b"{") + content.count(b"[") > MAX_CONTAINERS:
        raise AnswerTooLargeError(f"the answer has more than {MAX_CONTAINERS} objects and lists")
    return bytes(content)


def _watch_socket(connected: Any) -> None:
    # The watch is found through thread-local data, because requests and urllib3 cannot pass a value down to
    # the connection.
    watch = getattr(_LOCAL, "watch", None)
    if watch is not None and connected is not None:
        watch.attach_socket(connected)


# The watch is in a subclass of the connection, where all connections pass: new ones in _new_conn(), idle ones
# of the pool in request().
class _WatchedConnection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        made = super()._new_conn()
        _watch_socket(made)
        return made

    def request(self, *arguments: Any, **options: Any) -> None:
        # This call is for idle connections of the pool. _new_conn() has attached sockets of new connections.
        _watch_socket(self.sock)
        super().request(*arguments, **options)


# In the method resolution order, the methods of _WatchedConnection call those of HTTPSConnection.
class _WatchedTlsConnection(_WatchedConnection, HTTPSConnection):
    pass


class _WatchedPool(HTTPConnectionPool):
    ConnectionCls = _WatchedConnection


class _WatchedTlsPool(HTTPSConnectionPool):
    ConnectionCls = _WatchedTlsConnection


_POOLS: Final = {"http": _WatchedPool, "https": _WatchedTlsPool}
