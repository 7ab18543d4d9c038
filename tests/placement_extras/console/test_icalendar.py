"""Tests of the iCalendar feed: RFC 5545 as a reader that shares no code with the writer sees it."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.test import Client

from placement_extras.console.icalendar import calendar_text, escape_text, fold_line
from tests.placement.running import Admin
from tests.placement_extras.console import world

WINDOW = {
    "uuid": "7d9f3a52-1c64-4f0e-9a7e-5b1f0c2d8e43",
    "user_id": "ann; bob",
    "generation": 3,
    "starts_at": "2026-12-24T18:00:00.000Z",
    "expires_at": "2026-12-25T06:30:00.500Z",
    "allocations": {"h1": {"resources": {"VCPU": 4}}, "h2": {"resources": {"VCPU": 2, "MEMORY_MB": 512}}},
}


def unfolded(text: str) -> list[str]:
    return text.replace("\r\n ", "").split("\r\n")[:-1]


def unescaped(value: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] in "nN" else found[1], value)


@given(st.text())
def test_lines_have_at_most_75_octets_and_unfold_to_the_same_text(text: str) -> None:
    folded = fold_line(f"SUMMARY:{escape_text(text)}")
    lines = folded.split("\r\n")
    assert lines.pop() == ""
    assert max(len(line.encode()) for line in lines) <= 75
    ((_, value),) = [line.split(":", 1) for line in unfolded(folded)]
    assert len(unfolded(folded)[0].splitlines()) == 1
    kept = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]", "", text.replace("\r\n", "\n"))
    assert unescaped(value) == kept


def test_a_window_is_an_event_in_utc() -> None:
    lines = unfolded(calendar_text([WINDOW, WINDOW | {"starts_at": None}], "web, shop", 1_700_000_000.0))
    assert lines == [
        "BEGIN:VCALENDAR",
        "VERSION:2.0",
        "PRODID:-//placement//reservations//EN",
        "X-WR-CALNAME:Windows of web\\, shop",
        "BEGIN:VEVENT",
        "UID:7d9f3a52-1c64-4f0e-9a7e-5b1f0c2d8e43",
        "DTSTAMP:20231114T221320Z",
        "DTSTART:20261224T180000Z",
        "DTEND:20261225T063000Z",
        "SEQUENCE:3",
        "SUMMARY:512 MEMORY_MB\\, 6 VCPU",
        "DESCRIPTION:Reservation for ann\\; bob\\, on\\nh1\\nh2",
        "END:VEVENT",
        "END:VCALENDAR",
    ]


def test_the_feed_has_the_windows_of_a_project(client: Client, app: Any) -> None:
    windows = world.book_windows(Admin(app))
    answer = client.get(f"/console/calendar.ics?project={world.PROJECT}")
    assert answer.content_type == "text/calendar; charset=utf-8"
    assert f"UID:{windows['window']}" in unfolded(answer.text)
    assert "BEGIN:VEVENT" not in client.get("/console/calendar.ics?project=nobody").text


@pytest.mark.parametrize(("project", "status"), [("mine", 200), (world.PROJECT, 403)])
def test_a_reader_gets_the_feed_of_its_own_project_only(client: Client, project: str, status: int) -> None:
    headers = {"X-Auth-Token": "ann:mine", "X-Roles": "reader,member"}
    answer = client.get(f"/console/calendar.ics?project={project}", headers=headers)
    assert answer.status_code == status
    assert client.get("/console/calendar.ics", headers=headers).status_code == 200
