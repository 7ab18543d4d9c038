"""Where guests are and at what watermarks act, as attributes for people who look: pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from compute_agent.inventory.attributes import POSITION, WATERMARK
from compute_agent.model import cpuset

_MAX_GUESTS: Final = 100
_MAX_WATERMARKS: Final = 20
"""A provider takes 256 attributes, which others want to have some of, too."""
_MAX_TEXT: Final = 255
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,50}")


@dataclass(frozen=True, slots=True)
class GuestCpuMap:
    """The CPUs of a guest, and by L3 cache the ways that it can fill, and how many there are."""

    consumer: str
    cpus: frozenset[int]
    ways: Mapping[int, tuple[frozenset[int], int]] = field(default_factory=dict)

    def __str__(self) -> str:
        """As ``cpus 4-7; L3 0: 0-3 of 12``."""
        ways = [
            f"L3 {cache}: {cpuset.format(some)} of {count}"
            for cache, (some, count) in sorted(self.ways.items())
        ]
        return "; ".join([f"cpus {cpuset.format(self.cpus)}", *ways])


def described(guests: Iterable[GuestCpuMap], watermarks: Mapping[str, str]) -> dict[str, str]:
    """The attributes that say it; of very many guests some, always the same.

    :param watermarks: what each acts at, by its section.
    """
    known = sorted(
        (each for each in guests if _UUID.fullmatch(each.consumer)), key=lambda each: each.consumer
    )
    told = {POSITION + each.consumer: str(each)[:_MAX_TEXT] for each in known[:_MAX_GUESTS]}
    named = sorted(name for name in watermarks if _NAME.fullmatch(name))[:_MAX_WATERMARKS]
    return told | {WATERMARK + name: watermarks[name][:_MAX_TEXT] for name in named}
