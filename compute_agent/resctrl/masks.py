"""Cache bit masks (CBM): one bit for each way of a cache, the lowest way being bit 0."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_HEX: Final = re.compile(r"\s*(?:0[xX])?([0-9a-fA-F]{1,16})\s*", re.ASCII)


class BadMaskError(ValueError):
    """A text that is no mask, or a mask that the platform does not allow; the text says why."""


@dataclass(frozen=True, slots=True, order=True)
class Mask:
    """A set of cache ways, up to 64 of them, as the bits of a number. True if it has any."""

    bits: int = 0

    @classmethod
    def parse(cls, text: str) -> Mask:
        """The mask that hexadecimal digits such as ``fffff`` or ``0x00ff`` mean.

        :raises BadMaskError:
        """
        match = _HEX.fullmatch(text)
        if match is None:
            raise BadMaskError(f"{text!r} is not a cache mask of up to 16 hexadecimal digits")
        return cls(int(match[1], 16))

    @classmethod
    def of(cls, ways: Iterable[int]) -> Mask:
        """The mask of some way numbers."""
        bits = 0
        for way in ways:
            bits |= 1 << way
        return cls(bits)

    @classmethod
    def run(cls, first: int, count: int) -> Mask:
        """``count`` ways next to each other, from way ``first`` upwards."""
        return cls((1 << count) - 1 << first)

    @classmethod
    def union(cls, masks: Iterable[Mask]) -> Mask:
        """The ways that any of the masks has."""
        bits = 0
        for mask in masks:
            bits |= mask.bits
        return cls(bits)

    def __str__(self) -> str:
        """Hexadecimal digits as the kernel takes them: ``3c0``."""
        return f"{self.bits:x}"

    def __bool__(self) -> bool:
        return self.bits != 0

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __iter__(self) -> Iterator[int]:
        """The way numbers, ascending."""
        bits = self.bits
        while bits:
            low = bits & -bits
            yield low.bit_length() - 1
            bits ^= low

    def __and__(self, other: Mask) -> Mask:
        return Mask(self.bits & other.bits)

    def __or__(self, other: Mask) -> Mask:
        return Mask(self.bits | other.bits)

    def __sub__(self, other: Mask) -> Mask:
        return Mask(self.bits & ~other.bits)

    def covers(self, other: Mask) -> bool:
        """Whether every way of ``other`` is in this mask."""
        return not other - self

    @property
    def contiguous(self) -> bool:
        """Whether the ways are next to each other; an empty mask is not."""
        return len(self.runs()) == 1

    def runs(self) -> tuple[Mask, ...]:
        """The pieces of neighbouring ways, the lowest first."""
        found = []
        rest = self.bits
        while rest:
            low = rest & -rest
            piece = rest & ~(rest + low)  # the carry runs to the first zero above the piece
            found.append(Mask(piece))
            rest ^= piece
        return tuple(found)

    def part(self, first_percent: int, last_percent: int, min_ways: int = 1) -> Mask:
        """The part of these ways between two percents: the first way rounded down, the last one up.

        The result has ``min_ways`` ways as long as this mask has; where the range is smaller, it grows
        upwards first and then downwards. Ways are counted from the lowest, so that 0..30 are the lower 30
        percent.
        """
        ways = list(self)
        first = len(ways) * first_percent // 100
        last = -(-len(ways) * last_percent // 100)
        last = min(len(ways), max(last, first + min_ways))
        first = max(0, min(first, last - min_ways))
        return Mask.of(ways[first:last])


@dataclass(frozen=True, slots=True)
class MaskRules:
    """What masks a cache takes.

    Within ``all_ways``, at least ``min_bits``, in one piece unless ``sparse``.
    """

    all_ways: Mask
    min_bits: int = 1
    sparse: bool = False

    def fault(self, mask: Mask) -> str | None:
        """Why the kernel would refuse ``mask``; None if it would not."""
        if not mask:
            return "a mask of no ways"
        if not self.all_ways.covers(mask):
            return f"mask {mask} has ways that the cache has not ({self.all_ways})"
        if not self.sparse and not mask.contiguous:
            return f"mask {mask} has holes"
        # The kernel counts the bits of the lowest piece, also where holes are allowed.
        if len(mask.runs()[0]) < self.min_bits:
            return f"mask {mask} begins with fewer than {self.min_bits} ways"
        return None

    def widest(self, mask: Mask, around: Mask = Mask()) -> Mask:
        """The largest allowed mask within ``mask``, the one with ``around`` first, then the lowest; or none.

        Where holes are allowed that is all of ``mask``.
        """
        if self.sparse and self.fault(mask) is None:
            return mask
        pieces = [piece for piece in mask.runs() if len(piece) >= self.min_bits]
        if self.sparse:  # the lowest pieces are too small to begin with
            return Mask.of(way for piece in pieces for way in piece)
        return max(pieces, key=lambda piece: (len(piece & around), len(piece)), default=Mask())
