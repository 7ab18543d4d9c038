"""Microversions of the Placement API.

A version is a ``(major, minor)`` tuple, so that versions compare as tuples do.
Source: "REST API Version History" of the OpenStack Placement documentation.
"""

from typing import Final

Microversion = tuple[int, int]

MIN: Final[Microversion] = (1, 0)
MAX: Final[Microversion] = (1, 39)


def text(version: Microversion) -> str:
    """``(1, 4)`` as ``1.4``."""
    return f"{version[0]}.{version[1]}"
