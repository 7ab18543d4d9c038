"""Tests of the calendar: its rows, bars of windows and claims that end, and free room over time."""

import html
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.test import Client

from placement.store.time_profile import TimedAmount, TimeWindow
from placement.store.time_skyline import TimeSkyline
from placement_extras.console.calendar_rows import (
    DAY,
    CalendarQuestion,
    CalendarRow,
    UsageOverTime,
    calendar_row,
    host_skyline,
    wanted_of,
)
from tests.placement.api.ext.windows import booked as book_window
from tests.placement.builders import make_provider, provider_path, put_allocation
from tests.placement.running import Admin, application
from tests.placement_extras.console import world
from tests.placement_extras.console.pages import READER, read_page

HOST = str(uuid.uuid4())
WEEK = CalendarQuestion("VCPU", 0.0)
EAST, WEST = sorted(str(uuid.uuid4()) for _ in range(2))


def amount(consumer: str, used: int, begin: float, end: float, *, has_begun: bool = False) -> TimedAmount:
    window = TimeWindow(begin * DAY, end * DAY)
    return TimedAmount(consumer, HOST, "VCPU", used, window, has_begun)


def usage(used: int, capacity: int, amounts: Sequence[TimedAmount], held: int) -> UsageOverTime:
    """The usage of a host with a hold, as the read model counts it."""
    counted = held + sum(each.used for each in amounts if each.has_begun)
    return UsageOverTime.from_totals((used, capacity), TimeSkyline.from_amounts(amounts, counted))


def host_row(
    totals: tuple[int, int],
    amounts: Sequence[TimedAmount],
    held: int,
    projects: Mapping[str, str] | None = None,
    wanted: CalendarQuestion = WEEK,
) -> CalendarRow:
    return calendar_row(HOST, "h-1", [usage(*totals, amounts, held)], amounts, projects or {}, wanted)


def test_free_room_is_that_of_the_busiest_instant_of_the_shown_time() -> None:
    # a guest without an end uses 2, a begun claim 1, and windows need 4 and 6 at different times: 2 + 1 + 5
    some = [amount("a", 4, 1, 2), amount("b", 6, 2, 3), amount("c", 1, 0, 1, has_begun=True)]
    row = host_row((8, 16), some, 5)
    assert row.least_free == 8
    assert [step.used for step in row.steps] == [3, 6, 8, 2]
    assert [(bar.consumer, bar.lane) for bar in row.bars] == [("c", 0), ("a", 0), ("b", 0)]


def test_a_window_has_a_bar_of_its_own_for_what_a_claim_gives_back() -> None:
    back = replace(amount("window", 4, 2, 5), is_return=True)
    some = [amount("window", 1, 0, 5, has_begun=True), amount("claim", 4, 0, 2, has_begun=True), back]
    row = host_row((5, 16), some, 0)
    assert [(bar.consumer, bar.used) for bar in row.bars] == [("claim", 4), ("window", 1), ("window", 4)]
    assert [step.used for step in row.steps] == [5, 0]


def test_only_bars_of_the_shown_time_and_project_are_drawn() -> None:
    some = [amount("a", 1, 1, 9), amount("b", 1, 7, 8), amount("c", 1, 2, 3)]
    projects = {"a": "red", "b": "red", "c": "blue"}
    row = host_row((1, 4), some, 1, projects)
    assert [(bar.consumer, bar.lane) for bar in row.bars] == [("a", 0), ("c", 1)]
    assert row.bars[0].left + row.bars[0].width == pytest.approx(1)
    only = host_row((1, 4), some, 1, projects, CalendarQuestion("VCPU", 0.0, project="blue"))
    assert [bar.consumer for bar in only.bars] == ["c"]
    assert only.steps == row.steps


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 8), st.integers(1, 4), st.booleans()), max_size=6)
)
def test_steps_show_the_sum_at_each_hour_and_lanes_do_not_overlap(
    some: list[tuple[int, int, int, bool]],
) -> None:
    amounts = [
        amount(str(number), used, begin, begin + length, has_begun=has_begun)
        for number, (used, begin, length, has_begun) in enumerate(some)
    ]
    begun = sum(each.used for each in amounts if each.has_begun)
    row = host_row((2 + begun, 20), amounts, 0)
    for day in range(7):
        instant = (day + 0.5) / 7
        (step,) = [each for each in row.steps if each.left <= instant < each.left + each.width]
        assert step.used == 2 + sum(
            each.used for each in amounts if each.starts_at <= instant * 7 * DAY < each.window.ends_at
        )
    assert row.least_free == 20 - max(step.used for step in row.steps)
    for bar in row.bars:
        for other in row.bars:
            apart = bar.left + bar.width <= other.left + 1e-9 or other.left + other.width <= bar.left + 1e-9
            assert bar is other or bar.lane != other.lane or apart


def test_an_aggregate_has_the_free_room_of_all_its_hosts_at_the_same_time() -> None:
    first, second = [amount("a", 4, 1, 3)], [amount("b", 6, 2, 4), amount("c", 1, 0, 1, has_begun=True)]
    # the third host uses more than its capacity, which takes no room from the other hosts
    hosts = [usage(2, 8, first, 0), usage(3, 8, second, 1), usage(9, 4, [], 0)]
    row = calendar_row("rack", "rack", hosts, [*first, *second], {}, WEEK)
    assert (row.capacity, row.most_used, row.least_free) == (20, 2 + 1 + 4 + 4 + 6, 3)
    assert [step.used for step in row.steps] == [8, 11, 17, 13, 7]
    assert [(bar.consumer, bar.lane) for bar in row.bars] == [("c", 0), ("a", 0), ("b", 1)]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5), st.integers(1, 3)), max_size=8))
def test_the_skyline_of_a_host_is_the_sum_of_its_providers(some: list[tuple[int, int, int]]) -> None:
    amounts = [amount("a", used, begin, begin + length) for used, begin, length in some]
    parts = [TimeSkyline.from_amounts(amounts[at::3], counted=at) for at in range(3)]
    assert host_skyline(parts) == TimeSkyline.from_amounts(amounts, counted=3)
    assert host_skyline(parts[:1]) == parts[0]
    assert host_skyline([]) == TimeSkyline.from_amounts([])


def test_bars_beyond_the_maximum_are_counted() -> None:
    some = [amount(f"{number:03}", 1, 0, 1) for number in range(70)]
    row = host_row((70, 100), some, 70)
    assert (len(row.bars), row.more_bars) == (60, 10)


def test_the_number_of_steps_is_bounded_and_none_hides_the_busiest_instant() -> None:
    second = 1 / 86_400
    some = [
        amount(str(number), 1 + number % 7, number * second, (number + 1) * second) for number in range(3000)
    ]
    some.append(amount("all", 1, 0, 7))
    row = host_row((8, 16), some, 8)
    assert len(row.steps) <= 6
    assert row.steps[-1].left == pytest.approx(3000 * second / 7)
    assert (row.steps[0].left, row.steps[0].used, row.steps[-1].used, row.least_free) == (0, 8, 1, 8)
    for before, after in pairwise(row.steps):
        assert before.left + before.width == pytest.approx(after.left)
    assert row.steps[-1].left + row.steps[-1].width == pytest.approx(1)


@pytest.mark.parametrize(
    ("asked", "start", "days"),
    [
        ({}, 10, 7),
        ({"from": "1970-01-15", "days": "28"}, 14, 28),
        ({"from": "1969-01-01", "days": "5"}, 10, 7),
        ({"from": "9999-12-31", "days": "²"}, 376, 7),
        ({"from": "yesterday"}, 10, 7),
    ],
)
def test_impossible_times_are_replaced_by_possible_ones(asked: dict[str, str], start: int, days: int) -> None:
    wanted = wanted_of(asked, ["VCPU"], 10.5 * DAY)
    assert (wanted.start, wanted.days, wanted.resource_class) == (start * DAY, days, "VCPU")


@pytest.fixture(scope="module")
def booked(app: Any) -> dict[str, str]:
    """A host with a window of one project, and a claim of another one that ends before."""
    return world.book_windows(Admin(app))


def test_the_page_shows_windows_claims_and_free_room(client: Client, booked: dict[str, str]) -> None:
    text = read_page(client, "/console/calendar?resource_class=VCPU&name=calendar-1")
    assert "VCPU of 1 host" in text
    assert "2 of 8 always free" in text
    assert f"{booked['window']} of {world.PROJECT}: 6 from" in text
    assert f"{booked['claim']} of {world.OTHER_PROJECT}: 6 until" in text


def test_a_project_and_an_aggregate_choose_hosts(client: Client, booked: dict[str, str]) -> None:
    path = "/console/calendar?resource_class=VCPU"
    found = read_page(client, f"{path}&project={world.PROJECT}")
    assert "VCPU of 1 host" in found
    assert booked["claim"] not in found
    assert "No host passes the filters." in read_page(client, f"{path}&project=nobody")
    assert "calendar-1" not in read_page(client, f"{path}&aggregate={world.AGGREGATE}")


def cloud(file: Path, **options: Any) -> tuple[Admin, Client]:
    """Two hosts in one aggregate, one of them with a child, and a host in another aggregate; with windows."""
    app = application(f"sqlite:///{file}", console={"enabled": True}, **options)
    admin = Admin(app)
    hosts = [make_provider(admin, f"h-{number}", VCPU=8) for number in range(3)]
    make_provider(admin, "h-0-child", parent=hosts[0], VCPU=4)
    for number, host in enumerate(hosts):
        body = {"aggregates": [EAST if number < 2 else WEST], "resource_provider_generation": 1}
        assert admin("PUT", provider_path(host, "aggregates"), json=body).status_code == 200
    put_allocation(admin, {hosts[1]: {"VCPU": 3}})
    book_window(admin, 6, 24, 48, allowed_hosts=hosts[:1])
    book_window(admin, 4, 36, 60, allowed_hosts=hosts[1:2], project_id="lab")
    book_window(admin, 2, 72, 80, allowed_hosts=hosts[2:], project_id="lab")
    return admin, Client(app)


def test_aggregates_are_rows_with_the_sums_of_their_hosts(migrated_file: Path, tmp_path: Path) -> None:
    file = shutil.copy(migrated_file, tmp_path / "placement.sqlite")
    _, client = cloud(file)
    path = "/console/calendar?rows=aggregates&resource_class=VCPU"
    text = read_page(client, path)
    assert "VCPU of 2 aggregates" in text
    # 20 of all VCPU, 3 used by a guest, and 10 booked at the same time
    assert f"{EAST} 7 of 20 always free 2 windows and claims that end on {EAST}" in text
    assert f"{WEST} 6 of 8 always free 1 window or claim that ends on {WEST}" in text
    assert "rows=" not in (link := row_links(client, path)[0])
    assert "VCPU of 2 hosts" in read_page(client, link)
    # filters choose the hosts of which a row has the sum, and the bars
    assert f"{EAST} 1 of 8 always free" in read_page(client, f"{path}&name=h-1")
    assert WEST not in read_page(client, f"{path}&name=h-1").split("Later")[1]
    text = read_page(client, f"{path}&project=lab")
    assert f"{EAST} 1 of 8 always free 1 window or claim that ends on {EAST}" in text
    assert "VCPU of 1 aggregate," in read_page(client, f"{path}&aggregate={WEST}")
    assert "No aggregate passes the filters." in read_page(client, f"{path}&name=nothing")


def test_projects_are_rows_with_their_limit_as_room(migrated_file: Path, tmp_path: Path) -> None:
    file = shutil.copy(migrated_file, tmp_path / "placement.sqlite")
    _, client = cloud(file, reservations={"max_project_amounts": "lab/VCPU:7"})
    path = "/console/calendar?rows=projects&resource_class=VCPU"
    text = read_page(client, path)
    assert "VCPU of 2 projects" in text
    assert "lab 3 of 7 always free 2 windows and claims that end of lab" in text
    assert "project 6 at most, no limit 1 window or claim that ends of project" in text
    assert "VCPU of 2 hosts" in read_page(client, row_links(client, path)[0])
    # a limit is about all hosts, so some hosts have no room of a project
    assert "lab 4 at most, no limit 1 window" in read_page(client, f"{path}&name=h-1")
    assert "VCPU of 1 project," in read_page(client, f"{path}&project=lab")
    assert "There are no windows" in read_page(client, f"{path}&project=nobody")


@pytest.mark.parametrize("rows", ["aggregates", "projects"])
def test_rows_with_too_many_windows_are_left_out(
    migrated_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str
) -> None:
    _, client = cloud(shutil.copy(migrated_file, tmp_path / "placement.sqlite"))
    monkeypatch.setattr("placement_extras.console.window_calendar.MAX_CHANGES", 3)
    text = read_page(client, f"/console/calendar?rows={rows}&resource_class=VCPU")
    # the larger row is left out, and the smaller one is drawn
    assert text.count("too many windows and claims to draw this row") == 1
    assert text.count("1 window or claim that ends") == 1


def row_links(client: Client, path: str) -> list[str]:
    """Return the addresses of the titles of all rows."""
    page = client.get(path).text
    return [html.unescape(each) for each in re.findall(r'<h2><a href="([^"]*)"', page)]


def test_aggregates_and_projects_are_shown_page_by_page(
    migrated_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client = cloud(shutil.copy(migrated_file, tmp_path / "placement.sqlite"))
    monkeypatch.setattr("placement_extras.console.window_calendar._PER_PAGE", 1)
    for rows, titles in (("aggregates", sorted([EAST, WEST])), ("projects", ["lab", "project"])):
        for number, title in enumerate(titles, 1):
            text = read_page(client, f"/console/calendar?rows={rows}&resource_class=VCPU&page={number}")
            assert f"Page {number} of 2" in text
            assert f"{title} " in text.split("Later")[1]


def test_only_visitors_that_see_all_consumers_see_the_calendar(client: Client) -> None:
    for rows in ("hosts", "aggregates", "projects"):
        assert client.get(f"/console/calendar?rows={rows}", headers=READER).status_code == 403


def test_many_hosts_are_shown_page_by_page(client: Client, app: Any) -> None:
    for number in range(21):
        make_provider(Admin(app), f"many-{number}", VCPU=1)
    first = read_page(client, "/console/calendar?name=many&resource_class=VCPU")
    assert "Page 1 of 2" in first
    assert "many-20" not in first
    assert "many-20" in read_page(client, "/console/calendar?name=many&resource_class=VCPU&page=2")
