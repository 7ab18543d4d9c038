"""Prefixes of the API ``/ext/v1``, which OpenStack Placement does not have, and of secret addresses.

This module is separate, because the modules for errors and authentication need the prefix. The blueprints of
this API import these two modules.
"""

from typing import Final

EXT: Final = "/ext/v1"
"""Prefix of the paths of this API. OpenStack Placement answers 404 to requests for such paths."""

SECRETS: Final = "/console/feeds/"
"""Prefix of paths that are secret: a request for such a path needs no token."""


def shown_path(path: str) -> str:
    """Return a path for logs and traces, without the secret that it has after :data:`SECRETS`."""
    before, found, _ = path.partition(SECRETS)
    return f"{before}{found}***" if found else path


def is_ours(path: str) -> bool:
    """Return whether a path has the prefix ``/ext/v1``."""
    return path == EXT or path.startswith(EXT + "/")
