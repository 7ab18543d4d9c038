"""Where guests of a host are, and at what its watermarks act: what its agent said in attributes, to be drawn.

Agents say it where their ``[compute] report_positions`` is set. Placement does not know it, and no agent is
asked: its address would have to be known to the service, open to it, and answer whenever somebody looks.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from placement.model.provider import Provider
from placement_extras.console.host import ConsumerHolding
from placement_extras.console.picture import COLOURS

POSITION: Final = "position."
WATERMARK: Final = "watermark."

_CPUS: Final = re.compile(r"cpus ([0-9,-]+)")
_WAYS: Final = re.compile(r"L3 ([0-9]{1,4}): ([0-9,-]+) of ([0-9]{1,2})")
_RANGE: Final = re.compile(r"([0-9]{1,2})(?:-([0-9]{1,2}))?")
_MAX_WAYS: Final = 64
_MAX_GUESTS: Final = 100
_MAX_WATERMARKS: Final = 100


@dataclass(frozen=True, slots=True)
class CacheWays:
    """The ways of a cache that a guest can fill, as text, and as pieces in percent: start and width."""

    number: int
    ways: str
    total: int
    pieces: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class ConsumerPlace:
    """Where a consumer is: which it is in the list, 0 if it is not there."""

    consumer: str
    number: int
    cpus: str
    caches: tuple[CacheWays, ...]

    @property
    def colour(self) -> int:
        """That of its parts in the picture; 0 for those who are not in the list."""
        return self.number and (self.number - 1) % COLOURS + 1


@dataclass(frozen=True, slots=True)
class AgentPositions:
    """What the agent said."""

    places: tuple[ConsumerPlace, ...]
    watermarks: tuple[tuple[str, str], ...]


def said(members: Iterable[Provider], held: Sequence[ConsumerHolding]) -> AgentPositions | None:
    """What these providers have of it; None if nothing."""
    numbers = {each.consumer: number for number, each in enumerate(held, 1)}
    places, watermarks = [], []
    for each in members:
        for name, value in each.attributes.items():
            if name.startswith(POSITION):
                consumer = name.removeprefix(POSITION)
                places.append(_place(consumer, numbers.get(consumer, 0), str(value)))
            elif name.startswith(WATERMARK):
                watermarks.append((name.removeprefix(WATERMARK), str(value)))
    if not places and not watermarks:
        return None
    places.sort(key=lambda each: (each.number or len(held) + 1, each.consumer))
    return AgentPositions(tuple(places[:_MAX_GUESTS]), tuple(sorted(watermarks)[:_MAX_WATERMARKS]))


def _place(consumer: str, number: int, text: str) -> ConsumerPlace:
    """Of what cannot be understood nothing is drawn."""
    parts = text.split("; ")
    cpus = _CPUS.fullmatch(parts[0])
    return ConsumerPlace(consumer, number, cpus[1] if cpus else "", tuple(_caches(parts[1:])))


def _caches(parts: Iterable[str]) -> Iterator[CacheWays]:
    for part in parts:
        found = _WAYS.fullmatch(part)
        if found is None or not 0 < (total := int(found[3])) <= _MAX_WAYS:
            continue
        ranges = [_RANGE.fullmatch(each) for each in found[2].split(",")]
        bounds = [(int(each[1]), int(each[2] or each[1])) for each in ranges if each]
        pieces = [
            (100 * first / total, 100 * (last - first + 1) / total)
            for first, last in bounds
            if first <= last < total
        ]
        yield CacheWays(int(found[1]), found[2], total, tuple(pieces))
