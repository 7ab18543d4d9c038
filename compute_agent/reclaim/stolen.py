"""What a hypervisor takes of the CPUs of a zone, and how many are therefore not sold: pure functions.

A host that is a virtual machine itself has fewer CPUs than it counts: in the rest of the time its hypervisor
runs others. That time is told for each CPU (steal of /proc/stat). The part that was exceeded in at most one
minute of the last quarter of an hour counts. Of 16 shared CPUs with a part of 12 % that is 1.92: two are
withheld.

What always holds
    - Between two changes are five minutes at least, so that there are at most twelve in an hour, whatever
      is stolen.
    - Less is withheld when a whole CPU less was stolen for a quarter of an hour, and by a tenth of the CPUs
      at a time; more when half a CPU more is.
    - What was withheld stays as long as nothing is known, as after a start of the agent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from compute_agent import kept_json
from compute_agent.kept_json import number
from compute_agent.reclaim.offers import ABOVE_SECONDS, GROWTH

FILE: Final = "stolen.json"
"""In the state folder."""

VERSION: Final = 1

WINDOW_SECONDS: Final = 900.0
"""How old readings may be that count."""

MIN_READINGS: Final = 3
"""Readings from which on something can be told."""

PAUSE_SECONDS: Final = 300.0
"""Between two changes."""

RISE: Final = 0.5
"""The part of a CPU by which more has to be stolen than is withheld for more to be withheld."""

_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class StolenReserve:
    """What is known and withheld of a zone.

    ``readings`` are times and the part of the CPUs that was stolen in the minute before; ``withheld`` are
    whole CPUs, since ``changed``. ``less_since``: since when it could be less (0: it cannot), and ``less``
    the most that it would have had to be since then.
    """

    readings: tuple[tuple[float, float], ...] = ()
    withheld: int = 0
    changed: float = 0.0
    less_since: float = 0.0
    less: int = 0

    @property
    def part(self) -> float:
        """The part that was exceeded in one reading at most."""
        parts = sorted(part for _, part in self.readings)
        return 0.0 if not parts else parts[max(0, len(parts) - 2)]

    @property
    def known(self) -> bool:
        """Whether there are enough readings."""
        return len(self.readings) >= MIN_READINGS

    def after(self, part: float | None, cpus: int, time: float) -> StolenReserve:
        """With a reading of the part of ``cpus`` that was stolen; None: it cannot be told."""
        kept = tuple(one for one in self.readings if 0 <= time - one[0] < WINDOW_SECONDS)
        if part is not None:
            kept = (*kept, (time, max(0.0, min(part, 1.0))))
        # A clock that went back must not have it wait until it is as late again.
        changed, since = min(self.changed, time), min(self.less_since, time)
        now = StolenReserve(kept, min(self.withheld, cpus), changed, since, self.less)
        if not now.known:
            return StolenReserve(kept, now.withheld, changed)
        cores = now.part * cpus
        wanted = min(cpus, math.ceil(cores - _ROUNDING))
        may_change = time - changed >= PAUSE_SECONDS
        if cores > now.withheld + RISE:
            return (
                StolenReserve(kept, wanted, time)
                if may_change
                else StolenReserve(kept, now.withheld, changed)
            )
        if wanted >= now.withheld:
            return StolenReserve(kept, now.withheld, changed)
        if not since:
            return StolenReserve(kept, now.withheld, changed, time, wanted)
        less = max(now.less, wanted)
        if time - since < ABOVE_SECONDS or not may_change:
            return StolenReserve(kept, now.withheld, changed, since, less)
        return StolenReserve(kept, max(less, now.withheld - max(1, math.floor(GROWTH * cpus))), time)

    def in_words(self, cpus: int) -> Iterator[tuple[str, float]]:
        """The terms, a sentence and its cores each."""
        if not self.known:
            yield "what the hypervisor takes is not known yet", 0.0
        else:
            yield (
                f"what the hypervisor takes of {cpus} CPUs: {100 * self.part:.1f} % or less, but in one of"
                " the last 15 minutes",
                self.part * cpus,
            )


def stolen_part(stolen: Mapping[int, float], cpus: frozenset[int]) -> float | None:
    """The part of the time that was taken from some CPUs; None where that is known of none of them."""
    known = [stolen[cpu] for cpu in cpus if cpu in stolen]
    return sum(known) / len(known) if known else None


def dump_stolen(zones: Mapping[str, StolenReserve]) -> bytes:
    """What is known of zones, by the uuid of their provider, as the content of the file."""
    return kept_json.dump(VERSION, {"zones": {uuid: asdict(one) for uuid, one in zones.items()}})


def parse_stolen(content: bytes) -> dict[str, StolenReserve]:
    """What is known of zones, from the content of the file.

    :raises ValueError: it is something else.
    """
    return kept_json.parse(VERSION, content, _zones)


def _zones(document: Any) -> dict[str, StolenReserve]:
    return {str(uuid): _zone(zone) for uuid, zone in document["zones"].items()}


def _zone(content: Any) -> StolenReserve:
    return StolenReserve(
        tuple((number(time, 1e12), number(part, 1.0)) for time, part in content["readings"])[-100:],
        math.floor(number(content["withheld"], 1e6)),
        number(content["changed"], 1e12),
        number(content["less_since"], 1e12),
        math.floor(number(content["less"], 1e6)),
    )
