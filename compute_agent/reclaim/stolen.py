"""CPU time that a hypervisor takes from a zone, and the CPUs that are withheld for it. Pure functions.

A host that is itself a virtual machine has less CPU time than its number of CPUs suggests, because its
hypervisor runs other machines for a part of the time. The kernel shows this *stolen* time for each CPU (steal
in /proc/stat, proc(5)). The agent takes the second largest stolen part of the last 15 minutes, so that one
bad minute does not count. An example: a part of 12 % of 16 shared CPUs is 1.92 CPUs, so two CPUs are
withheld.

Invariants
    - Two changes are at least five minutes apart, so there are at most twelve in an hour.
    - More CPUs are withheld if the stolen time exceeds the withheld CPUs by half a CPU. Fewer CPUs are
      withheld if the stolen time was a whole CPU below the withheld CPUs for 15 minutes. Each such decrease
      is at most a tenth of the CPUs, or one CPU on a zone with fewer than 20.
    - While the stolen part is not known, as after a start of the agent, the number of withheld CPUs stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from compute_agent.kept_json import MappingFormat, read_number
from compute_agent.reclaim.offers import ABOVE_SECONDS, GROWTH

FILE: Final = "stolen.json"
"""The name of the file in the state folder."""

VERSION: Final = 1

WINDOW_SECONDS: Final = 900.0
"""The age in seconds up to which readings count."""

# With fewer readings one noisy minute would decide.
MIN_READINGS: Final = 3
"""The minimum number of readings for which the stolen part counts as known."""

# Each change is a write to Placement.
PAUSE_SECONDS: Final = 300.0
"""The shortest time between two changes, in seconds."""

# The value prevents changes by noise around a whole number, because the number of CPUs is rounded up
# (hysteresis).
RISE: Final = 0.5
"""The part of a CPU by which the stolen time must exceed the withheld CPUs before more are withheld."""

# A sum of floats can be slightly above a whole number, and would withhold one more CPU.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class StolenReserve:
    """The stolen time and the withheld CPUs of a zone. Times are seconds since the epoch.

    :ivar readings: pairs of a time and the part of the CPUs' time that was stolen in the minute before.
    :ivar withheld: the number of withheld CPUs, since ``changed``.
    :ivar less_since: the time since which too many CPUs are withheld; 0 if the number is right.
    :ivar less: the highest number of CPUs that had to be withheld since ``less_since``.
    """

    readings: tuple[tuple[float, float], ...] = ()
    withheld: int = 0
    changed: float = 0.0
    less_since: float = 0.0
    less: int = 0

    @property
    def counted_part(self) -> float:
        """The second largest stolen part of the readings, so that one noisy minute does not count."""
        parts = sorted(part for _, part in self.readings)
        return 0.0 if not parts else parts[max(0, len(parts) - 2)]

    @property
    def is_known(self) -> bool:
        """Whether there are enough readings to know the stolen part."""
        return len(self.readings) >= MIN_READINGS

    def with_part(self, part: float | None, cpus: int, time: float) -> StolenReserve:
        """The reserve after one more reading.

        :param part: the stolen part of the CPUs' time, 0 to 1; None if unknown.
        :param cpus: the number of CPUs of the zone.
        :param time: the present time in seconds since the epoch.
        """
        kept = tuple(one for one in self.readings if 0 <= time - one[0] < WINDOW_SECONDS)
        if part is not None:
            kept = (*kept, (time, max(0.0, min(part, 1.0))))
        # After the clock was set back, nothing must wait until the old time is reached again.
        changed, since = min(self.changed, time), min(self.less_since, time)
        now = StolenReserve(kept, min(self.withheld, cpus), changed, since, self.less)
        if not now.is_known:
            return StolenReserve(kept, now.withheld, changed)
        cores = now.counted_part * cpus
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
        """The stolen time as a term: a phrase and its cores."""
        if not self.is_known:
            yield "stolen CPU time: not known yet", 0.0
        else:
            yield (
                f"stolen of {cpus} CPUs: at most {100 * self.counted_part:.1f} % in all but one"
                " of the last 15 minutes",
                self.counted_part * cpus,
            )


def stolen_part(stolen: Mapping[int, float], cpus: frozenset[int]) -> float | None:
    """The mean stolen part of the time of these CPUs, 0 to 1; None if it is unknown for each of them."""
    known = [stolen[cpu] for cpu in cpus if cpu in stolen]
    return sum(known) / len(known) if known else None


def _parse_zone(content: Any) -> StolenReserve:
    return StolenReserve(
        # The number is larger than the number of readings in a window. The number limits the memory that a
        # damaged file can use.
        tuple((read_number(time, 1e12), read_number(part, 1.0)) for time, part in content["readings"])[-100:],
        math.floor(read_number(content["withheld"], 1e6)),
        read_number(content["changed"], 1e12),
        read_number(content["less_since"], 1e12),
        math.floor(read_number(content["less"], 1e6)),
    )


RESERVES_FORMAT: Final[MappingFormat[StolenReserve]] = MappingFormat(VERSION, "zones", asdict, _parse_zone)
"""The format of the file: the reserves of zones by the uuid of the zone's provider."""
