"""Numbers in files that the agent kept."""

from typing import Any


def number(value: Any, largest: float) -> float:
    """A number that is kept.

    :raises ValueError: it is none from 0 to ``largest``.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= largest:
        raise ValueError(f"{value!r} is no number from 0 to {largest:g}")
    return float(value)
