"""Monitoring groups, their counters, and rates from counters that wrap, reset or cannot be read.

Every control group counts what its tasks do; a guest that shares one gets a monitoring group in it. Each
needs an RMID of its own.
"""

from __future__ import annotations

import enum
import errno
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from compute_agent.resctrl.filesystem import Filesystem, ResctrlError
from compute_agent.resctrl.platform import Platform
from compute_agent.resctrl.reader import Present, inside

OCCUPANCY: Final = "llc_occupancy"
TOTAL_BYTES: Final = "mbm_total_bytes"
LOCAL_BYTES: Final = "mbm_local_bytes"

COUNTER_BITS: Final = 64
"""The kernel adds up the hardware's shorter counters itself."""

PLAUSIBLE_BYTES: Final = 2**48
"""More than any memory moves between two readings: what looks like it is a reset, not a wrap-around."""


class NoValue(enum.StrEnum):
    """What a counter reads where it has no number."""

    UNAVAILABLE = "Unavailable"
    UNASSIGNED = "Unassigned"
    ERROR = "Error"


Value = int | NoValue


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters of a group at a time (seconds of a monotonic clock), by L3 cache id and event."""

    time: float
    values: Mapping[tuple[int, str], Value] = field(default_factory=dict)


def monitoring_group(group: str, name: str) -> str:
    """The path of a monitoring group; for the default group too."""
    return inside(group, f"mon_groups/{name}")


def make_monitoring_group(files: Filesystem, group: str, name: str) -> bool:
    """Make a monitoring group; True if there is one now, False if the kernel has no RMID for it.

    An RMID that was used before is kept back by the kernel until its cache lines are gone.

    :raises ResctrlError:
    """
    try:
        files.make(monitoring_group(group, name))
    except ResctrlError as error:
        if error.errno == errno.EEXIST:
            return True
        if error.errno in (errno.ENOSPC, errno.EBUSY):
            return False
        raise
    return True


def parse_counter(text: str) -> Value | None:
    """The value of a counter file; None for a text that no kernel has."""
    text = text.strip()
    if re.fullmatch(r"[0-9]+", text, re.ASCII):
        return int(text)
    try:
        return NoValue(text)
    except ValueError:
        return None


def increase(before: Value | None, now: Value | None) -> int | None:
    """Bytes between two readings of a bandwidth counter; None where one of them is missing.

    A counter that went down has wrapped around, or has begun anew (at 0, so that its value is what was
    counted since).
    """
    if not isinstance(before, int) or not isinstance(now, int):
        return None
    if now >= before:
        return now - before
    wrapped = now + 2**COUNTER_BITS - before
    return wrapped if wrapped < PLAUSIBLE_BYTES else now


class Totals:
    """Bandwidth counters that only grow, whatever the kernel's do: for metrics.

    A reading that has no number is bridged: the next one is compared with the last that had.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[int, str], tuple[float, int]] = {}
        self.bytes: dict[tuple[int, str], int] = {}

    def add(self, sample: Sample) -> dict[tuple[int, str], float]:
        """Count what has come since the last sample; the first is where counting begins.

        Returns bytes a second of the counters that have a number now and had one before.
        """
        found = {}
        for key, value in sample.values.items():
            if key[1] == OCCUPANCY or not isinstance(value, int):
                continue
            before = self._last.get(key)
            self._last[key] = (sample.time, value)
            if before is None:
                self.bytes.setdefault(key, 0)
                continue
            grown = value - before[1]
            if grown < 0:
                grown = increase(before[1], value) or 0
            self.bytes[key] += grown
            if sample.time > before[0]:
                found[key] = grown / (sample.time - before[0])
        return found

    def restart(self) -> None:
        """Go on with the counters of another group: the next sample is where counting begins again."""
        self._last.clear()


@dataclass(frozen=True, slots=True)
class Watched:
    """Something to monitor. ``own_group``: it has a control group, whose RMID it has anyway.

    ``monitored``: it has a monitoring group already, which it keeps before others of its priority get one.
    """

    name: str
    is_class: bool = False
    priority: int = 0
    own_group: bool = False
    monitored: bool = False


def spare_rmids(platform: Platform, present: Present, ours: Callable[[str], bool]) -> int:
    """RMIDs that neither control groups nor monitoring groups of others have; ``ours`` tells by name."""
    if platform.monitoring is None:
        return 0
    foreign = sum(
        1 for group in present.groups.values() for name in group.monitoring_groups if not ours(name)
    )
    return max(0, platform.monitoring.rmids - len(present.groups) - foreign)


def rmids_to_use(platform: Platform, present: Present, ours: Callable[[str], bool]) -> int:
    """How many monitoring groups of ours there may be; some RMIDs are left for control groups to come.

    Without an RMID a control group cannot be made either, and keeping promises comes before measuring. Up to
    half of what is spare is left for the control groups that the platform could still have.
    """
    spare = spare_rmids(platform, present, ours)
    to_come = max(0, platform.groups - len(present.groups))
    return spare - min(to_come, -(-spare // 2))


def choose_monitored(free_rmids: int, wanted: Iterable[Watched]) -> Sequence[str]:
    """Who is monitored when RMIDs run out: classes first, then guests of higher priority, in that order.

    ``free_rmids`` are those that no group has yet, or that monitoring groups of ours have.
    """
    chosen = []
    order = sorted(wanted, key=lambda one: (not one.is_class, -one.priority, not one.monitored, one.name))
    for one in order:
        if not one.own_group:
            if free_rmids <= 0:
                continue
            free_rmids -= 1
        chosen.append(one.name)
    return chosen


def monitoring_changes(
    present: Present, wanted: Mapping[str, str], ours: Callable[[str], bool]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The monitoring groups to remove and those to make, as paths; removing first frees RMIDs.

    ``wanted`` is the control group of each monitoring group. Groups whose names are not ``ours`` stay.
    """
    there = {(group.name, name) for group in present.groups.values() for name in group.monitoring_groups}
    should = {(group, name) for name, group in wanted.items()}
    stale = sorted(one for one in there - should if ours(one[1]))
    missing = sorted(one for one in should - there if one[0] in present.groups)
    return tuple(monitoring_group(*one) for one in stale), tuple(monitoring_group(*one) for one in missing)
