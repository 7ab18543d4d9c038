"""The prefix of the API of our own; apart, as errors and authentication need it, which blueprints import."""

from typing import Final

EXT: Final = "/ext/v1"
"""Before all paths of the API of our own; OpenStack Placement answers 404 to them: so clients find out."""


def is_ours(path: str) -> bool:
    """Whether a path belongs to the API of our own."""
    return path == EXT or path.startswith(EXT + "/")
