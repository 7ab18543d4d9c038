"""Counters that have to be assigned: mode ``mbm_event`` of info/L3_MON/mbm_assign_mode (Linux 6.18).

There an event of a group is counted on an L3 cache only while it has one of the hardware's counters, of which
there are fewer than groups. The file ``mbm_L3_assignments`` of a group shows and changes which it has, and
``info/L3_MON/available_mbm_cntrs`` tells how many nobody has. The kernel gives counters to new groups as far
as they last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from compute_agent.resctrl.filesystem import Filesystem
from compute_agent.resctrl.monitor import LOCAL_BYTES, TOTAL_BYTES
from compute_agent.resctrl.platform import Platform
from compute_agent.resctrl.reader import inside

MODE: Final = "mbm_event"
ASSIGNMENTS: Final = "mbm_L3_assignments"
AVAILABLE: Final = "info/L3_MON/available_mbm_cntrs"

ASSIGNED, FREE = "e", "_"

Slot = tuple[int, str]
"""An L3 cache id and an event."""


@dataclass(frozen=True, slots=True)
class CounterAssignment:
    """A counter to give to an event of a group (``assign``), or to take from it."""

    group: str
    slot: Slot
    assign: bool


def is_needed(platform: Platform) -> bool:
    """Whether counters count only where they are assigned."""
    return platform.monitoring is not None and platform.monitoring.assign_mode == MODE


def read_available(files: Filesystem) -> dict[int, int]:
    """How many counters nobody has, by L3 cache id."""
    text = files.read_optional(AVAILABLE) or ""
    return {int(cache): int(count) for cache, count in re.findall(r"([0-9]+)=([0-9]+)", text)}


def read_assigned(files: Filesystem, group: str) -> frozenset[Slot]:
    """The counters that a group has; none where it is gone."""
    found = set()
    for line in (files.read_optional(inside(group, ASSIGNMENTS)) or "").splitlines():
        event, _, states = line.strip().partition(":")
        found |= {(int(cache), event) for cache in re.findall(rf"([0-9]+)={ASSIGNED}", states)}
    return frozenset(found)


def plan(
    available: Mapping[int, int], held: Mapping[str, frozenset[Slot]], order: Sequence[str]
) -> tuple[CounterAssignment, ...]:
    """What to change so that the first groups of ``order`` have counters, as far as these last.

    Total bandwidth of all comes before local bandwidth of any. ``held`` is what the groups of ``order`` have
    now; counters of others are not touched. Taking comes first, as it makes room for giving.
    """
    left = dict(available)
    for slots in held.values():
        for cache, _ in slots:
            left[cache] = left.get(cache, 0) + 1
    wanted = []
    for event in (TOTAL_BYTES, LOCAL_BYTES):
        for group in order:
            for cache in left:
                if left[cache] > 0:
                    left[cache] -= 1
                    wanted.append((group, (cache, event)))
    keep = set(wanted)
    return (
        *(
            CounterAssignment(group, slot, assign=False)
            for group in order
            for slot in sorted(held.get(group, ()))
            if (group, slot) not in keep
        ),
        *(
            CounterAssignment(group, slot, assign=True)
            for group, slot in wanted
            if slot not in held.get(group, frozenset())
        ),
    )


def change(files: Filesystem, one: CounterAssignment) -> None:
    """Carry out an assignment.

    :raises ResctrlError:
    """
    cache, event = one.slot
    state = ASSIGNED if one.assign else FREE
    files.write(inside(one.group, ASSIGNMENTS), f"{event}:{cache}={state}\n")
