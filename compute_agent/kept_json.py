"""The content of files in which parts of the agent keep what they know: JSON with a version."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def dump(version: int, content: Mapping[str, Any]) -> bytes:
    """The content of a file."""
    return json.dumps({"version": version, **content}).encode()


def parse(version: int, content: bytes, read: Callable[[Any], T]) -> T:
    """What ``read`` makes of the document of a file.

    :raises ValueError: it is something else.
    """
    try:
        document = json.loads(content)
        if document["version"] != version:
            raise ValueError(f"version {document['version']!r} is not {version}")
        return read(document)
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"unexpected content: {type(error).__name__} {error}") from error


def number(value: Any, largest: float) -> float:
    """A number that is kept.

    :raises ValueError: it is none from 0 to ``largest``.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= largest:
        raise ValueError(f"{value!r} is no number from 0 to {largest:g}")
    return float(value)


def text(value: Any) -> str:
    """A text that is kept.

    :raises ValueError: it is none.
    """
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value
