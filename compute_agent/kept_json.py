"""The content of the agent's state files: JSON with a version.

Files have their data below a checksum, if damage to them would cost guests something.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

T = TypeVar("T")

SAVE_SECONDS: Final = 300.0
"""Seconds of learning that a crash may cost: a sync of each sample would wear out a disk. A value that was
reported, or that another part of the agent acts on, is saved at once."""


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
    # The checksum is over the parsed data, so that white space does not matter.
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def dump(version: int, content: Mapping[str, Any]) -> bytes:
    """The content of a file with this version of its format."""
    return json.dumps({"version": version, **content}).encode()


def parse(version: int, content: bytes, read: Callable[[Any], T]) -> T:
    """The result of ``read`` for the document of a file.

    :param version: the version of the format that the caller reads.

    :raises ValueError: the content is not JSON, has another version, or ``read`` misses a part.
    """
    try:
        document = json.loads(content)
        if document["version"] != version:
            raise ValueError(f"version {document['version']!r} is not {version}")
        return read(document)
    # The document may be any JSON: a list in place of an object, a deep nesting, a missing key.
    # Callers put a damaged file aside by one kind of error.
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"unexpected content: {type(error).__name__} {error}") from error


def read_number(value: Any, largest: float) -> float:
    """A number from a state file.

    :raises ValueError: the value is not a number from 0 to ``largest``.
    """
    # bool is an int to Python; NaN and infinity, which json.loads() takes, fail the comparison.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= largest:
        raise ValueError(f"{value!r} is not a number from 0 to {largest:g}")
    return float(value)


def text(value: Any) -> str:
    """A text from a state file.

    :raises ValueError: the value is not a text.
    """
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value
