"""The prefix of the API ``/ext/v1``, which OpenStack Placement does not have.

This module is separate, because the modules for errors and authentication need the prefix. The blueprints of
this API import these two modules.
"""

from typing import Final

EXT: Final = "/ext/v1"
"""Prefix of the paths of this API. OpenStack Placement answers 404 to requests for such paths."""


def is_ours(path: str) -> bool:
    """Return whether a path has the prefix ``/ext/v1``."""
    return path == EXT or path.startswith(EXT + "/")
