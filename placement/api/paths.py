"""The prefix of the API ``/ext/v1``, which OpenStack Placement does not have.

This module is separate from the blueprints, because errors and authentication need the prefix, and the
blueprints import their modules.
"""

from typing import Final

EXT: Final = "/ext/v1"
"""Prefix of all paths that OpenStack Placement does not have. OpenStack Placement answers 404 for these
paths.
"""


def is_ours(path: str) -> bool:
    """Return whether a path has the prefix ``/ext/v1``."""
    return path == EXT or path.startswith(EXT + "/")
