"""Errors of Placement by the possible reaction of the caller, tracing, and shapes of answers.

Answers are checked when they arrive: a reader that meets a wrong type later has used half of the answer
already. A shape is one of the following:

- ``str``, ``int`` or ``float`` (which takes integers, too). A truth value is none of these, and numbers have
  a limit.
- ``(str, float)``: one of several of these
- ``[shape]``: a list with items of that shape
- ``EachValue(shape)``: an object with any names and with values of that shape
- ``{"name": shape}``: an object with at least these names. ``MaybeNull(shape)`` may be null or absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Protocol

from compute_agent.model.messages import on_one_line


class PlacementError(Exception):
    """A request to Placement failed.

    :param method: the method of the request, to ``url``.
    :param detail: the text of the answer.
    :param status: the HTTP status; None without an answer.
    :param code: the error code of the answer, such as ``placement.concurrent_update``.
    """

    def __init__(
        self, method: str, url: str, detail: str, *, status: int | None = None, code: str | None = None
    ) -> None:
        self.method = method
        self.url = url
        # The text is the peer's, and goes to logs and terminals.
        self.detail = detail = on_one_line(detail)
        self.status = status
        self.code = code
        answer = "" if status is None else f"HTTP {status}: "
        super().__init__(f"{method} {url}: {answer}{detail}")


class UnavailableError(PlacementError):
    """No server can answer at present: no connection, a timeout, 502, 503 or 504. Try again later."""


_AS_WHOM: Final = (
    "check username and password, or token, in [placement]: the user needs the role service or admin"
)


class CredentialsError(PlacementError):
    """The credentials of ``[placement]`` do not work (401, 403). Only an operator can change this."""

    def __init__(self, method: str, url: str, detail: str, **answer: Any) -> None:
        super().__init__(method, url, detail, **answer)
        self.args = (f"{self.args[0]}; {_AS_WHOM}",)


class OptionsError(CredentialsError):
    """The options of ``[placement]`` do not lead to Placement. Only an operator can change this."""

    def __init__(self, detail: str) -> None:
        super().__init__("", "", detail)
        self.args = (f"[placement] {detail}",)


class NotFoundError(PlacementError):
    """The provider, class or trait does not exist (404)."""


class ConflictError(PlacementError):
    """The state of the server forbids the change (409)."""


class ConcurrentUpdateError(ConflictError):
    """Another program has changed the provider since the last read (409): read the provider and try again."""


REQUEST_ID: Final = "X-Openstack-Request-Id"


class RequestSpans(Protocol):
    """Receives spans of the agent's work and of its requests: see :mod:`compute_agent.report.tracing`."""

    def trace_work(self, name: str, /) -> AbstractContextManager[None]:
        """Make the requests in this context parts of one trace."""

    def trace_request(
        self, method: str, url: str, headers: dict[str, str], /
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Trace one request. The caller passes the status of the answer to the function that this yields."""


class NoSpans:
    """Traces nothing."""

    def trace_work(self, name: str, /) -> AbstractContextManager[None]:
        """Trace no work."""
        return nullcontext()

    def trace_request(
        self, method: str, url: str, headers: dict[str, str], /
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Trace no request."""
        return nullcontext(lambda status: None)


_KINDS: Final = {str: "text", int: "an integer", float: "a number"}

_MAX_INTEGER: Final = 2**63
"""Upper limit of numbers in answers. Placement's own integers have 32 bits, so a larger one is an error."""


class BadAnswerError(ValueError):
    """An answer has another shape. The message names the place and the kind of value there."""


@dataclass(frozen=True, slots=True)
class EachValue:
    """An object with values that all have a shape."""

    shape: Any


@dataclass(frozen=True, slots=True)
class MaybeNull:
    """A value that may be null or absent."""

    shape: Any


def check_shape(document: Any, shape: Any, place: str = "the answer") -> None:
    """Check that a document has a shape.

    :param place: the name of the document in errors.

    :raises BadAnswerError: a value is missing or has another type.
    """
    match shape:
        # Before the others: null is right for this shape alone.
        case MaybeNull():
            if document is not None:
                check_shape(document, shape.shape, place)
        case EachValue():
            for name, value in _checked_object(document, place).items():
                check_shape(value, shape.shape, f"{place}.{name}")
        case dict():
            found = _checked_object(document, place)
            for name, inner in shape.items():
                if name not in found and not isinstance(inner, MaybeNull):
                    raise BadAnswerError(f"{place} has no {name!r}")
                check_shape(found.get(name), inner, f"{place}.{name}")
        case list():
            if not isinstance(document, list):
                raise BadAnswerError(f"{place} is {_kind_of(document)}, not a list")
            for number, value in enumerate(document):
                check_shape(value, shape[0], f"{place}[{number}]")
        case _:
            _check_value(document, shape if isinstance(shape, tuple) else (shape,), place)


def _check_value(document: Any, kinds: tuple[type, ...], place: str) -> None:
    # JSON has one kind of number, so a float may arrive as an integer.
    accepted = (*kinds, int) if float in kinds else kinds
    # bool is an int to Python, and JSON's true is not an amount.
    if not isinstance(document, accepted) or isinstance(document, bool):
        wanted = " or ".join(_KINDS[kind] for kind in kinds)
        raise BadAnswerError(f"{place} is {_kind_of(document)}, not {wanted}")
    # Python's JSON parser accepts NaN, Infinity and integers of any length.
    if isinstance(document, int | float) and not (math.isfinite(document) and abs(document) < _MAX_INTEGER):
        raise BadAnswerError(f"{place} is out of range")


def _checked_object(document: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(document, dict):
        raise BadAnswerError(f"{place} is {_kind_of(document)}, not an object")
    return document


def _kind_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a truth value"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
    return "an object"
