"""Has the bodies and queries of reservations and of their limits, availability and time events."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from placement.db.tables import RESERVATION
from placement.exceptions import InvalidRequest
from placement.microversion import Microversion
from placement.schemas import candidates
from placement.schemas.allocation import allocations_field
from placement.schemas.base import (
    ArrayField,
    BooleanField,
    IntegerField,
    NumberField,
    ObjectField,
    StrictSchema,
    StringField,
    UuidField,
    root_field,
)
from placement.schemas.claim import (
    GROUP_MEANING,
    GROUP_NAME,
    MAX_CLAIMS,
    TIME_FORM,
    TIME_MEANING,
    HostsSchema,
    OwnedSchema,
    end_action_field,
    parse_end_action,
    parse_hosted,
    parse_order,
    parse_time,
    time_field,
)
from placement.schemas.request_form import RequestForms
from placement.schemas.terms import MAX_PAGE, PageLimit, Params, load_query
from placement.search.claims.claim import WantedClaim
from placement.search.claims.window_search import WantedTime
from placement.store.consumers import ConsumerOwnership
from placement.store.groups import ConsumerGroup, GroupPolicy
from placement.store.reservation_changes import ReservationChange, ReservationEnd
from placement.store.reservations import ReservationState
from placement.store.time_events import EventInterval, EventPosition, TimeEventKind
from placement.store.time_profile import AT_ONCE, TimeWindow, WindowMargins, iso_time
from placement.store.window_history import PastState

# the group exists only within one request, so its name does not matter
_APART: Final = ConsumerGroup("different-hosts", GroupPolicy.ANTI_AFFINITY, 1)
"""The group of the claims in a body that need different hosts."""


class _JointClaim(HostsSchema, candidates.TopologySchema):
    """One of several requests that must fit at the same time; the claim is repeated ``count`` times."""

    count = IntegerField(1, MAX_CLAIMS, load_default=1)


class JointSchema(HostsSchema, candidates.TopologySchema):
    """One request, or several requests in ``claims``."""

    claims = ArrayField(
        ObjectField(_JointClaim), min_items=1, max_items=MAX_CLAIMS, load_default=None, allow_none=False
    )
    different_hosts = BooleanField(load_default=False)


def parse_joint(
    body: dict[str, Any],
    forms: RequestForms,
    consumer: str,
    owner: ConsumerOwnership,
    window: TimeWindow | None = None,
    alone: Sequence[str] = (),
) -> list[WantedClaim]:
    """Return the claims for the requests in a body; all claims have the same new consumer.

    The repeated claims of a request with a ``count`` are the same object.

    :param forms: the registered forms of requests, such as flavors.
    :param window: the time of all claims.
    :param alone: further fields of the body that are not allowed together with ``claims``.
    :raises InvalidRequest: a query, a flavor or a topology is wrong, or there are too many claims.
    """
    if body["claims"] is None:
        if body["different_hosts"]:
            raise InvalidRequest("different_hosts needs claims: one request is on one host anyway.")
        return [replace(_parse_one(body, forms, consumer, owner), window=window)]
    if given := [name for name in ("query", *forms, *_OF_EACH) if body[name]]:
        raise InvalidRequest(f"With claims, {given[0]} is a field of each claim, and not of the body.")
    if given := [name for name in alone if body[name]]:
        raise InvalidRequest(f"With claims, {given[0]} is not possible.")
    if (count := sum(each["count"] for each in body["claims"])) > MAX_CLAIMS:
        raise InvalidRequest(
            f"At most {MAX_CLAIMS} claims are placed together; the counts add up to {count}."
        )
    group = _APART if body["different_hosts"] else None
    wanted: list[WantedClaim] = []
    for each in body["claims"]:
        one = replace(_parse_one(each, forms, consumer, owner), group=group, window=window)
        wanted += [one] * each["count"]
    return wanted


_OF_EACH: Final = ("allowed_hosts", "excluded_hosts", "topology")


def _parse_one(
    asked: dict[str, Any], forms: RequestForms, consumer: str, owner: ConsumerOwnership
) -> WantedClaim:
    wanted = parse_hosted(asked, forms, consumer, owner)
    return replace(wanted, topology=candidates.parse_topology(asked["topology"], wanted.request))


MAX_SECONDS: Final = 10 * 366 * 86_400.0
"""The maximum number of seconds until a reservation expires: ten years."""
MAX_MARGIN: Final = 30 * 86_400
"""The maximum number of seconds of the lead time, and of the cleaning time, of a window: 30 days."""
DEGRADED: Final = "degraded"
"""The filter for reservations with amounts that their providers can no longer give. Reservations that have
lost all amounts (state ``failed``) are left out.
"""


_STATES: Final = (*ReservationState, DEGRADED, *PastState)
"""The states by which a query can filter the list of reservations."""


class _EndingSchema(StrictSchema):
    """The expiry of a reservation, in one of two fields, and the action at the end time of the claims."""

    on_end = end_action_field()
    expires_at = time_field()
    expires_in = NumberField(0, MAX_SECONDS, load_default=None, allow_none=False)


class ReservationCreation(_EndingSchema, OwnedSchema, JointSchema):
    """The body of ``POST /ext/v1/reservations``: queries, flavors or a host, with an owner and an expiry."""

    uuid = UuidField(load_default=None, allow_none=False)
    starts_at = time_field()
    lead_time = IntegerField(0, MAX_MARGIN, load_default=0)
    cleaning_time = IntegerField(0, MAX_MARGIN, load_default=0)
    maintenance_of = root_field(load_default=None, allow_none=False)
    movable = BooleanField(load_default=True)
    group = StringField(
        load_default=None,
        allow_none=False,
        min_length=1,
        max_length=255,
        pattern=GROUP_NAME,
        meaning=GROUP_MEANING,
    )


class ReservationUpdate(_EndingSchema):
    """The body of ``PUT /ext/v1/reservations/{uuid}``."""

    generation = IntegerField(0, required=True)
    allocations = allocations_field(min_properties=1, load_default=None, allow_none=False)
    movable = BooleanField(load_default=None, allow_none=False)


class _ListQuery(StrictSchema):
    """The parameters of ``GET /ext/v1/reservations``."""

    project_id = StringField(min_length=1, max_length=255)
    group = StringField(min_length=1, max_length=255)
    limit = PageLimit()
    marker = UuidField()
    state = StringField(
        pattern=f"^({'|'.join(_STATES)})$",
        meaning=f"one of {', '.join(_STATES)}",
    )


@dataclass(frozen=True, slots=True)
class ReservationsPage:
    """The filters and the page of a list of reservations; a filter that is None lists all reservations."""

    project_id: str | None = None
    group: str | None = None
    marker: str | None = None
    state: str | None = None
    limit: int = MAX_PAGE

    def has_state(self, document: Mapping[str, Any]) -> bool:
        """Return whether the reservation in a document has the wanted state."""
        if self.state == DEGRADED:
            # a failed reservation also has causes, but it has lost all amounts
            return bool(document["degraded"]) and document["state"] != ReservationState.FAILED
        return self.state in (None, document["state"])


def parse_list(params: Params, version: Microversion) -> ReservationsPage:
    """Parse the query string of ``GET /ext/v1/reservations``; raise InvalidRequest if it is invalid."""
    return ReservationsPage(**load_query(_ListQuery, params, version))


def change_of(body: dict[str, Any]) -> ReservationChange:
    """Return the change of a reservation that a body asks for.

    :raises InvalidRequest: the body asks for no change, or has two fields for the end time, or has a date
        that does not exist.
    """
    has_end = body["expires_at"] is not None or body["expires_in"] is not None
    if not has_end and all(body[name] is None for name in ("allocations", "on_end", "movable")):
        raise InvalidRequest("One of expires_at, expires_in, allocations, on_end and movable is needed.")
    kept = None
    if body["allocations"] is not None:
        kept = {uuid: each["resources"] for uuid, each in body["allocations"].items()}
    end = end_of(body) if has_end else None
    return ReservationChange(end, kept, parse_end_action(body["on_end"]), body["movable"])


def end_of(body: dict[str, Any]) -> ReservationEnd:
    """Return the expiry of a reservation in a body.

    :raises InvalidRequest: the body does not have exactly one of the two fields, or the date does not exist.
    """
    at, seconds = body["expires_at"], body["expires_in"]
    if (at is None) == (seconds is None):
        raise InvalidRequest("One of expires_at and expires_in is needed.")
    if at is None:
        return ReservationEnd(None, seconds)
    return ReservationEnd(parse_time(at, "expires_at"), None)


def window_of(body: dict[str, Any], end: ReservationEnd) -> TimeWindow | None:
    """Return the window that a body asks for, without margins; None if the reservation begins at once.

    :raises InvalidRequest: the window has no end time, or does not end after its start, or does not begin
        after the start of 1970. A date does not exist, or a reservation without a start has a lead time or a
        cleaning time.
    """
    if body["starts_at"] is None:
        if given := [name for name in ("lead_time", "cleaning_time") if body[name]]:
            raise InvalidRequest(f"A reservation with {given[0]} needs starts_at.")
        return None
    if end.at is None:
        raise InvalidRequest("A reservation with starts_at needs expires_at instead of expires_in.")
    window = TimeWindow(parse_time(body["starts_at"], "starts_at"), end.at)
    # this start would mean that the reservation begins at once, as a claim does
    if window.starts_at - body["lead_time"] <= AT_ONCE:
        raise InvalidRequest("A window, with its lead time, has to begin after 1970-01-01T00:00:00Z.")
    # the margins make the held time longer, so a later check of the held time would not find this error
    if window.ends_at <= window.starts_at:
        raise InvalidRequest("A reservation has to end after its start.")
    return window


def maintenance_window(body: dict[str, Any], window: TimeWindow | None) -> TimeWindow:
    """Return the window of a maintenance that a body asks for.

    :raises InvalidRequest: the body also has a field that a reservation of a whole host cannot have, or has
        no start.
    """
    places = ("query", "flavor", "allowed_hosts", "excluded_hosts", "order", "group", "topology")
    fields = (*places, "claims", "different_hosts", "lead_time", "cleaning_time", "on_end")
    if given := [name for name in fields if body.get(name)]:
        raise InvalidRequest(f"A reservation with maintenance_of takes a whole host, without {given[0]}.")
    if window is None:
        raise InvalidRequest("A reservation with maintenance_of needs starts_at.")
    return window


def wanted_of(
    body: dict[str, Any], forms: RequestForms, uuid: str, window: TimeWindow | None
) -> list[WantedClaim]:
    """Return the claims of the reservation that a body describes; all claims have the same consumer.

    :param forms: the registered forms of requests, such as flavors.
    :param window: the time of the reservation.
    :raises InvalidRequest: a query, a flavor or a topology is wrong, or there are too many claims.
    """
    owner = ConsumerOwnership(body["project_id"], body["user_id"], RESERVATION)
    # a body with claims cannot have an order
    wanted = parse_joint(body, forms, uuid, owner, window, alone=["order"])
    order = parse_order(body["order"])
    return [replace(each, order=order) for each in wanted] if order else wanted


MAX_DURATION: Final = 10 * 366 * 86_400
"""The maximum duration of a window in seconds: ten years."""
MAX_WINDOWS: Final = 100
"""The maximum number of windows in an answer."""


class AvailabilityBody(JointSchema):
    """One or several requests for candidates, with the duration and the possible times of a window."""

    duration = IntegerField(1, MAX_DURATION, required=True)
    not_before = time_field()
    deadline = time_field()
    lead_time = IntegerField(0, MAX_MARGIN, load_default=0)
    cleaning_time = IntegerField(0, MAX_MARGIN, load_default=0)
    limit = IntegerField(1, MAX_WINDOWS, load_default=5)
    explain = BooleanField(load_default=False)


def searched_claims(body: dict[str, Any], forms: RequestForms) -> list[WantedClaim]:
    """Return the claims for the requests in a body, as of a new reservation; the claims are never written.

    :param forms: the registered forms of requests, such as flavors.
    :raises InvalidRequest: a query, a flavor or a topology is wrong, or there are too many claims.
    """
    return parse_joint(body, forms, "", ConsumerOwnership("", "", RESERVATION))


def margins_of(body: dict[str, Any]) -> WindowMargins:
    """Return the lead time and the cleaning time in a body."""
    return WindowMargins(body["lead_time"], body["cleaning_time"])


def searched_time(body: dict[str, Any]) -> WantedTime:
    """Return the time of the window that a body asks for, with the lead time and the cleaning time.

    :raises InvalidRequest: a date does not exist.
    """
    margins = margins_of(body)
    begin, end = (
        None if body[name] is None else parse_time(body[name], name) for name in ("not_before", "deadline")
    )
    return WantedTime(
        margins.lead + body["duration"] + margins.cleaning,
        None if begin is None else begin - margins.lead,
        None if end is None else end + margins.cleaning,
    )


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
