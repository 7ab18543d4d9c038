"""The prefix of the API ``/ext/v1``, which OpenStack Placement does not have.

This module is separate from the blueprints, because errors and authentication need the prefix, and the
blueprints import their modules.
"""

from typing import Final

EXT: Final = "/ext/v1"
"""Prefix of the paths of this API. OpenStack Placement answers 404 for them."""


def is_ours(path: str) -> bool:
    """Return whether a path has the prefix ``/ext/v1``."""
    return path == EXT or path.startswith(EXT + "/")
