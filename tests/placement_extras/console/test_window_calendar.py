"""Tests of the calendar: rows of hosts, bars of windows and claims that end, and free room over time."""

import uuid
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.test import Client

from placement.read_model.provider import Provider
from placement.store.time_profile import TimedAmount, TimeWindow
from placement_extras.console.window_calendar import DAY, CalendarQuestion, calendar_host, wanted_of
from tests.placement.builders import make_provider
from tests.placement.running import Admin
from tests.placement_extras.console import world
from tests.placement_extras.console.pages import READER, read_page

ROOT = Provider(1, str(uuid.uuid4()), "h-1", 0, None, 1, 0.0, {}, {}, frozenset(), frozenset())
WEEK = CalendarQuestion("VCPU", 0.0)


def amount(consumer: str, used: int, begin: float, end: float, *, has_begun: bool = False) -> TimedAmount:
    window = TimeWindow(begin * DAY, end * DAY)
    return TimedAmount(consumer, ROOT.uuid, "VCPU", used, window, has_begun)


def test_free_room_is_that_of_the_busiest_instant_of_the_shown_time() -> None:
    # a guest without an end uses 2, a begun claim 1, and windows need 4 and 6 at different times: 2 + 1 + 5
    some = [amount("a", 4, 1, 2), amount("b", 6, 2, 3), amount("c", 1, 0, 1, has_begun=True)]
    row = calendar_host(ROOT, (8, 16), some, 5, {}, WEEK)
    assert row.least_free == 8
    assert [step.used for step in row.steps] == [3, 6, 8, 2]
    assert [(bar.consumer, bar.lane) for bar in row.bars] == [("c", 0), ("a", 0), ("b", 0)]


def test_a_window_has_a_bar_of_its_own_for_what_a_claim_gives_back() -> None:
    back = replace(amount("window", 4, 2, 5), is_return=True)
    some = [amount("window", 1, 0, 5, has_begun=True), amount("claim", 4, 0, 2, has_begun=True), back]
    row = calendar_host(ROOT, (5, 16), some, 0, {}, WEEK)
    assert [(bar.consumer, bar.used) for bar in row.bars] == [("claim", 4), ("window", 1), ("window", 4)]
    assert [step.used for step in row.steps] == [5, 0]


def test_only_bars_of_the_shown_time_and_project_are_drawn() -> None:
    some = [amount("a", 1, 1, 9), amount("b", 1, 7, 8), amount("c", 1, 2, 3)]
    projects = {"a": "red", "b": "red", "c": "blue"}
    row = calendar_host(ROOT, (1, 4), some, 1, projects, WEEK)
    assert [(bar.consumer, bar.lane) for bar in row.bars] == [("a", 0), ("c", 1)]
    assert row.bars[0].left + row.bars[0].width == pytest.approx(1)
    only = calendar_host(ROOT, (1, 4), some, 1, projects, CalendarQuestion("VCPU", 0.0, project="blue"))
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
    row = calendar_host(ROOT, (2 + begun, 20), amounts, 0, {}, WEEK)
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


def test_bars_beyond_the_maximum_are_counted() -> None:
    some = [amount(f"{number:03}", 1, 0, 1) for number in range(70)]
    row = calendar_host(ROOT, (70, 100), some, 70, {}, WEEK)
    assert (len(row.bars), row.more_bars) == (60, 10)


def test_the_number_of_steps_is_bounded_and_none_hides_the_busiest_instant() -> None:
    second = 1 / 86_400
    some = [
        amount(str(number), 1 + number % 7, number * second, (number + 1) * second) for number in range(3000)
    ]
    some.append(amount("all", 1, 0, 7))
    row = calendar_host(ROOT, (8, 16), some, 8, {}, WEEK)
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


def test_only_visitors_that_see_all_consumers_see_the_calendar(client: Client) -> None:
    assert client.get("/console/calendar", headers=READER).status_code == 403


def test_many_hosts_are_shown_page_by_page(client: Client, app: Any) -> None:
    for number in range(21):
        make_provider(Admin(app), f"many-{number}", VCPU=1)
    first = read_page(client, "/console/calendar?name=many&resource_class=VCPU")
    assert "Page 1 of 2" in first
    assert "many-20" not in first
    assert "many-20" in read_page(client, "/console/calendar?name=many&resource_class=VCPU&page=2")
