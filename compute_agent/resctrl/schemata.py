"""Cache bit masks (CBM), and the lines of ``schemata`` and ``size`` files.

A mask has one bit for each way of a cache, bit 0 for the lowest way. A file has a line for each resource,
such as `` L3:0=0ffff;1=fffff`` or ``MB:0= 100;1= 100``. Masks are hexadecimal; bandwidths and sizes are
decimal. The kernel pads names and values with blanks (since 4.13). The ids of caches and domains are those of
the kernel. They have gaps, and can come in any order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

# The 16 digits stand for 64 ways, twice as many as the kernel's masks have so far.
_HEX: Final = re.compile(r"\s*(?:0[xX])?([0-9a-fA-F]{1,16})\s*", re.ASCII)


class BadMaskError(ValueError):
    """A text is no mask, or the platform refuses the mask. The message gives the reason."""


@dataclass(frozen=True, slots=True, order=True)
class WayMask:
    """A set of at most 64 cache ways, as the bits of a number. An empty mask is false."""

    bits: int = 0

    @classmethod
    def parse_hex(cls, text: str) -> WayMask:
        """The mask for hexadecimal digits such as ``fffff`` or ``0x00ff``.

        :raises BadMaskError: the text has other characters, or more than 16 digits.
        """
        match = _HEX.fullmatch(text)
        if match is None:
            raise BadMaskError(f"{text!r} is not a cache mask of up to 16 hexadecimal digits")
        return cls(int(match[1], 16))

    @classmethod
    def from_ways(cls, ways: Iterable[int]) -> WayMask:
        """The mask of the ways with these numbers."""
        bits = 0
        for way in ways:
            bits |= 1 << way
        return cls(bits)

    @classmethod
    def from_range(cls, first: int, count: int) -> WayMask:
        """The mask of ``count`` adjacent ways, from the way ``first`` upwards."""
        return cls((1 << count) - 1 << first)

    @classmethod
    def union_of(cls, masks: Iterable[WayMask]) -> WayMask:
        """The mask of all ways that are in any of the masks."""
        bits = 0
        for mask in masks:
            bits |= mask.bits
        return cls(bits)

    def __str__(self) -> str:
        """The hexadecimal digits in the kernel's form, such as ``3c0``."""
        return f"{self.bits:x}"

    def __bool__(self) -> bool:
        return self.bits != 0

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __iter__(self) -> Iterator[int]:
        """The numbers of the ways, in ascending order."""
        bits = self.bits
        while bits:
            low = bits & -bits  # The lowest bit that is set: -bits is the complement of bits plus 1.
            yield low.bit_length() - 1
            bits ^= low

    def __and__(self, other: WayMask) -> WayMask:
        return WayMask(self.bits & other.bits)

    def __or__(self, other: WayMask) -> WayMask:
        return WayMask(self.bits | other.bits)

    def __sub__(self, other: WayMask) -> WayMask:
        return WayMask(self.bits & ~other.bits)

    def contains_mask(self, other: WayMask) -> bool:
        """Whether all ways of ``other`` are in this mask."""
        return not other - self

    @property
    def is_contiguous(self) -> bool:
        """Whether the ways are adjacent. An empty mask does not count as contiguous."""
        return len(self.split_runs()) == 1

    def split_runs(self) -> tuple[WayMask, ...]:
        """The runs of adjacent ways in the mask, the lowest run first."""
        found = []
        rest = self.bits
        while rest:
            low = rest & -rest
            # The carry of the addition runs up to the first zero bit above the lowest run.
            piece = rest & ~(rest + low)
            found.append(WayMask(piece))
            rest ^= piece
        return tuple(found)

    def percent_range(self, first_percent: int, last_percent: int, min_ways: int = 1) -> WayMask:
        """The ways between two percentages: the first way is rounded down, the last one up.

        Ways are counted from the lowest one, so 0..30 are the lower 30 percent. If the range has fewer than
        ``min_ways`` ways, it grows upwards first and then downwards, as far as this mask has ways.
        """
        ways = list(self)
        # Only whole numbers are used, because a float just above a whole number would add a way.
        first = len(ways) * first_percent // 100
        last = -(-len(ways) * last_percent // 100)
        last = min(len(ways), max(last, first + min_ways))
        first = max(0, min(first, last - min_ways))
        return WayMask.from_ways(ways[first:last])


@dataclass(frozen=True, slots=True)
class MaskRules:
    """The masks that a cache accepts.

    :ivar all_ways: the mask with all ways of the cache.
    :ivar min_bits: the smallest number of ways in a mask.
    :ivar sparse: whether a mask can have holes.
    """

    all_ways: WayMask
    min_bits: int = 1
    sparse: bool = False

    def find_fault(self, mask: WayMask) -> str | None:
        """The reason why the kernel would refuse ``mask``; None if the kernel would accept the mask."""
        if not mask:
            return "a mask of no ways"
        if not self.all_ways.contains_mask(mask):
            return f"mask {mask} has ways that the cache does not have ({self.all_ways})"
        if not self.sparse and not mask.is_contiguous:
            return f"mask {mask} has holes"
        # The kernel counts the bits of the lowest run only, even if it allows holes.
        if len(mask.split_runs()[0]) < self.min_bits:
            return f"mask {mask} begins with fewer than {self.min_bits} ways"
        return None

    def widest_mask(self, mask: WayMask, around: WayMask = WayMask()) -> WayMask:
        """The largest mask within ``mask`` that the kernel accepts; empty if there is no such mask.

        If masks can have holes, the result is usually the whole mask. If masks must not have holes, the
        result is a run of adjacent ways: the run that shares most ways with ``around``. Among several such
        runs, the longest run is chosen, and then the lowest.
        """
        if self.sparse and self.find_fault(mask) is None:
            return mask
        pieces = [piece for piece in mask.split_runs() if len(piece) >= self.min_bits]
        if self.sparse:  # With holes, only the lowest run can be too short.
            return WayMask.from_ways(way for piece in pieces for way in piece)
        return max(pieces, key=lambda piece: (len(piece & around), len(piece)), default=WayMask())


CACHE_RESOURCES: Final = ("L3", "L3CODE", "L3DATA", "L2", "L2CODE", "L2DATA")
BANDWIDTH_RESOURCES: Final = ("MB", "SMBA")

Lines = Mapping[str, Mapping[int, int]]


class BadSchemataError(ValueError):
    """A schemata text cannot be parsed. The message quotes the line."""


@dataclass(frozen=True, slots=True)
class Schemata:
    """The values of a group, for some or all resources and domains.

    :ivar lines: by resource and domain id, the bits of a cache mask or a bandwidth in the unit of the
        platform.
    """

    lines: Lines = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Resources without values are left out, because the kernel refuses a line such as "L3:".
        frozen = {name: MappingProxyType(dict(values)) for name, values in self.lines.items() if values}
        # object.__setattr__() is needed, because the dataclass is frozen. The lines are copied, so that later
        # changes by the caller have no effect.
        object.__setattr__(self, "lines", MappingProxyType(frozen))

    def __bool__(self) -> bool:
        return bool(self.lines)

    def __hash__(self) -> int:
        # The __hash__() of the dataclass would fail, because a mapping has no hash in Python 3.11.
        return hash(frozenset(self))

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        """The values as triples of resource, domain id and value."""
        for name, values in self.lines.items():
            for domain, value in values.items():
                yield name, domain, value

    def get_value(self, resource: str, domain: int) -> int | None:
        """The value of a resource on a domain; None if it is missing."""
        return self.lines.get(resource, {}).get(domain)

    def domain_ids(self, resource: str) -> tuple[int, ...]:
        """The domain ids of a resource in ascending order; empty if the resource has no line."""
        return tuple(sorted(self.lines.get(resource, ())))

    def updated_with(self, other: Schemata) -> Schemata:
        """A copy in which values of ``other`` replace or complete the values of this object."""
        names = {**self.lines, **other.lines}
        return Schemata({name: {**self.lines.get(name, {}), **other.lines.get(name, {})} for name in names})

    def changes_from(self, present: Schemata) -> Schemata:
        """The values that differ from ``present``, and so must be written."""
        changed: dict[str, dict[int, int]] = {}
        for name, domain, value in self:
            if present.get_value(name, domain) != value:
                changed.setdefault(name, {})[domain] = value
        return Schemata(changed)

    def restricted_to(self, other: Schemata) -> Schemata:
        """A copy with only those resources and domains that ``other`` also has."""
        kept: dict[str, dict[int, int]] = {}
        for name, domain, value in self:
            if other.get_value(name, domain) is not None:
                kept.setdefault(name, {})[domain] = value
        return Schemata(kept)

    def __str__(self) -> str:
        """The text for the kernel: one line for each resource, domains in ascending order."""
        # The last line also ends in a newline: without it the kernel returns EINVAL and gives no reason.
        return "".join(
            f"{name}:{';'.join(f'{d}={_format_value(name, v)}' for d, v in sorted(values.items()))}\n"
            for name, values in self.lines.items()
        )


def parse_schemata(text: str) -> Schemata:
    """The values in the text of a schemata file. Unknown resources are ignored.

    A group that is about to be pseudo-locked has ``uninitialized`` instead of values; such a line counts as
    empty.

    :raises BadSchemataError: a line cannot be read.
    """
    # A newer kernel can list more resources. The agent does not change them.
    return Schemata(
        {
            name: _parse_values(line, values, hexadecimal=name in CACHE_RESOURCES)
            for line, name, values in _split_lines(text)
            if name in CACHE_RESOURCES or name in BANDWIDTH_RESOURCES
        }
    )


def parse_sizes(text: str) -> Lines:
    """The bytes by resource and domain id, from the text of a ``size`` file.

    :raises BadSchemataError: a line cannot be read.
    """
    return {name: _parse_values(line, values, hexadecimal=False) for line, name, values in _split_lines(text)}


def _split_lines(text: str) -> Iterator[tuple[str, str, str]]:
    for line in text.splitlines():
        if not line.strip():
            continue
        name, colon, values = line.partition(":")
        if not colon:
            raise BadSchemataError(f"schemata line {line!r} has no colon")
        yield line, name.strip(), values.strip()


def _parse_values(line: str, text: str, hexadecimal: bool) -> dict[int, int]:
    if text == "uninitialized":
        return {}
    found: dict[int, int] = {}
    # Since Linux 4.13 the kernel pads numbers with blanks to equal width.
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        domain, equals, value = part.partition("=")
        try:
            # The handler below reports this together with numbers that cannot be read.
            if not equals:
                raise ValueError
            number = WayMask.parse_hex(value).bits if hexadecimal else int(value)
            found[int(domain)] = number
        except (ValueError, BadMaskError) as error:
            raise BadSchemataError(f"schemata line {line!r}: cannot read {part!r}") from error
    return found


def _format_value(resource: str, value: int) -> str:
    return f"{value:x}" if resource in CACHE_RESOURCES else str(value)
