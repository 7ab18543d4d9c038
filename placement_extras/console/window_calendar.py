"""The page ``/console/calendar``: windows, claims with an end time, and the free amounts of hosts over time.

A page shows at most 20 hosts, and reads only the windows of these hosts from the database.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final

import sqlalchemy as sa
from flask import Blueprint, render_template, request, url_for

from placement.db.clock import server_time
from placement.policies import ext, rest
from placement.read_model.provider import Provider
from placement.store.holders import find_projects
from placement.store.reservations import list_reservations, reserved_amounts
from placement.store.time_profile import TimedAmount, TimeWindow
from placement.store.time_schedule import TimeSchedule, read_schedule
from placement.store.time_skyline import TimeSkyline
from placement_extras.console import fleet, page_request
from placement_extras.console.fleet import HostFilter
from placement_extras.console.host import class_order
from placement_extras.console.page_request import SEE_HOSTS, ListPage, PageRequest, console_page

blueprint = Blueprint("window_calendar", __name__)
SEE_CALENDAR: Final = (
    *SEE_HOSTS,
    rest.LIST_PROVIDER_ALLOCATIONS,
    rest.LIST_ALLOCATIONS,
    ext.LIST_RESERVATIONS,
)
"""The policy rules that the REST API requires of a client that reads the consumers, times and amounts of the
page.
"""

DAY: Final = 86_400.0
SPANS: Final[Mapping[int, int]] = {1: 4, 7: 7, 28: 4, 84: 6}
"""The numbers of days that the page can show, each with the number of columns of the page."""
_DEFAULT_SPAN: Final = 7
_HOSTS_PER_PAGE: Final = 20
# this share is about a pixel; shorter steps would only make a page with thousands of windows larger
_LEAST_STEP: Final = 1 / 1000
"""Steps of usage that are shorter than this share of the shown time are joined with adjacent short steps."""
_MAX_BARS: Final = 60
"""Maximum number of windows and claims that the page draws for a host."""
_MAX_OF_PROJECT: Final = 1000
"""Maximum number of reservations of a project that the page reads to find the hosts of the project."""
_COLOURS: Final = 6
_MAX_AHEAD_DAYS: Final = 366


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

    @property
    def shown_time(self) -> TimeWindow:
        """The time that the page shows."""
        return TimeWindow(self.start, self.start + self.days * DAY)


@dataclass(frozen=True, slots=True)
class CalendarBar:
    """A window, or a claim with an end time, as a bar of a host.

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
class CalendarHost:
    """A row of the calendar. ``least_free`` is the free amount at the busiest instant of the shown time."""

    root: Provider
    capacity: int
    least_free: int
    steps: tuple[UsageStep, ...]
    bars: tuple[CalendarBar, ...]
    lanes: int
    more_bars: int


def bar_colour(project: str) -> int:
    """Return the number of the colour of a project, from 1 on."""
    return 1 + sum(project.encode()) % _COLOURS


def calendar_host(
    root: Provider,
    totals: tuple[int, int],
    amounts: Sequence[TimedAmount],
    held: int,
    projects: Mapping[str, str],
    wanted: CalendarQuestion,
) -> CalendarHost:
    """Return a row of the calendar.

    :param totals: the used amount of the host, which includes the holds, and the capacity of the host.
    :param amounts: the timed amounts of the host, of one resource class.
    :param held: the sum of the holds of the host. A hold keeps room free for windows.
    :param projects: the project of each consumer.
    """
    used, capacity = totals
    begun = sum(each.used for each in amounts if each.has_begun)
    # holds are subtracted, because the page shows the windows for which they keep room
    endless = max(0, used - held - begun)
    shown = wanted.shown_time
    inside = [
        each for each in amounts if each.starts_at < shown.ends_at and each.window.ends_at > shown.starts_at
    ]
    skyline = TimeSkyline.from_amounts(inside)
    bars, lanes, more = _make_bars(inside, projects, wanted)
    return CalendarHost(
        root,
        capacity,
        max(0, capacity - endless - skyline.largest_sum(shown)),
        tuple(_usage_steps(skyline, endless, shown)),
        bars,
        lanes,
        more,
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
    for (consumer, _), some in ordered[:_MAX_BARS]:
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
    return tuple(bars), len(lane_ends), max(0, len(ordered) - _MAX_BARS)


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
    name, aggregate, project, resource_class = (
        page_request.text_of(arguments, each) for each in ("name", "aggregate", "project", "resource_class")
    )
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
        resource_class, start, days, name, aggregate, project, page_request.number_of(arguments)
    )


@console_page(blueprint, "/console/calendar", *SEE_CALENDAR)
def show_calendar(visit: PageRequest) -> str:
    """Show windows, claims with an end time, and the free amounts of hosts over time."""
    with visit.service.database.read() as conn:
        now = server_time(conn)
        project = page_request.text_of(request.args, "project")
        reserved: list[Any] = []
        if project:
            some = list_reservations(conn, project, None, None, _MAX_OF_PROJECT)
            amounts = reserved_amounts(conn, some)
            reserved = [*amounts.held, *amounts.claimed]
    with visit.pinned_model() as (snapshot, _):
        classes, _, aggregates = fleet.filter_choices(snapshot, 250)
        classes.sort(key=class_order)
        wanted = wanted_of(request.args, classes, now)
        trees, sums = snapshot.whole_trees(), snapshot.sums_of(wanted.resource_class)
        filters = HostFilter(wanted.name, wanted.resource_class, "", wanted.aggregate)
        roots = fleet.list_roots(snapshot, filters)
        if project:
            of_project = {
                found.root_id
                for uuid in {each.provider for each in reserved}
                if (found := snapshot.get(uuid)) is not None
            }
            roots = [root for root in roots if root in of_project]
        page = page_request.cut_page(roots, wanted.page, _HOSTS_PER_PAGE)
        members = {root: [each.uuid for each in trees[root].members] for root in page.rows}
        shown = {root: (trees[root].root, sums.get(root, (0, 0))) for root in page.rows}
    providers = [uuid for each in members.values() for uuid in each]
    with visit.service.database.read() as conn:
        schedule, projects = _read_windows(conn, providers, wanted.resource_class)
    by_provider: dict[str, list[TimedAmount]] = defaultdict(list)
    for amount in schedule.amounts:
        by_provider[amount.provider].append(amount)
    held = {provider: used for (provider, name), used in schedule.holds if name == wanted.resource_class}
    rows = [
        calendar_host(
            *shown[root],
            [each for uuid in members[root] for each in by_provider[uuid]],
            sum(held.get(uuid, 0) for uuid in members[root]),
            projects,
            wanted,
        )
        for root in page.rows
    ]

    def page_address(**changes: Any) -> str:
        values: dict[str, Any] = {
            "resource_class": wanted.resource_class,
            "from": _day_text(wanted.start),
            "days": wanted.days,
            "name": wanted.name,
            "aggregate": wanted.aggregate,
            "project": wanted.project,
            "page": page.page,
        } | changes
        return url_for("window_calendar.show_calendar", **{key: each for key, each in values.items() if each})

    return render_template(
        "calendar.html",
        wanted=wanted,
        hosts=ListPage(tuple(rows), page.page, page.pages, page.total),
        labels=column_labels(wanted),
        spans=SPANS,
        classes=classes,
        aggregates=aggregates,
        now_share=(now - wanted.start) / (wanted.days * DAY),
        first_day=_day_text(wanted.start),
        earlier=None
        if wanted.start <= now
        else page_address(**{"from": _day_text(wanted.start - wanted.days * DAY)}),
        later=page_address(**{"from": _day_text(wanted.shown_time.ends_at)}),
        address=lambda number: page_address(page=number),
    )


def _day_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def _read_windows(
    conn: sa.Connection, providers: Sequence[str], resource_class: str
) -> tuple[TimeSchedule, dict[str, str]]:
    """Return the timed amounts and holds of these providers, and the projects of the consumers."""
    schedule = read_schedule(conn, of_providers=providers)
    amounts = [each for each in schedule.amounts if each.resource_class == resource_class]
    projects = find_projects(conn, {each.consumer for each in amounts})
    return TimeSchedule(schedule.now, amounts, schedule.holds), projects
