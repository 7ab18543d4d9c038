"""The content of files in which parts of the agent keep what they know: JSON with a version.

Files whose loss or damage costs guests something have their data below a checksum.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

T = TypeVar("T")

SAVE_SECONDS: Final = 300.0
"""Seconds of learning that a crash may cost, as a sync of each sample would wear out a disk. Values that were
reported, or that others act by, are saved before."""


def checked_content(data: Any) -> dict[str, Any]:
    """The data of a file with its checksum."""
    return {"sha256": _data_checksum(data), "data": data}


def checked_data(document: Any) -> Any:
    """The data of a document that has its checksum.

    :raises ValueError: the checksum does not match.
    :raises LookupError: there is no checksum, or there are no data.
    """
    data = document["data"]
    if document["sha256"] != _data_checksum(data):
        raise ValueError("the checksum does not match")
    return data


def _data_checksum(data: Any) -> str:
    # over the parsed data, so that white space does not matter
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


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
