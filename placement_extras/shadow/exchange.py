"""Requests and answers, in the form that all modules of ``placement-shadow`` use."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

Headers = tuple[tuple[str, str], ...]

JSON: Final = "application/json"
MAX_KEPT: Final = 16 << 20
"""Maximum number of bytes of a body that is compared. Longer bodies are only forwarded."""
_ANY_FORMAT: Final = 47  # with these window bits, zlib recognises the formats gzip and zlib by their headers
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def is_write(method: str) -> bool:
    """Return whether a request with this method can change something."""
    return method not in _SAFE_METHODS


class AskedRequest(Protocol):
    """The method and the path of a request. The comparison of answers needs no other part of the request."""

    @property
    def method(self) -> str:
        """HTTP method, such as ``GET``."""

    @property
    def path(self) -> str:
        """Path of the URL, with the query."""


@dataclass(frozen=True, slots=True)
class ShadowRequest:
    """A request as the client has sent it.

    ``path`` includes the query, and has the escapes of the client. ``path`` does not have the prefix of the
    service's URL.
    """

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
        """Make an answer from the received status, headers and content. The content can be compressed."""
        named = {name.lower(): value for name, value in headers}
        if named.get("content-encoding", "identity") in ("gzip", "deflate"):
            content = _decompress_content(content)
        return cls(status, named, parse_body(content, named.get("content-type", "")))

    @property
    def first_error(self) -> dict[str, Any]:
        """The first error in the body of an answer with an error status; empty if there is no error."""
        if self.status < 400 or not isinstance(self.body, dict):
            return {}
        errors = self.body.get("errors")
        return dict(errors[0]) if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}


def _decompress_content(content: bytes) -> bytes:
    """Decompress at most :data:`MAX_KEPT` bytes; content that is not compressed is returned unchanged."""
    try:
        # the size is limited, because a small compressed answer can have any decompressed size
        return zlib.decompressobj(_ANY_FORMAT).decompress(content, MAX_KEPT)
    except zlib.error:
        return content


def parse_body(content: bytes, media_type: str) -> Any:
    """Return the document of a JSON body, the text of any other body, and None for an empty body."""
    if not content:
        return None
    # equal invalid bytes become equal replacement characters, so that answers with such bytes can be compared
    text = content.decode("utf-8", "replace")
    if not media_type.startswith(JSON):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # RecursionError: a hostile document is nested too deeply
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
    """An answer of OpenStack Placement as it was forwarded to the client, not parsed yet."""

    status: int
    headers: Headers
    content: bytes

    def parse_answer(self) -> ShadowAnswer:
        """Parse the answer. The comparing process does this, so that clients do not wait for it."""
        return ShadowAnswer.from_content(self.status, self.headers, self.content)


@dataclass(frozen=True, slots=True)
class MirroredRequest:
    """A request that was forwarded to OpenStack Placement, with the answer; other modules call this a *copy*.

    :param number: the position of the request in the order of arrival, from 0 on.
    :param received: the answer. If the answer was not kept, this is None, and ``missed`` has the reason.
    :param started: the time at which the request arrived, in seconds of this machine's monotonic clock.
    :param seconds: the seconds until the answer of OpenStack Placement was complete.
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
        """Return whether the method of the request can change the database."""
        return is_write(self.request.method)

    @property
    def size(self) -> int:
        """Approximate memory of the copy in bytes."""
        there = _headers_size(self.request.headers) + len(self.request.path) + len(self.request.body)
        back = _headers_size(self.received.headers) + len(self.received.content) if self.received else 0
        return there + back + _OVERHEAD_BYTES


_OVERHEAD_BYTES: Final = 2000  # approximate size of the Python objects of a copy, without its texts


def _headers_size(headers: Headers) -> int:
    return sum(len(name) + len(value) for name, value in headers)


def forget_oldest(known: dict[Any, Any], remembered: int) -> None:
    """Remove the items that were added first, until at most ``remembered`` items are left."""
    while len(known) > remembered:
        del known[next(iter(known))]
