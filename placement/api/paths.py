"""The prefix of our own API.

This module is separate from the blueprints, because errors and authentication need the prefix, and the
blueprints import these modules.
"""

from typing import Final

EXT: Final = "/ext/v1"
"""Prefix of all paths of our own API. OpenStack Placement answers 404 to these paths."""


def is_ours(path: str) -> bool:
    """Return whether a path belongs to our own API."""
    return path == EXT or path.startswith(EXT + "/")
