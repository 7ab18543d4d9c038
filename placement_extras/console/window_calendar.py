"""The page ``/console/calendar``: windows, claims with an end time, and free amounts over time.

The rows of a page are hosts, aggregates or projects, at most 20. For rows of hosts, the page reads only the
windows of these hosts from the database. Rows of aggregates can have all hosts of the cloud. Their usage
comes from the skylines that each worker keeps in memory, and only bars are read from the database.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from flask import Blueprint, render_template, request, url_for

from placement.db.clock import server_time
from placement.policies import ext, rest
from placement.read_model.snapshot import ModelSnapshot
from placement.store.holders import find_projects
from placement.store.reservations import list_reservations, reserved_amounts
from placement.store.time_profile import HoldKey, TimedAmount
from placement.store.time_schedule import count_timed, project_amounts, read_schedule
from placement.store.time_skyline import SkylinesByClass, TimeSkyline, make_skylines
from placement_extras.console import fleet, page_request
from placement_extras.console.calendar_rows import (
    DAY,
    MAX_BARS,
    SPANS,
    CalendarQuestion,
    CalendarRow,
    RowKind,
    UsageOverTime,
    calendar_row,
    column_labels,
    host_skyline,
    wanted_of,
)
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

_PER_PAGE: Final = 20
_MAX_OF_PROJECT: Final = 1000
"""Maximum number of reservations of a project that the page reads to find the hosts of the project."""
# a row with more of them would take the service longer than all other pages of the console
MAX_CHANGES: Final = 100_000
"""Maximum number of changes of usage that all rows of a page sum up; each window has two of them."""


@dataclass(frozen=True, slots=True)
class ReadWindows:
    """The timed amounts of one resource class and the holds by provider, and the projects of consumers."""

    amounts: Mapping[str, Sequence[TimedAmount]]
    holds: Mapping[str, tuple[HoldKey, int]]
    projects: Mapping[str, str]

    def amounts_of(self, providers: Iterable[str]) -> list[TimedAmount]:
        """Return the timed amounts of some providers."""
        return [each for uuid in providers for each in self.amounts.get(uuid, ())]

    def skyline_of(self, providers: Collection[str]) -> TimeSkyline:
        """Return the sum of the timed amounts of a host, which has these providers."""
        holds = [self.holds[uuid] for uuid in providers if uuid in self.holds]
        skylines = make_skylines(self.amounts_of(providers), holds)
        return host_skyline([each for by_class in skylines.values() for each in by_class.values()])


@console_page(blueprint, "/console/calendar", *SEE_CALENDAR)
def show_calendar(visit: PageRequest) -> str:
    """Show windows, claims with an end time, and the free amounts of hosts over time."""
    with visit.service.database.read() as conn:
        now = server_time(conn)
    with visit.pinned_model() as (snapshot, _):
        classes, _, aggregates = fleet.filter_choices(snapshot)
    classes.sort(key=class_order)
    wanted = wanted_of(request.args, classes, now)
    page = _ROWS[wanted.kind](visit, wanted)

    def page_address(**changes: Any) -> str:
        values: dict[str, Any] = {
            "rows": "" if wanted.kind is RowKind.HOSTS else wanted.kind,
            "resource_class": wanted.resource_class,
            "from": _day_text(wanted.start),
            "days": wanted.days,
            "name": wanted.name,
            "aggregate": wanted.aggregate,
            "project": wanted.project,
            "page": page.page,
        } | changes
        return url_for("window_calendar.show_calendar", **{key: each for key, each in values.items() if each})

    def row_address(key: str) -> str:
        if wanted.kind is RowKind.HOSTS:
            return url_for("hosts.show_provider", uuid=key)
        # the hosts of the row
        field = "aggregate" if wanted.kind is RowKind.AGGREGATES else "project"
        return page_address(rows="", page=0, **{field: key})

    return render_template(
        "calendar.html",
        wanted=wanted,
        kinds=RowKind,
        calendar=page,
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
        row_address=row_address,
    )


def _day_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def _host_rows(visit: PageRequest, wanted: CalendarQuestion) -> ListPage[CalendarRow]:
    reserving = _reserving_providers(visit, wanted.project)
    with visit.pinned_model() as (snapshot, _):
        trees, sums = snapshot.whole_trees(), snapshot.sums_of(wanted.resource_class)
        page = page_request.cut_page(_passing_roots(snapshot, wanted, reserving), wanted.page, _PER_PAGE)
        shown = [
            (trees[root].root, sums.get(root, (0, 0)), [each.uuid for each in trees[root].members])
            for root in page.rows
        ]
    windows = _read_windows(visit, [uuid for _, _, members in shown for uuid in members], wanted)
    rows = []
    for host, totals, members in shown:
        usage = UsageOverTime.from_totals(totals, windows.skyline_of(members))
        amounts = windows.amounts_of(members)
        rows.append(calendar_row(host.uuid, host.name, [usage], amounts, windows.projects, wanted))
    return page.with_rows(rows)


def _aggregate_rows(visit: PageRequest, wanted: CalendarQuestion) -> ListPage[CalendarRow]:
    reserving = _reserving_providers(visit, wanted.project)
    with visit.service.window_timetable.fresh_view() as timed:
        # skylines are never changed, so they can be read after the view
        skylines = timed.skylines
    with visit.pinned_model() as (snapshot, _):
        roots = _passing_roots(snapshot, wanted, reserving)
        passing = set(roots)
        # an aggregate is shown if it has a host that passes the filters
        members = {
            name: found
            for name in ([wanted.aggregate] if wanted.aggregate else sorted(snapshot.by_aggregate))
            if (found := passing.intersection(snapshot.roots_having(snapshot.by_aggregate, name).ids))
        }
        page = page_request.cut_page([*members], wanted.page, _PER_PAGE)
        shown_roots = {root for name in page.rows for root in members[name]}
        sums = snapshot.sums_of(wanted.resource_class)
        hosts = {
            root: _AggregateHost(
                sums.get(root, (0, 0)), _host_skylines(snapshot, skylines, root, wanted.resource_class)
            )
            for root in roots
            if root in shown_roots
        }
    left, drawn = MAX_CHANGES, dict[str, list[str]]()
    for name in page.rows:
        changes = sum(hosts[root].change_count for root in members[name])
        if changes <= left:
            left -= changes
            drawn[name] = [
                uuid
                for root, host in hosts.items()
                if root in members[name]
                for uuid, skyline in host.skylines.items()
                if skyline.largest_sum(wanted.shown_time)
            ]
    # each of these providers has a bar, and more bars are not drawn
    busy = {uuid for uuids in drawn.values() for uuid in uuids[:MAX_BARS]}
    windows = _read_windows(visit, busy, wanted)
    # a host can be in several aggregates
    usages = {root: hosts[root].time_usage for name in drawn for root in members[name]}
    rows = []
    for name in page.rows:
        if name not in drawn:
            rows.append(CalendarRow.left_out(name))
            continue
        here, amounts = [usages[root] for root in members[name]], windows.amounts_of(drawn[name][:MAX_BARS])
        row = calendar_row(name, name, here, amounts, windows.projects, wanted)
        rows.append(replace(row, more_providers=len(drawn[name][MAX_BARS:])))
    return page.with_rows(rows)


@dataclass(frozen=True, slots=True)
class _AggregateHost:
    """The used amount and the capacity of a host, and the skylines of its providers, by uuid."""

    totals: tuple[int, int]
    skylines: Mapping[str, TimeSkyline]

    @property
    def change_count(self) -> int:
        """The number of changes of usage."""
        return sum(len(each.times) for each in self.skylines.values())

    @property
    def time_usage(self) -> UsageOverTime:
        """The usage of the host over time."""
        return UsageOverTime.from_totals(self.totals, host_skyline([*self.skylines.values()]))


def _host_skylines(
    snapshot: ModelSnapshot, skylines: Mapping[int, SkylinesByClass], root: int, resource_class: str
) -> dict[str, TimeSkyline]:
    """Return the skylines of a host's providers, by uuid."""
    return {
        snapshot.providers[each].uuid: found
        for each in snapshot.trees[root]
        if each in skylines and (found := skylines[each].get(resource_class)) is not None
    }


def _project_rows(visit: PageRequest, wanted: CalendarQuestion) -> ListPage[CalendarRow]:
    name, limits = wanted.resource_class, visit.service.booking_limits
    some_hosts = bool(wanted.name or wanted.aggregate)
    chosen: set[str] = set()
    if some_hosts:
        with visit.pinned_model() as (snapshot, _):
            trees = snapshot.whole_trees()
            roots = _passing_roots(snapshot, wanted, None)
            chosen = {each.uuid for root in roots for each in trees[root].members}
    rows = []
    with visit.service.database.read() as conn:
        counts = count_timed(conn)
        found = [each for each in counts if wanted.project in ("", each)]
        page, left = page_request.cut_page(found, wanted.page, _PER_PAGE), MAX_CHANGES
        for project in page.rows:
            changes = 2 * counts[project]
            if changes > left:
                rows.append(CalendarRow.left_out(project))
                continue
            left -= changes
            amounts = [
                each
                for each in project_amounts(conn, project)
                if each.resource_class == name and (not some_hosts or each.provider in chosen)
            ]
            skyline = TimeSkyline.from_amounts(amounts)
            # a limit counts the amounts of all hosts
            limit = None if some_hosts else limits.amount_limit(project, name)
            usage = UsageOverTime(skyline.peak if limit is None else limit, 0, skyline)
            owners = dict.fromkeys([each.consumer for each in amounts], project)
            row = calendar_row(project, project, [usage], amounts, owners, wanted)
            rows.append(row if limit is not None else replace(row, capacity=None))
    return page.with_rows(rows)


_ROWS: Final[Mapping[RowKind, Callable[[PageRequest, CalendarQuestion], ListPage[CalendarRow]]]] = {
    RowKind.HOSTS: _host_rows,
    RowKind.AGGREGATES: _aggregate_rows,
    RowKind.PROJECTS: _project_rows,
}


def _reserving_providers(visit: PageRequest, project: str) -> set[str] | None:
    """Return the providers on which a project has reservations; None without a project."""
    if not project:
        return None
    with visit.service.database.read() as conn:
        amounts = reserved_amounts(conn, list_reservations(conn, project, None, None, _MAX_OF_PROJECT))
    return {each.provider for each in (*amounts.held, *amounts.claimed)}


def _passing_roots(
    snapshot: ModelSnapshot, wanted: CalendarQuestion, reserving: Collection[str] | None
) -> list[int]:
    """Return the roots of the hosts that pass the filters, in the order of the page."""
    roots = fleet.list_roots(snapshot, HostFilter(wanted.name, wanted.resource_class, "", wanted.aggregate))
    if reserving is None:
        return roots
    of_project = {found.root_id for uuid in reserving if (found := snapshot.get(uuid)) is not None}
    return [root for root in roots if root in of_project]


def _read_windows(visit: PageRequest, providers: Collection[str], wanted: CalendarQuestion) -> ReadWindows:
    with visit.service.database.read() as conn:
        schedule = read_schedule(conn, of_providers=providers)
        amounts = [each for each in schedule.amounts if each.resource_class == wanted.resource_class]
        projects = find_projects(conn, {each.consumer for each in amounts})
    by_provider: dict[str, list[TimedAmount]] = defaultdict(list)
    for each in amounts:
        by_provider[each.provider].append(each)
    holds = {key[0]: (key, used) for key, used in schedule.holds if key[1] == wanted.resource_class}
    return ReadWindows(by_provider, holds, projects)
