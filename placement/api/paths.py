"""The prefix of our own API.

This module is separate from the blueprints because errors and authentication need it, and blueprints import
those.
"""

from typing import Final

EXT: Final = "/ext/v1"
"""Prefix of all paths of our own API. OpenStack Placement answers 404 there, so that clients notice."""


def is_ours(path: str) -> bool:
    """Return whether a path belongs to our own API."""
    return path == EXT or path.startswith(EXT + "/")
