"""Handles HTTP in the form that nearly all clients and handlers use, without gunicorn's general code.

For a small request, gunicorn's code would take a fifth of the time. This code reads the request, makes the
WSGI environment, and checks the headers of the answer. gunicorn's code still handles all other requests, and
all other headers of answers. The results of both kinds of code are equal.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from gunicorn import util
from gunicorn.http import wsgi

_FIELD: Final = "[A-Za-z0-9-]+: [!-~](?:[ -~]*[!-~])?\r\n"
"""The pattern of a header in the usual form. The name has no underscore, because such a name would be
ambiguous in the WSGI environment, and the value is printable ASCII.
"""
_SPECIAL: Final = "(?i:EXPECT|TRANSFER-ENCODING|X-FORWARDED-)"
"""The pattern of the beginning of names of headers that gunicorn evaluates while it reads headers."""
# the pattern excludes paths that begin with two slashes, and fragments, because they have special rules
_HEAD: Final = re.compile(
    '(DELETE|GET|HEAD|OPTIONS|PATCH|POST|PUT) (/(?!/)[!"$-~]*) HTTP/1\\.1\r\n'
    f"((?:(?!{_SPECIAL}){_FIELD})+)\r\n".encode()
)
"""The pattern of the request line with all headers."""
_FIELDS: Final = re.compile(f"(?:{_FIELD})+")
_MAX_HEAD: Final = 8190
"""The maximum number of bytes of the request line and all headers in this form, below gunicorn's limits."""
_MAX_FIELDS: Final = 50
"""The maximum number of headers in this form, below gunicorn's limit."""
_MAX_DIGITS: Final = 18
"""The maximum number of digits of a length in this form."""
_USUAL_NAMES: Final = frozenset(
    (
        *("cache-control", "content-length", "content-type", "etag", "last-modified", "location"),
        *("openstack-api-version", "placement-ext-incomplete", "vary", "x-openstack-request-id"),
    )
)
"""The names of headers of answers that gunicorn passes on unchanged."""


class PlainRequest:
    """A request in the usual form, with the attributes of gunicorn's class of requests.

    :param uri: the target of the request: a path, often with a query.
    :param headers: the headers, with names in upper case; each name occurs once.
    """

    version = (1, 1)
    scheme = "http"
    body = None
    proxy_protocol_info = None
    _expected_100_continue = False

    def __init__(
        self, method: str, uri: str, headers: Sequence[tuple[str, str]], length: int, *, is_last: bool
    ) -> None:
        self.method = method
        self.uri = uri
        self.path, _, self.query = uri.partition("?")
        self.headers = headers
        #: the number of bytes of the body
        self.length = length
        self._is_last = is_last

    def should_close(self) -> bool:
        """Return whether the client asks the server to close the connection after the answer."""
        # gunicorn calls this method several times for each answer
        return self._is_last


def read_plain(head: bytes) -> PlainRequest | None:
    """Return the request with this request line and these headers; None if they have another form."""
    match = _HEAD.fullmatch(head) if len(head) <= _MAX_HEAD else None
    if match is None:
        return None
    method, uri, lines = [each.decode() for each in match.groups()]
    fields = [line.partition(": ") for line in lines[:-2].split("\r\n")]
    headers = [(name.upper(), value) for name, _, value in fields]
    named = dict(headers)
    # if a header is repeated, gunicorn handles the request
    if len(named) < len(headers) or len(headers) > _MAX_FIELDS:
        return None
    length = named.get("CONTENT-LENGTH", "0")
    if not length.isdigit() or len(length) > _MAX_DIGITS:
        return None
    is_last = named.get("CONNECTION", "").lower() == "close"
    return PlainRequest(method, uri, headers, int(length), is_last=is_last)


def make_base(cfg: Any, connection: Any, peer: Any, server: Any) -> Mapping[str, Any] | None:
    """Return the part of the WSGI environment that all requests of a connection have in common.

    The result is None if gunicorn has to derive a part from each request. This is so for UNIX sockets, and if
    the environment variable ``SCRIPT_NAME`` is set.
    """
    if not (isinstance(peer, tuple) and isinstance(server, tuple)) or os.environ.get("SCRIPT_NAME"):
        return None
    return {
        **wsgi.base_environ(cfg),
        "gunicorn.socket": connection,
        "SERVER_PROTOCOL": "HTTP/1.1",
        "SERVER_NAME": server[0],
        "SERVER_PORT": str(server[1]),
        "REMOTE_ADDR": peer[0],
        "REMOTE_PORT": str(peer[1]),
        "SCRIPT_NAME": "",
        "wsgi.url_scheme": PlainRequest.scheme,
    }


def make_environ(request: PlainRequest, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the WSGI environment of a request, without the body."""
    environ = {
        **base,
        "REQUEST_METHOD": request.method,
        "RAW_URI": request.uri,
        "PATH_INFO": unquote_to_bytes(request.path).decode("latin-1"),
        "QUERY_STRING": request.query,
    }
    for name, value in request.headers:
        environ[_variable_of(name)] = value
    return environ


# usual clients send few different names; the cache is limited, because a client can send any name
@lru_cache(maxsize=256)
def _variable_of(name: str) -> str:
    """Return the key of a header in the WSGI environment."""
    variable = name.replace("-", "_")
    return variable if name in ("CONTENT-LENGTH", "CONTENT-TYPE") else f"HTTP_{variable}"


class PlainResponse(wsgi.Response):  # type: ignore[misc]  # gunicorn has no types
    """The answer to a plain request; it checks all usual headers together."""

    def process_headers(self, headers: Sequence[tuple[str, str]]) -> None:
        """Check the headers of the answer, and keep them. gunicorn calls this method."""
        named = {name.lower(): value for name, value in headers}
        text = "".join(chain.from_iterable([(name, ": ", value, "\r\n") for name, value in headers]))
        length = named.get("content-length", "0")
        is_usual = len(named) == len(headers) and named.keys() <= _USUAL_NAMES
        # if the number of lines is equal to the number of headers, no value has a line end
        if is_usual and text.count("\n") == len(headers) and _FIELDS.fullmatch(text) and length.isdigit():
            self.headers += headers
            if "content-length" in named:
                self.response_length = int(length)
        else:
            super().process_headers(headers)

    def default_headers(self) -> list[str]:
        """Return the status line and the headers of the server. gunicorn calls this method."""
        if self.upgrade or self.chunked:
            # the variable has a type for the type checker, because gunicorn has no types
            lines: list[str] = super().default_headers()
            return lines
        connection = "close" if self.should_close() else "keep-alive"
        return [
            f"HTTP/1.1 {self.status}\r\nServer: {self.version}\r\nDate: {_date_text(int(time.time()))}\r\n"
            f"Connection: {connection}\r\n"
        ]


# the function has a cache, because all answers within a second have the same date
@lru_cache(maxsize=2)
def _date_text(seconds: int) -> str:
    text: str = util.http_date(seconds)
    return text
