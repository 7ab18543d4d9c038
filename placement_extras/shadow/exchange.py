"""Requests and answers, in the form that all modules of ``placement-shadow`` use."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

Headers = tuple[tuple[str, str], ...]

JSON: Final = "application/json"
MAX_KEPT: Final = 16 << 20
"""Maximum bytes of a body. Longer bodies are forwarded and not compared."""
_ANY_FORMAT: Final = 47  # window bits of zlib: detects gzip and zlib by their headers
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def is_write(method: str) -> bool:
    """Return whether requests with this method may change something."""
    return method not in _SAFE_METHODS


class AskedRequest(Protocol):
    """The method and the path of a request, which a comparison of its answers needs."""

    @property
    def method(self) -> str:
        """HTTP method, such as ``GET``."""

    @property
    def path(self) -> str:
        """Path of the URL, with the query."""


@dataclass(frozen=True, slots=True)
class ShadowRequest:
    """A request as sent; ``path`` has the query, is still escaped, and lacks the prefix of the URL."""

    method: str
    path: str
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class ShadowAnswer:
    """An answer of one service. Names of headers are in lower case; ``body`` is parsed JSON or text."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @classmethod
    def from_content(cls, status: int, headers: Headers, content: bytes) -> Self:
        """Make an answer from its status, headers and content as received, which may be compressed."""
        named = {name.lower(): value for name, value in headers}
        if named.get("content-encoding", "identity") in ("gzip", "deflate"):
            content = _decompress_content(content)
        return cls(status, named, parse_body(content, named.get("content-type", "")))

    @property
    def first_error(self) -> dict[str, Any]:
        """The first error in the body of a refusal; empty if there is no error."""
        if self.status < 400 or not isinstance(self.body, dict):
            return {}
        errors = self.body.get("errors")
        return dict(errors[0]) if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}


def _decompress_content(content: bytes) -> bytes:
    """Decompress at most :data:`MAX_KEPT` bytes; content that is not compressed is returned unchanged."""
    try:
        # the size is limited, because a small answer may decompress to any size
        return zlib.decompressobj(_ANY_FORMAT).decompress(content, MAX_KEPT)
    except zlib.error:
        return content


def parse_body(content: bytes, media_type: str) -> Any:
    """Return the document of a JSON body, the text of any other body, and None for an empty body."""
    if not content:
        return None
    # invalid bytes become the same replacement characters in both answers, so the answers can be compared
    text = content.decode("utf-8", "replace")
    if not media_type.startswith(JSON):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # a hostile document may be nested too deeply for the parser
        return text


@dataclass(frozen=True, slots=True)
class ShadowExchange:
    """A request, with the answers of both services to it.

    :param theirs: the answer of OpenStack Placement.
    :param ours: the answer of our service.
    """

    request: AskedRequest
    theirs: ShadowAnswer
    ours: ShadowAnswer


@dataclass(frozen=True, slots=True)
class ReceivedAnswer:
    """An unparsed answer of OpenStack Placement that was forwarded to the client."""

    status: int
    headers: Headers
    content: bytes

    def parse_answer(self) -> ShadowAnswer:
        """Parse the answer. The comparing process does this, so that clients do not wait for it."""
        return ShadowAnswer.from_content(self.status, self.headers, self.content)


@dataclass(frozen=True, slots=True)
class MirroredRequest:
    """A request that was forwarded to OpenStack Placement, with the answer; other modules call this a *copy*.

    :param number: position in the order in which requests came in, from 0.
    :param received: the answer; None if it was not kept, and ``missed`` has the reason.
    :param started: time of arrival in seconds of the monotonic clock of this machine.
    :param seconds: time until the answer of OpenStack Placement was complete.
    :param beside: the numbers of the writes that were in flight at the same time.
    """

    number: int
    request: ShadowRequest
    received: ReceivedAnswer | None
    started: float
    seconds: float
    beside: frozenset[int]
    missed: str = ""

    @property
    def is_write(self) -> bool:
        """Return whether the request may have changed the database."""
        return is_write(self.request.method)

    @property
    def size(self) -> int:
        """Approximate memory of the copy in bytes."""
        there = _headers_size(self.request.headers) + len(self.request.path) + len(self.request.body)
        back = _headers_size(self.received.headers) + len(self.received.content) if self.received else 0
        return there + back + _OVERHEAD_BYTES


_OVERHEAD_BYTES: Final = 2000  # bytes of the Python objects around the texts, roughly


def _headers_size(headers: Headers) -> int:
    return sum(len(name) + len(value) for name, value in headers)


def forget_oldest(known: dict[Any, Any], remembered: int) -> None:
    """Remove the items that were added first, until at most ``remembered`` items are left."""
    while len(known) > remembered:
        del known[next(iter(known))]
