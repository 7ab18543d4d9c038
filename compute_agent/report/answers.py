"""The errors of requests to Placement, with a class for each reaction of callers, and checks of answers.

Each answer is checked when it arrives, because code that finds a wrong type later has already used half of
the answer. A shape is one of the following:

- ``str``, ``int`` or ``float`` (which also accepts integers). A boolean matches none of these types, and
  numbers have an upper limit.
- ``(str, float)``: a value of one of these types
- ``[shape]``: a list with items of that shape
- ``EachValue(shape)``: an object with any names and with values of that shape
- ``{"name": shape}``: an object with at least these names. ``MaybeNull(shape)`` can be null or absent.
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

    :param method: the HTTP method of the request.
    :param url: the path of the request.
    :param detail: the text of the answer, or the reason why the text is missing.
    :param status: the HTTP status; None if there is no answer.
    :param code: the error code of the answer, such as ``placement.concurrent_update``.
    """

    def __init__(
        self, method: str, url: str, detail: str, *, status: int | None = None, code: str | None = None
    ) -> None:
        self.method = method
        self.url = url
        # The text is made safe, because it comes from the server, and goes to logs and terminals.
        self.detail = detail = on_one_line(detail)
        self.status = status
        self.code = code
        answer = "" if status is None else f"HTTP {status}: "
        super().__init__(f"{method} {url}: {answer}{detail}")


class UnavailableError(PlacementError):
    """No server can answer now: no connection, a timeout, 502, 503 or 504. The caller tries again later."""


_AS_WHOM: Final = (
    "check username and password, or token, in [placement]: the user needs the role service or admin"
)


class CredentialsError(PlacementError):
    """Keystone or Placement refuses the credentials (401, 403), which only an operator can correct."""

    def __init__(self, method: str, url: str, detail: str, **answer: Any) -> None:
        super().__init__(method, url, detail, **answer)
        self.args = (f"{self.args[0].removesuffix('.')}; {_AS_WHOM}",)


class OptionsError(CredentialsError):
    """The options of ``[placement]`` cannot be used, which only an operator can correct."""

    def __init__(self, detail: str) -> None:
        super().__init__("", "", detail)
        self.args = (f"[placement] {detail}",)


class NotFoundError(PlacementError):
    """The provider, class or trait does not exist (404)."""


class ConflictError(PlacementError):
    """The present state in Placement forbids the change (409)."""


class ConcurrentUpdateError(ConflictError):
    """Another program changed the provider (409), so that the caller has to read it again."""


REQUEST_ID: Final = "X-Openstack-Request-Id"


class RequestSpans(Protocol):
    """The interface that traces the agent's work and its requests as spans.

    See :mod:`compute_agent.report.tracing`.
    """

    def trace_work(self, name: str, /) -> AbstractContextManager[None]:
        """Put all requests within this context into one trace."""

    def trace_request(
        self, method: str, url: str, headers: dict[str, str], /
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Trace one request. The context yields a function that takes the HTTP status of the answer."""


class NoSpans:
    """The implementation of :class:`RequestSpans` that traces nothing."""

    def trace_work(self, name: str, /) -> AbstractContextManager[None]:
        """Return a context without effect."""
        return nullcontext()

    def trace_request(
        self, method: str, url: str, headers: dict[str, str], /
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Return a context that yields a function without effect."""
        return nullcontext(lambda status: None)


_KINDS: Final = {str: "text", int: "an integer", float: "a number"}

_MAX_INTEGER: Final = 2**63
"""The upper limit of numbers in answers. Placement's integers have 32 bits, so a larger number is an
error.
"""


class BadAnswerError(ValueError):
    """An answer has an unexpected shape.

    The message names the place in the answer, and the type that was found.
    """


@dataclass(frozen=True, slots=True)
class EachValue:
    """The shape of an object with any names and with values that all have ``shape``."""

    shape: Any


@dataclass(frozen=True, slots=True)
class MaybeNull:
    """The shape of a value that can be null or absent, and otherwise has ``shape``."""

    shape: Any


def check_shape(document: Any, shape: Any, place: str = "the answer") -> None:
    """Check that a document has a shape.

    :param shape: the required form of the answer, as the module's docstring defines it.
    :param place: the name of the document in errors.
    :raises BadAnswerError: a value is missing or has another type.
    """
    match shape:
        # MaybeNull comes first, because it is the only shape that accepts null.
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
    # JSON has only one type of number, so a float can arrive as an integer.
    accepted = (*kinds, int) if float in kinds else kinds
    # To Python a bool is an int, but JSON's true is not an amount.
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
