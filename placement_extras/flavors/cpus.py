"""Sets of a guest's CPUs, as the bits of a number: bit 0 is CPU 0."""

from typing import Final

MAX_CPUS: Final = 1 << 12
"""Of a guest: few enough that the longest list of them is read in milliseconds."""


def first(number: int) -> int:
    """The CPUs 0 to ``number - 1``."""
    return (1 << number) - 1


def parse(text: str) -> int:
    """The CPUs of a list such as ``0-3,^2,7``: those behind a ``^`` are none of it, wherever they stand.

    All beyond those that a guest can have are the one :data:`MAX_CPUS`.

    :raises ValueError: it is no such list.
    """
    included = excluded = 0
    for rule in filter(None, (part.strip() for part in text.split(","))):
        bounds = [int(bound) for bound in rule.removeprefix("^").split("-", 1)]
        low, high = bounds[0], bounds[-1]
        if not 0 <= low <= high:
            raise ValueError(rule)
        named = first(min(high, MAX_CPUS) + 1) & ~first(min(low, MAX_CPUS))
        if rule.startswith("^"):
            excluded |= named
        else:
            included |= named
    return included & ~excluded


def parse_mask(text: str, vcpus: int) -> int:
    """The CPUs of a mask, which may begin with those that are left out of all of a guest (``^0-1``).

    :raises ValueError: as :func:`parse`.
    """
    return parse(f"0-{vcpus - 1},{text}" if text.strip().startswith("^") else text)
