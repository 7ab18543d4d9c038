"""Has the query of ``GET /ext/v1/time_events``, and its parser."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from placement.exceptions import InvalidRequest
from placement.microversion import Microversion
from placement.schemas.base import StrictSchema, StringField
from placement.schemas.claim import TIME_FORM, TIME_MEANING, parse_time
from placement.schemas.terms import PageLimit, Params, load_query
from placement.store.time_events import EventInterval, EventPosition, TimeEventKind
from placement.store.time_profile import iso_time

MAX_INTERVAL: Final = 7 * 86_400.0
"""The maximum length of an interval, and of the time of notice, in seconds."""
DEFAULT_NOTICE: Final = 3600
"""The default number of seconds between an announcement and the announced time."""


class _EventsQuery(StrictSchema):
    """The parameters of ``GET /ext/v1/time_events``."""

    since = StringField(required=True, pattern=TIME_FORM, meaning=TIME_MEANING)
    until = StringField(pattern=TIME_FORM, meaning=TIME_MEANING)
    project_id = StringField(min_length=1, max_length=255)
    notice = StringField(
        pattern="^([0-9]{1,5}|[1-5][0-9]{5}|60[0-3][0-9]{3}|604[0-7][0-9]{2}|604800)$",
        meaning="a number of seconds from 0 to 604800",
    )
    limit = PageLimit()
    marker = StringField(
        pattern=rf"^[0-9]{{1,12}}(\.[0-9]{{1,17}})?_({'|'.join(TimeEventKind)})_[0-9a-f-]{{36}}$",
        meaning="the marker of a link to the next page",
    )


@dataclass(frozen=True, slots=True)
class EventsPage:
    """A requested page of events.

    The page has at most ``limit`` events from ``since`` to ``until``. If ``until`` is None, the interval ends
    at the present. ``after`` is the position of the last event before the page.
    """

    since: float
    until: float | None
    project_id: str | None
    notice: int
    after: EventPosition | None
    limit: int

    def interval_at(self, now: float, project_id: str | None) -> EventInterval:
        """Return the interval of the events of a project, at the current time ``now``.

        :raises InvalidRequest: the interval is too long.
        """
        # the end has whole milliseconds, because answers show them exactly; it is not before the start,
        # because the clock can be behind the clock of an earlier request
        until = max(self.since, int(now * 1000) / 1000) if self.until is None else self.until
        if until - self.since > MAX_INTERVAL:
            raise InvalidRequest(
                f"An interval has at most {MAX_INTERVAL / 86_400:.0f} days: give an until of at most"
                f" {iso_time(self.since + MAX_INTERVAL)}, or a later since."
            )
        return EventInterval(self.since, until, self.notice, project_id)


def parse_events(params: Params, version: Microversion) -> EventsPage:
    """Parse the query string of ``GET /ext/v1/time_events``; raise InvalidRequest if it is invalid."""
    values: Mapping[str, Any] = load_query(_EventsQuery, params, version)
    since = parse_time(values["since"], "since")
    until = parse_time(values["until"], "until") if "until" in values else None
    if until is not None and until < since:
        raise InvalidRequest("until has to be at or after since.")
    after = None
    if "marker" in values:
        # the marker is split at its ends, because the name of a kind also has an underscore
        time, kind_and_consumer = values["marker"].split("_", 1)
        kind, consumer = kind_and_consumer.rsplit("_", 1)
        after = EventPosition(float(time), TimeEventKind(kind), consumer)
    return EventsPage(
        since,
        until,
        values.get("project_id"),
        int(values.get("notice", DEFAULT_NOTICE)),
        after,
        values["limit"],
    )
