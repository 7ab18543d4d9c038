"""Errors between the agent and Placement, by the possible reaction of the caller.

The interface for tracing requests, and the id of each request.

Shapes of Placement's answers, checked where they arrive.

A wrong type that is noticed only where it is used leaves the reader with half an answer. A shape is

- ``str``, ``int`` or ``float`` (which takes integers, too), none of which is a truth value, none out of
  range;
- ``(str, float)``: one of several such;
- ``[shape]``: a list of that shape;
- ``Each(shape)``: an object with any names, whose values have that shape;
- ``{"name": shape}``: an object with at least these names; ``Maybe(shape)`` may be null or absent.
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

    ``method`` and ``url`` name the request, ``status`` is the HTTP status (``None`` where no answer came),
    ``code`` the error code of the answer (``placement.concurrent_update``, ...) and ``detail`` its text.
    """

    def __init__(
        self, method: str, url: str, detail: str, *, status: int | None = None, code: str | None = None
    ) -> None:
        self.method = method
        self.url = url
        # The peer's text, which goes to logs and terminals.
        self.detail = detail = on_one_line(detail)
        self.status = status
        self.code = code
        answer = "" if status is None else f"HTTP {status}: "
        super().__init__(f"{method} {url}: {answer}{detail}")


class UnavailableError(PlacementError):
    """No server answered, or none that can serve at present: try again later.

    No connection, time-out, 502, 503, 504.
    """


_AS_WHOM: Final = (
    "check as whom the agent asks: in [placement] username and password, or token;"
    " it needs the role service or admin"
)


class CredentialsError(PlacementError):
    """The credentials of ``[placement]`` do not work (401, 403): the operator has to act."""

    def __init__(self, method: str, url: str, detail: str, **answer: Any) -> None:
        super().__init__(method, url, detail, **answer)
        self.args = (f"{self.args[0]}; {_AS_WHOM}",)


class OptionsError(CredentialsError):
    """The options of ``[placement]`` name no way to Placement: the operator has to act."""

    def __init__(self, detail: str) -> None:
        super().__init__("", "", detail)
        self.args = (f"[placement] {detail}",)


class NotFoundError(PlacementError):
    """The provider, class or trait is not there (404)."""


class ConflictError(PlacementError):
    """The state of the server forbids the change (409)."""


class ConcurrentUpdateError(ConflictError):
    """Another program changed the provider since it was read (409): read it and try again."""


REQUEST_ID: Final = "X-Openstack-Request-Id"


class Spans(Protocol):
    """Receives spans of the agent's work and of its requests: see :mod:`compute_agent.report.tracing`."""

    def work(self, name: str, /) -> AbstractContextManager[None]:
        """Requests in this context belong together."""

    def request(
        self, method: str, url: str, headers: dict[str, str], /
    ) -> AbstractContextManager[Callable[[int], None]]:
        """One request; what it gives takes the status of the answer."""


class NoSpans:
    """Traces nothing."""

    def work(self, name: str, /) -> AbstractContextManager[None]:
        """Nothing."""
        return nullcontext()

    def request(
        self, method: str, url: str, headers: dict[str, str], /
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Nothing."""
        return nullcontext(lambda status: None)


_KINDS: Final = {str: "text", int: "an integer", float: "a number"}

_MAX_INTEGER: Final = 2**63
"""Placement's own integers have 32 bits."""


class BadAnswerError(ValueError):
    """An answer of another shape. The message names the place and what is there."""


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

    :raises BadAnswerError: it has not.
    """
    match shape:
        case MaybeNull():
            if document is not None:
                check_shape(document, shape.shape, place)
        case EachValue():
            for name, value in _object(document, place).items():
                check_shape(value, shape.shape, f"{place}.{name}")
        case dict():
            found = _object(document, place)
            for name, inner in shape.items():
                if name not in found and not isinstance(inner, MaybeNull):
                    raise BadAnswerError(f"{place} has no {name!r}")
                check_shape(found.get(name), inner, f"{place}.{name}")
        case list():
            if not isinstance(document, list):
                raise BadAnswerError(f"{place} is {_kind(document)}, not a list")
            for number, value in enumerate(document):
                check_shape(value, shape[0], f"{place}[{number}]")
        case _:
            _check_value(document, shape if isinstance(shape, tuple) else (shape,), place)


def _check_value(document: Any, kinds: tuple[type, ...], place: str) -> None:
    accepted = (*kinds, int) if float in kinds else kinds
    if not isinstance(document, accepted) or isinstance(document, bool):
        wanted = " or ".join(_KINDS[kind] for kind in kinds)
        raise BadAnswerError(f"{place} is {_kind(document)}, not {wanted}")
    if isinstance(document, int | float) and not (math.isfinite(document) and abs(document) < _MAX_INTEGER):
        raise BadAnswerError(f"{place} is out of range")


def _object(document: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(document, dict):
        raise BadAnswerError(f"{place} is {_kind(document)}, not an object")
    return document


def _kind(value: Any) -> str:
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
