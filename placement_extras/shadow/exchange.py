"""A request and its answers, as the other modules hand them on."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

Headers = tuple[tuple[str, str], ...]

JSON: Final = "application/json"
MAX_KEPT: Final = 16 << 20
"""Bytes of a body: longer ones are passed on and not compared."""
_ANY_FORMAT: Final = 47  # of zlib's window bits: as the header of the data says
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def is_write(method: str) -> bool:
    """Whether requests with this method may change something."""
    return method not in _SAFE


class AskedRequest(Protocol):
    """What has to be known of a request to compare its answers."""

    @property
    def method(self) -> str:
        """As it was sent."""

    @property
    def path(self) -> str:
        """With the query."""


@dataclass(frozen=True, slots=True)
class ShadowRequest:
    """A request as it came in: ``path`` with query and all escapes, below the prefix of the service."""

    method: str
    path: str
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class ShadowAnswer:
    """What a service answered: header names in lower case, JSON parsed, other bodies as text."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @classmethod
    def of(cls, status: int, headers: Headers, content: bytes) -> Self:
        """An answer as it was received."""
        named = {name.lower(): value for name, value in headers}
        if named.get("content-encoding", "identity") in ("gzip", "deflate"):
            content = _decompressed(content)
        return cls(status, named, parsed(content, named.get("content-type", "")))

    @property
    def error(self) -> dict[str, Any]:
        """The error in the body, empty if there is none."""
        if self.status < 400 or not isinstance(self.body, dict):
            return {}
        errors = self.body.get("errors")
        return dict(errors[0]) if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}


def _decompressed(content: bytes) -> bytes:
    """At most :data:`MAX_KEPT` bytes of it; what cannot be decompressed stays."""
    try:
        return zlib.decompressobj(_ANY_FORMAT).decompress(content, MAX_KEPT)
    except zlib.error:
        return content


def parsed(content: bytes, media_type: str) -> Any:
    """A body: the document if it is JSON, else its text; None if there is none."""
    if not content:
        return None
    text = content.decode("utf-8", "replace")
    if not media_type.startswith(JSON):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


@dataclass(frozen=True, slots=True)
class ShadowExchange:
    """A request, and what each service answered."""

    request: AskedRequest
    theirs: ShadowAnswer
    ours: ShadowAnswer


@dataclass(frozen=True, slots=True)
class ReceivedAnswer:
    """An answer of the stock service that was passed on, not looked at yet."""

    status: int
    headers: Headers
    content: bytes

    def answer(self) -> ShadowAnswer:
        """The same, parsed."""
        return ShadowAnswer.of(self.status, self.headers, self.content)


@dataclass(frozen=True, slots=True)
class MirroredRequest:
    """A request that was passed on.

    :param number: in the order in which requests came in.
    :param received: None where the answer was not kept; ``missed`` says why.
    :param started: when it came in, in seconds of the monotonic clock of this machine.
    :param seconds: what the stock service took.
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
        """Whether it may have changed something."""
        return is_write(self.request.method)

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        there = _size(self.request.headers) + len(self.request.path) + len(self.request.body)
        back = _size(self.received.headers) + len(self.received.content) if self.received else 0
        return there + back + _OVERHEAD


_OVERHEAD: Final = 2000


def _size(headers: Headers) -> int:
    return sum(len(name) + len(value) for name, value in headers)
