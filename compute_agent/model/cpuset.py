"""CPU set strings: what operators write (``0-3,^2,8``), and the kernel's lists and masks.

The kernel's own formats are those of ``bitmap_parselist`` and ``bitmap_parse`` (lib/bitmap-str.c): lists such
as ``0-3,8``, masks such as ``ff,ffffffff`` (comma-separated words of 32 bits, the most significant first).
Exclusions (``^2``, ``^4-5``) are what the configuration adds to lists.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

CpuSet = frozenset[int]
"""Logical CPUs, by the number that the kernel gives them."""

Parser = Callable[[str], frozenset[int]]

MAX_CPU: Final = 65535
"""Highest CPU number accepted: above any NR_CPUS, yet a typing error cannot fill the memory."""

_PART: Final = re.compile(r"(\^?)\s*([0-9]+)(?:\s*-\s*([0-9]+))?", re.ASCII)


class BadCpuSet(ValueError):
    """A CPU set string that cannot be read; ``part`` is the piece that is wrong."""

    def __init__(self, text: str, part: str, why: str) -> None:
        super().__init__(f"bad CPU set {text!r}: {part!r} {why}")
        self.text = text
        self.part = part


def parse(text: str) -> frozenset[int]:
    """CPU numbers of a list such as ``0-3,^2,8,^4-5``; exclusions apply wherever they stand.

    Blanks around parts and empty parts are allowed, as they are in the kernel; an empty text is the empty
    set.

    :raises BadCpuSet: that names the bad part.
    """
    included: set[int] = set()
    excluded: set[int] = set()
    for part in (piece.strip() for piece in text.split(",")):
        if not part:
            continue
        match = _PART.fullmatch(part)
        if match is None:
            raise BadCpuSet(text, part, "is not a CPU number, a range (0-3) or an exclusion (^2)")
        first = int(match[2])
        last = first if match[3] is None else int(match[3])
        if last > MAX_CPU or first > MAX_CPU:
            raise BadCpuSet(text, part, f"is above the highest CPU number, {MAX_CPU}")
        if last < first:
            raise BadCpuSet(text, part, "is a range that ends before it starts")
        (excluded if match[1] else included).update(range(first, last + 1))
    return frozenset(included - excluded)


def format(cpus: Iterable[int]) -> str:
    """The shortest list of ``cpus``, as the kernel prints it: ``0-3,8``; the empty set is an empty text."""
    ranges: list[tuple[int, int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1] = (ranges[-1][0], cpu)
        else:
            ranges.append((cpu, cpu))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def parse_mask(text: str) -> frozenset[int]:
    """CPU numbers of a kernel mask such as ``ff,ffffffff``.

    :raises BadCpuSet: that names the bad word.
    """
    mask = 0
    for word in text.split(","):
        word = word.strip()
        if not re.fullmatch(r"[0-9a-fA-F]{1,8}", word):
            raise BadCpuSet(text, word, "is not a word of up to 8 hexadecimal digits")
        mask = mask << 32 | int(word, 16)
    return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
