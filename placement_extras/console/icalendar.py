"""The feed ``/console/calendar.ics``: a project's windows as iCalendar (RFC 5545), for calendar programs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from flask import Blueprint, Response, request

from placement.db.clock import server_time
from placement.exceptions import InvalidRequest, NotFound
from placement_extras.console import page_request
from placement_extras.console.page_request import PageRequest, ask_api, console_page

blueprint = Blueprint("icalendar", __name__)

_PER_ANSWER: Final = 1000
_MAX_ANSWERS: Final = 5
"""Maximum number of requests for reservations that one feed sends to the API."""
_MAX_OCTETS: Final = 75
"""Maximum number of octets in a line, without the line end, by RFC 5545 section 3.1."""
# by RFC 5545 section 3.3.11, tab and line feed are the only control characters in a text. Some programs treat
# U+0085, U+2028 and U+2029 as ends of lines, and would read the text after them as a new property.
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def escape_text(text: str) -> str:
    """Escape a text as a value of the type TEXT (RFC 5545, section 3.3.11)."""
    text = _CONTROLS.sub("", text.replace("\r\n", "\n"))
    return text.replace("\\", "\\\\").replace(";", "\\;").replace(",", "\\,").replace("\n", "\\n")


def fold_line(line: str) -> str:
    """Split a line into lines of at most 75 octets of UTF-8. Each line but the first begins with a blank."""
    parts, part, size = [], "", 0
    for character in line:
        octets = len(character.encode())
        if size + octets > _MAX_OCTETS:
            parts.append(part)
            # the blank at the beginning is one of the 75 octets
            part, size = " ", 1
        part, size = part + character, size + octets
    return "\r\n".join([*parts, part]) + "\r\n"


def calendar_text(reservations: Iterable[Mapping[str, Any]], project: str, now: float) -> str:
    """Return a calendar with an event for each window; reservations without a start are left out.

    :param reservations: documents of ``GET /ext/v1/reservations``.
    :param now: the time of the database, in seconds since 1970.
    """
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//placement//reservations//EN"]
    lines += [f"X-WR-CALNAME:{escape_text(f'Windows of {project}')}"]
    for each in reservations:
        if each["starts_at"] is not None:
            lines += _event_lines(each, now)
    return "".join(map(fold_line, [*lines, "END:VCALENDAR"]))


def _event_lines(reservation: Mapping[str, Any], now: float) -> Iterator[str]:
    amounts: Counter[str] = Counter()
    for held in reservation["allocations"].values():
        amounts.update(held["resources"])
    summary = ", ".join(f"{amount} {name}" for name, amount in sorted(amounts.items()))
    description = "\n".join(
        [f"Reservation for {reservation['user_id']}, on", *sorted(reservation["allocations"])]
    )
    yield "BEGIN:VEVENT"
    yield f"UID:{reservation['uuid']}"
    yield f"DTSTAMP:{_utc_form(datetime.fromtimestamp(now, UTC))}"
    yield f"DTSTART:{_utc_form(datetime.fromisoformat(reservation['starts_at']))}"
    yield f"DTEND:{_utc_form(datetime.fromisoformat(reservation['expires_at']))}"
    # calendar programs show the version of an event with the highest SEQUENCE
    yield f"SEQUENCE:{reservation['generation']}"
    yield f"SUMMARY:{escape_text(summary)}"
    yield f"DESCRIPTION:{escape_text(description)}"
    yield "END:VEVENT"


def _utc_form(time: datetime) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ")


@console_page(blueprint, "/console/calendar.ics")
def feed_windows(visit: PageRequest) -> Response:
    """Return the windows of a project as a calendar, for visitors with the right to list its reservations."""
    project = page_request.text_of(request.args, "project") or visit.visitor.project_id
    if not project:
        raise NotFound("You have not signed in for a project.")
    found: list[Mapping[str, Any]] = []
    asked = {"project_id": project, "limit": str(_PER_ANSWER)}
    for _ in range(_MAX_ANSWERS):
        answer = ask_api("GET", "/ext/v1/reservations", asked)
        found += answer["reservations"]
        if "links" not in answer:
            break
        asked["marker"] = found[-1]["uuid"]
    else:
        # an incomplete feed would look like a complete one, so the visitor gets an error instead
        raise InvalidRequest(
            f"The project has more than {_PER_ANSWER * _MAX_ANSWERS} reservations, the maximum of a feed."
        )
    with visit.service.database.read() as conn:
        now = server_time(conn)
    return Response(calendar_text(found, project, now), content_type="text/calendar; charset=utf-8")
