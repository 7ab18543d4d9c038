"""The windows of a project as iCalendar (RFC 5545): for visitors, and at a secret address for programs."""

from __future__ import annotations

import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from flask import Blueprint, Response, current_app, request

from placement.api.context import SECRETS, RequestContext, hand_over
from placement.api.service import PlacementService
from placement.db.clock import server_time
from placement.exceptions import InvalidRequest, NotFound, Unavailable
from placement_extras.console import page_request, sessions
from placement_extras.console.page_request import PageRequest, ask_api, console_page, service_of

blueprint = Blueprint("icalendar", __name__)

_PER_ANSWER: Final = 1000
_MAX_ANSWERS: Final = 5
"""Maximum number of requests for reservations that one feed sends to the API."""
TEXTS: Final = "placement_extras.console.feed_texts"
"""The key, in the application's configuration, of the :class:`FeedTexts` of the worker."""
_KEPT_SECONDS: Final = 60.0
"""Seconds for which a worker sends the same text of a feed."""
_MAX_KEPT: Final = 8 * 1024 * 1024
"""Maximum number of characters of all texts of feeds that a worker keeps, if one text is not larger."""
_MAX_WAIT: Final = 5.0
"""Maximum number of seconds for which a request waits while the worker makes the text of another feed."""
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


def _utc_form(instant: datetime) -> str:
    return instant.strftime("%Y%m%dT%H%M%SZ")


@console_page(blueprint, "/console/calendar.ics")
def feed_windows(visit: PageRequest) -> Response:
    """Return the windows of a project as a calendar, for visitors with the right to list its reservations."""
    project = page_request.text_of(request.args, "project") or visit.visitor.project_id
    if not project:
        raise NotFound("You have not signed in for a project.")
    return _calendar_answer(_read_calendar(visit.service, project))


@blueprint.get(f"{SECRETS}<secret>.ics")
def feed_secret(secret: str) -> Response:
    """Return the windows of the project to which this secret belongs, with the rights of its readers."""
    service = service_of(request.environ)
    service.prepare_database()
    project = None
    if sessions.is_one(secret):
        with service.database.read() as conn:
            project = sessions.feed_project(conn, secret)
    # the answer is the same for a secret that never existed and for a revoked one
    if project is None:
        raise NotFound("There is no such calendar.")
    reader = RequestContext(
        project_id=project, roles=["reader"], request_id=request.environ.get("openstack.request_id")
    )
    hand_over(request.environ, reader)
    texts: FeedTexts = current_app.config[TEXTS]
    return _calendar_answer(texts.get_text(project, lambda: _read_calendar(service, project)))


class FeedTexts:
    """The last texts of feeds, so that many requests for feeds cost a worker little.

    A worker makes one text at a time, and sends each text for a minute. The addresses of feeds are known to
    programs of many users, which may ask as often as they like.
    """

    def __init__(self) -> None:
        self._making = threading.Lock()
        self._texts: dict[str, tuple[float, str]] = {}

    def get_text(self, project: str, make: Callable[[], str]) -> str:
        """Return the text of a project's feed, which is at most a minute old.

        :raises Unavailable: other texts take too long.
        """
        # a text that exists waits for no other text
        if (text := self._kept_text(project)) is not None:
            return text
        if not self._making.acquire(timeout=_MAX_WAIT):
            raise Unavailable("Other calendars are being read. Please try again.")
        try:
            # another request may have made the text meanwhile
            if (text := self._kept_text(project)) is not None:
                return text
            text = make()
            self._texts.pop(project, None)
            # texts are in the order of their times
            while self._texts and len(text) + sum(len(each) for _, each in self._texts.values()) > _MAX_KEPT:
                del self._texts[next(iter(self._texts))]
            self._texts[project] = (time.monotonic(), text)
            return text
        finally:
            self._making.release()

    def _kept_text(self, project: str) -> str | None:
        made_at, text = self._texts.get(project, (-math.inf, ""))
        return text if made_at > time.monotonic() - _KEPT_SECONDS else None


def _read_calendar(service: PlacementService, project: str) -> str:
    """Return the calendar of a project, with the rights of the caller of the current request."""
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
    with service.database.read() as conn:
        now = server_time(conn)
    return calendar_text(found, project, now)


def _calendar_answer(text: str) -> Response:
    return Response(text, content_type="text/calendar; charset=utf-8")
