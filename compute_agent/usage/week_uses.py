"""The CPU use of guests by hour of the week: learnt from measurements, and kept in a file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from compute_agent.kept_json import MappingFormat, read_number
from compute_agent.policy.load_profiles import WEEK_HOURS, LoadProfile, fill_hours

FILE: Final = "cpu_use.json"
"""The name of the file in the state folder. Earlier releases ignore the file."""

VERSION: Final = 1

# The value is half an hour, so that the mean of an hour does not come from one burst after a restart of the
# agent.
MIN_SECONDS: Final = 1800.0
"""Minimum number of measured seconds of an hour. The mean of an hour with fewer measured seconds is
dropped.
"""

NEW_SHARE: Final = 0.5
"""The weight of the newest value for an hour of the week. Former weeks share the remaining weight: each week
counts half as much as the week after it.
"""

# A stopped guest can return, as after the night or a week of holidays.
ABSENT_SECONDS: Final = 14 * 86400.0
"""Seconds after which the use of a guest that is gone is forgotten."""

MAX_GUESTS: Final = 512
"""Maximum number of guests with kept values. The values of the guests that were seen last are kept. The
values of a guest take about 1 kB of the file.
"""

_MAX_CORES: Final = 1e6
"""The largest plausible number of cores."""


@dataclass(frozen=True, slots=True)
class WeekUse:
    """The mean CPU use of a guest by hour of the week, in cores.

    :ivar hours: the use of each hour; None if not known yet.
    :ivar seen: the end of the last hour that counted, in seconds since the epoch.
    """

    hours: tuple[float | None, ...] = (None,) * WEEK_HOURS
    seen: float = 0.0

    def with_hour(self, hour: int, cores: float, now: float) -> WeekUse:
        """A copy in which one hour of the week has a newly measured mean."""
        last = self.hours[hour]
        mean = cores if last is None else last + NEW_SHARE * (cores - last)
        # The mean is rounded to thousandths, which keeps the file small.
        return WeekUse((*self.hours[:hour], round(mean, 3), *self.hours[hour + 1 :]), now)


@dataclass(frozen=True, slots=True)
class HourSum:
    """The use of a guest in the present hour: its core seconds, and the seconds for which it was measured."""

    core_seconds: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class WeekUses:
    """The use of guests by hour of the week, and the sums of the present hour, by uuid of the guest."""

    guests: Mapping[str, WeekUse] = field(default_factory=dict)
    hour: int = -1
    sums: Mapping[str, HourSum] = field(default_factory=dict)

    def with_use(self, use: Mapping[str, float], elapsed: float, now: float) -> WeekUses:
        """Add the use, in cores by uuid, of the last ``elapsed`` seconds before ``now``.

        :param now: the present time in seconds since the epoch. When a new hour begins, the mean of the last
            hour is added to the guest's use.
        """
        hour = week_hour(now)
        kept = self if hour == self.hour else replace(self._with_closed_hour(now), hour=hour)
        sums = dict(kept.sums)
        for uuid, cores in use.items():
            last = sums.get(uuid, HourSum())
            sums[uuid] = HourSum(last.core_seconds + cores * elapsed, last.seconds + elapsed)
        return replace(kept, sums=sums)

    def _with_closed_hour(self, now: float) -> WeekUses:
        guests = dict(self.guests)
        for uuid, total in self.sums.items():
            if total.seconds >= MIN_SECONDS:
                cores = total.core_seconds / total.seconds
                guests[uuid] = guests.get(uuid, WeekUse()).with_hour(self.hour, cores, now)
        recent = sorted(guests, key=lambda uuid: guests[uuid].seen, reverse=True)[:MAX_GUESTS]
        return WeekUses({uuid: guests[uuid] for uuid in recent if now - guests[uuid].seen < ABSENT_SECONDS})


def known_profiles(guests: Mapping[str, WeekUse]) -> dict[str, LoadProfile]:
    """The use by hour of the week, by uuid, of the guests that were measured for at least a day."""
    found = {uuid: fill_hours(one.hours) for uuid, one in guests.items()}
    return {uuid: profile for uuid, profile in found.items() if profile is not None}


def week_hour(now: float) -> int:
    """The hour of the week at ``now`` (seconds since the epoch), by the time zone of the host."""
    # Python reads the time zone at its start. tzset() reads it again, so that a changed time zone counts.
    time.tzset()
    local = time.localtime(now)
    return local.tm_wday * 24 + local.tm_hour


# asdict() would copy each hour, which takes a hundred times as long.
def _dump_guest(use: WeekUse) -> dict[str, Any]:
    return {"hours": use.hours, "seen": use.seen}


def _parse_guest(content: Any) -> WeekUse:
    hours = tuple(None if cores is None else read_number(cores, _MAX_CORES) for cores in content["hours"])
    if len(hours) != WEEK_HOURS:
        raise ValueError(f"a week has {WEEK_HOURS} hours, and not {len(hours)}")
    return WeekUse(hours, read_number(content["seen"], 1e12))


USES_FORMAT: Final = MappingFormat(VERSION, "guests", _dump_guest, _parse_guest)
"""The format of the file: the CPU use of guests by hour of the week, by uuid of the guest."""
