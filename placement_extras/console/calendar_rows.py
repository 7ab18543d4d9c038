"""Rows of the calendar: windows, claims with an end time, and free amounts over time.

Pure functions compute the row of a host, of an aggregate or of a project from timed amounts.

Only :mod:`placement_extras.console.window_calendar` uses this module. That module reads the amounts and shows
the page; this one has no access to a database.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import pairwise
from typing import Final

from placement.store.time_profile import TimedAmount, TimeWindow
from placement.store.time_skyline import NO_SKYLINE, TimeSkyline
from placement_extras.console import page_request

DAY: Final = 86_400.0
SPANS: Final[Mapping[int, int]] = {1: 4, 7: 7, 28: 4, 84: 6}
"""The numbers of days that the page can show, each with the number of columns of the page."""
_DEFAULT_SPAN: Final = 7
# this share is about a pixel; shorter steps would only make a page with thousands of windows larger
_LEAST_STEP: Final = 1 / 1000
"""Steps of usage that are shorter than this share of the shown time are joined with adjacent short steps."""
MAX_BARS: Final = 60
"""Maximum number of windows and claims that the page draws in a row."""
_COLOURS: Final = 6
_MAX_AHEAD_DAYS: Final = 366


class RowKind(StrEnum):
    """The things that the rows of the calendar stand for."""

    HOSTS = "hosts"
    AGGREGATES = "aggregates"
    PROJECTS = "projects"


@dataclass(frozen=True, slots=True)
class CalendarQuestion:
    """The filters of the page; an empty field filters nothing. ``start`` is in seconds since 1970."""

    resource_class: str
    start: float
    days: int = _DEFAULT_SPAN
    name: str = ""
    aggregate: str = ""
    project: str = ""
    page: int = 1
    kind: RowKind = RowKind.HOSTS

    @property
    def shown_time(self) -> TimeWindow:
        """The time that the page shows."""
        return TimeWindow(self.start, self.start + self.days * DAY)


@dataclass(frozen=True, slots=True)
class CalendarBar:
    """A window, or a claim with an end time, as a bar of a row.

    ``left`` and ``width`` are shares of the shown time.

    ``lane`` is the line of the bar, from 0 on. Bars on the same line do not overlap. For a claim,
    ``window.starts_at`` is 0.
    """

    consumer: str
    project: str
    used: int
    window: TimeWindow
    has_begun: bool
    left: float
    width: float
    lane: int
    colour: int


@dataclass(frozen=True, slots=True)
class UsageStep:
    """A part of the shown time with a constant usage. ``left`` and ``width`` are shares of the shown time."""

    left: float
    width: float
    used: int


@dataclass(frozen=True, slots=True)
class UsageOverTime:
    """The capacity of a host, the amount that is used without an end, and the sum of the timed amounts."""

    capacity: int
    endless: int
    skyline: TimeSkyline = NO_SKYLINE

    @classmethod
    def from_totals(cls, totals: tuple[int, int], skyline: TimeSkyline = NO_SKYLINE) -> UsageOverTime:
        """Return the usage of a host.

        :param totals: the used amount, which includes begun timed amounts and holds, and the capacity.
        """
        used, capacity = totals
        # holds are subtracted, because the page shows the windows for which they keep room
        return cls(capacity, max(0, used - skyline.counted), skyline)


@dataclass(frozen=True, slots=True)
class CalendarRow:
    """A row of the calendar; ``key`` identifies its host, aggregate or project.

    ``least_free`` is the free amount at the busiest instant of the shown time, and ``most_used`` the used and
    booked amount at this instant. A project without a limit has no ``capacity``. The bars do not show the
    windows and claims of ``more_providers``. A row without steps is too large for the page.
    """

    key: str
    title: str
    capacity: int | None
    least_free: int
    most_used: int
    steps: tuple[UsageStep, ...]
    bars: tuple[CalendarBar, ...]
    lanes: int
    more_bars: int
    more_providers: int = 0

    @classmethod
    def left_out(cls, key: str) -> CalendarRow:
        """Return a row that is too large for the page."""
        return cls(key, key, None, 0, 0, (), (), 0, 0)

    @property
    def full_height(self) -> int:
        """The amount that fills the height of the picture."""
        return self.most_used if self.capacity is None else self.capacity


def bar_colour(project: str) -> int:
    """Return the number of the colour of a project, from 1 on."""
    return 1 + sum(project.encode()) % _COLOURS


def host_skyline(parts: Sequence[TimeSkyline]) -> TimeSkyline:
    """Return the sum of the skylines of a host's providers."""
    # most hosts have one provider of a class
    if len(parts) == 1:
        return parts[0]
    total = TimeSkyline.total_of((each, 0, each.peak) for each in parts)
    return replace(total, counted=sum(each.counted for each in parts))


def calendar_row(
    key: str,
    title: str,
    usages: Sequence[UsageOverTime],
    amounts: Iterable[TimedAmount],
    projects: Mapping[str, str],
    wanted: CalendarQuestion,
) -> CalendarRow:
    """Return a row of the calendar.

    :param usages: the usage of each host of the row.
    :param amounts: the timed amounts for the bars, of one resource class.
    :param projects: the project of each consumer.
    """
    shown = wanted.shown_time
    # a host that uses more than its capacity takes no room from the other hosts of an aggregate
    endless = sum(min(each.endless, each.capacity) for each in usages)
    skyline = TimeSkyline.total_of(
        (each.skyline, 0, max(0, each.capacity - each.endless)) for each in usages if each.skyline.times
    )
    inside = [
        each for each in amounts if each.starts_at < shown.ends_at and each.window.ends_at > shown.starts_at
    ]
    capacity, most_used = sum(each.capacity for each in usages), endless + skyline.largest_sum(shown)
    return CalendarRow(
        key,
        title,
        capacity,
        capacity - most_used,
        most_used,
        tuple(_usage_steps(skyline, endless, shown)),
        *_make_bars(inside, projects, wanted),
    )


def _usage_steps(skyline: TimeSkyline, endless: int, shown: TimeWindow) -> Iterator[UsageStep]:
    """Yield the steps of usage in the order of time.

    Adjacent short steps are joined to one step, with the largest of their amounts.
    """
    length = shown.duration_seconds
    inside = (each for each in skyline.times if shown.starts_at < each < shown.ends_at)
    first, level = shown.starts_at, 0
    for begin, end in pairwise([shown.starts_at, *inside, shown.ends_at]):
        if first < begin and end - begin >= _LEAST_STEP * length:
            yield UsageStep((first - shown.starts_at) / length, (begin - first) / length, level)
            first, level = begin, 0
        level = max(level, endless + skyline.largest_sum(TimeWindow(begin, end)))
        if end - first >= _LEAST_STEP * length or end == shown.ends_at:
            yield UsageStep((first - shown.starts_at) / length, (end - first) / length, level)
            first, level = end, 0


def _make_bars(
    amounts: Iterable[TimedAmount], projects: Mapping[str, str], wanted: CalendarQuestion
) -> tuple[tuple[CalendarBar, ...], int, int]:
    """Return the bars that start first, the number of lanes, and the number of bars left out."""
    # a claim can use the room of a window and give it back at the end of the claim; the window then has a
    # separate bar for this room
    by_bar: dict[tuple[str, float], list[TimedAmount]] = defaultdict(list)
    for each in amounts:
        if not wanted.project or projects.get(each.consumer) == wanted.project:
            by_bar[each.consumer, each.starts_at].append(each)
    ordered = sorted(by_bar.items(), key=lambda pair: (pair[1][0].starts_at, pair[0]))
    shown, bars, lane_ends = wanted.shown_time, [], list[float]()
    for (consumer, _), some in ordered[:MAX_BARS]:
        first = some[0]
        begin, end = max(first.starts_at, shown.starts_at), min(first.window.ends_at, shown.ends_at)
        lane = next((number for number, last in enumerate(lane_ends) if last <= begin), len(lane_ends))
        lane_ends[lane : lane + 1] = [end]
        project = projects.get(consumer, "")
        bars.append(
            CalendarBar(
                consumer,
                project,
                sum(each.used for each in some),
                first.window,
                first.has_begun,
                (begin - shown.starts_at) / shown.duration_seconds,
                (end - begin) / shown.duration_seconds,
                lane,
                bar_colour(project),
            )
        )
    return tuple(bars), len(lane_ends), max(0, len(ordered) - MAX_BARS)


def column_labels(wanted: CalendarQuestion) -> list[str]:
    """Return the label of each column: a date, or a time if the page shows one day."""
    columns = SPANS[wanted.days]
    form = "%H:%M" if wanted.days == 1 else "%d %b"
    step = wanted.days * DAY / columns
    return [
        datetime.fromtimestamp(wanted.start + number * step, UTC).strftime(form) for number in range(columns)
    ]


def wanted_of(arguments: Mapping[str, str], classes: Sequence[str], now: float) -> CalendarQuestion:
    """Return the filters in a query string; invalid parameters are ignored.

    :param classes: the resource classes to choose from; the first one is the default.
    """
    resource_class, kind = page_request.text_of(arguments, "resource_class"), arguments.get("rows", "")
    text, days = arguments.get("days", ""), _DEFAULT_SPAN
    if text.isascii() and text.isdigit() and int(text[:4]) in SPANS:
        days = int(text[:4])
    start = math.floor(now / DAY) * DAY
    try:
        asked = datetime.strptime(arguments.get("from", ""), "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        asked = start
    # each window begins within a year from now, and past windows are not kept
    start = min(max(asked, start), start + _MAX_AHEAD_DAYS * DAY)
    if resource_class not in classes:
        resource_class = classes[0] if classes else ""
    return CalendarQuestion(
        **page_request.field_texts(arguments, ("name", "aggregate", "project")),
        resource_class=resource_class,
        start=start,
        days=days,
        page=page_request.number_of(arguments),
        kind=RowKind(kind) if kind in list(RowKind) else RowKind.HOSTS,
    )
