"""Finds other times at which refused amounts without an end time would fit on the same providers.

An amount without an end has to be free in addition to all windows ahead. If windows are in the way, the
amount fits when they are over, or now with an end time before they begin. This module does not use the
database.

A worked example
    A host has 8 VCPU, and a guest uses 2 of them. A window has 4 VCPU from 10:00 to 11:00. A claim of 5 VCPU
    without an end is refused. It fits from 11:00 on, or now with an end time until 10:00. A claim of 2 VCPU
    fits now, without an end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from placement.store.claims import UnmetNeed
from placement.store.time_profile import TimeWindow, iso_time
from placement.store.time_skyline import NO_SKYLINE, SkylinesByProvider, TimeSkyline

# a client needs some time to send the claim again, and a guest needs some time to start
MIN_STAY: Final = 60.0
"""Minimum number of seconds from now until the latest end that a refusal names."""


@dataclass(frozen=True, slots=True)
class TimeShifts:
    """Times at which a refused request without an end time would fit, in seconds since 1970.

    The request fits without an end time from ``earliest_start`` on. It fits now if it has an end time, which
    is ``latest_end`` at the latest. None means that no such time was found.
    """

    earliest_start: float | None = None
    latest_end: float | None = None

    @property
    def text(self) -> str:
        """The times as the end of a sentence about the request; empty if there are none."""
        found = []
        if self.earliest_start is not None:
            found.append(f"without an end time from {iso_time(self.earliest_start)} on")
        if self.latest_end is not None:
            found.append(f"now with an end time until {iso_time(self.latest_end)}")
        return ", or ".join(found)

    @property
    def shown_times(self) -> dict[str, str | None]:
        """The times as answers show them, by the name of their field."""
        return {
            name: None if time is None else iso_time(time)
            for name, time in (("earliest_start", self.earliest_start), ("latest_end", self.latest_end))
        }


def shifts_of_needs(needs: Sequence[UnmetNeed], skylines: SkylinesByProvider, now: float) -> TimeShifts:
    """Return the times at which all these amounts fit together.

    :param skylines: the skylines of all timed amounts of these providers, except those of the claimants.
    """
    earliest, latest = now, math.inf
    for each in needs:
        skyline, room = _room_of(each, skylines)
        most = room - each.wanted
        if most < 0:
            return TimeShifts()
        # an amount without an end that fits at some time fits at each later time
        earliest = max(earliest, skyline.first_fit(most, now, math.inf))
        fits_now = skyline.largest_sum(TimeWindow(now, now + MIN_STAY)) <= most
        latest = min(latest, skyline.fits_until(most, now) if fits_now else now)
    return TimeShifts(
        earliest if earliest > now else None,
        latest if now + MIN_STAY < latest < math.inf else None,
    )


def largest_amount(need: UnmetNeed, skylines: SkylinesByProvider, now: float) -> int | None:
    """Return the largest amount without an end that fits; None if windows do not prevent the wanted one."""
    skyline, room = _room_of(need, skylines)
    fitting = room - skyline.largest_sum(TimeWindow(now, math.inf))
    return max(0, fitting) if fitting < need.wanted <= room else None


def _room_of(need: UnmetNeed, skylines: SkylinesByProvider) -> tuple[TimeSkyline, int]:
    """Return the skyline of a provider and a class, and the free amount without any timed amounts."""
    skyline = skylines.get(need.provider, {}).get(need.resource_class, NO_SKYLINE)
    return skyline, need.free + skyline.counted
