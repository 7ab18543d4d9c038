"""The bodies and the query of ``/ext/v1/reservations``."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from placement import microversion
from placement.exceptions import InvalidRequest
from placement.microversion import Microversion
from placement.schemas.allocation import allocations_field
from placement.schemas.base import (
    BooleanField,
    IntegerField,
    NumberField,
    StrictSchema,
    StringField,
    UuidField,
)
from placement.schemas.claim import (
    GROUP_MEANING,
    GROUP_NAME,
    OwnedSchema,
    end_action_field,
    parse_end_action,
    parse_order,
    parse_time,
    time_field,
)
from placement.schemas.joint_claims import JointSchema, parse_joint
from placement.schemas.request_form import RequestForms
from placement.schemas.terms import Params, load_query, since_version
from placement.search.claims.claim import WantedClaim
from placement.store.consumers import ConsumerOwnership
from placement.store.reservation_changes import ReservationChange, ReservationEnd
from placement.store.reservations import TYPE, ReservationState
from placement.store.time_profile import AT_ONCE, TimeWindow
from placement.store.window_history import PastState

MAX_SECONDS: Final = 10 * 366 * 86_400.0
"""Maximum seconds until a reservation expires, which are ten years."""
MAX_MARGIN: Final = 30 * 86_400
"""Maximum seconds of the lead and of the cleaning time of a window, which are 30 days."""
MAX_PAGE: Final = 1000
"""Maximum number of reservations that one answer lists."""
DEGRADED: Final = "degraded"
"""The filter that selects reservations, of any state, with amounts that their providers can no longer give.
"""


_STATES: Final = (*ReservationState, DEGRADED, *PastState)
"""The states by which a list of reservations can be filtered."""


class _EndingSchema(StrictSchema):
    """The expiry of a reservation, in one of two fields, and the action at the end time of its claims."""

    on_end = end_action_field()
    expires_at = time_field()
    expires_in = NumberField(0, MAX_SECONDS, load_default=None, allow_none=False)


class ReservationCreation(_EndingSchema, OwnedSchema, JointSchema):
    """The body of ``POST /ext/v1/reservations``: queries, flavors or a host, with owner and expiry."""

    uuid = UuidField(load_default=None, allow_none=False)
    starts_at = time_field()
    lead_time = IntegerField(0, MAX_MARGIN, load_default=0)
    cleaning_time = IntegerField(0, MAX_MARGIN, load_default=0)
    maintenance_of = UuidField(load_default=None, allow_none=False)
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

    project_id = StringField(min_length=1, max_length=255, metadata=since_version(microversion.INITIAL))
    group = StringField(min_length=1, max_length=255, metadata=since_version(microversion.INITIAL))
    limit = StringField(
        pattern="^[1-9][0-9]{0,3}$",
        meaning="a number from 1 to 9999",
        metadata=since_version(microversion.INITIAL),
    )
    marker = UuidField(metadata=since_version(microversion.INITIAL))
    state = StringField(
        pattern=f"^({'|'.join(_STATES)})$",
        meaning=f"one of {', '.join(_STATES)}",
        metadata=since_version(microversion.INITIAL),
    )


class _LimitsQuery(StrictSchema):
    """The parameters of ``GET /ext/v1/reservation_limits``."""

    project_id = StringField(min_length=1, max_length=255, metadata=since_version(microversion.INITIAL))


def parse_limits(params: Params, version: Microversion) -> str | None:
    """Return the project that a query string of ``GET /ext/v1/reservation_limits`` names, or None.

    :raises InvalidRequest: the query string is wrong; the message names the error.
    """
    project_id: str | None = load_query(_LimitsQuery, params, version).get("project_id")
    return project_id


@dataclass(frozen=True, slots=True)
class ReservationsPage:
    """The filters and the page of a list of reservations; None means no filter."""

    project_id: str | None = None
    group: str | None = None
    marker: str | None = None
    state: str | None = None
    limit: int = MAX_PAGE

    def has_state(self, document: Mapping[str, Any]) -> bool:
        """Return whether the reservation in a document has the wanted state."""
        if self.state == DEGRADED:
            # a failed reservation has causes, too, but nothing is left of it
            return bool(document["degraded"]) and document["state"] != ReservationState.FAILED
        return self.state in (None, document["state"])


def parse_list(params: Params, version: Microversion) -> ReservationsPage:
    """Parse the query string of ``GET /ext/v1/reservations``.

    :raises InvalidRequest: the query string is wrong; the message names the error.
    """
    values = load_query(_ListQuery, params, version)
    # a limit above the maximum is no error, so that clients need not know the maximum
    limit = min(MAX_PAGE, int(values.pop("limit", MAX_PAGE)))
    return ReservationsPage(limit=limit, **values)


def change_of(body: dict[str, Any]) -> ReservationChange:
    """Return the change of a reservation that a body asks for.

    :raises InvalidRequest: the body asks for no change, or has both fields for the end time.
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
    """Return the expiry of a reservation that a body gives.

    :raises InvalidRequest: the body has neither or both of the two fields, or a date that does not exist.
    """
    at, seconds = body["expires_at"], body["expires_in"]
    if (at is None) == (seconds is None):
        raise InvalidRequest("One of expires_at and expires_in is needed.")
    if at is None:
        return ReservationEnd(None, seconds)
    return ReservationEnd(parse_time(at, "expires_at"), None)


def window_of(body: dict[str, Any], end: ReservationEnd) -> TimeWindow | None:
    """Return the window that a body asks for, without margins; None if the reservation begins at once.

    :raises InvalidRequest: the window has no end time, or does not end after its start, or begins before
        1970. A date does not exist, or a reservation without a start has a lead or a cleaning time.
    """
    if body["starts_at"] is None:
        if given := [name for name in ("lead_time", "cleaning_time") if body[name]]:
            raise InvalidRequest(f"A reservation with {given[0]} needs starts_at.")
        return None
    if end.at is None:
        raise InvalidRequest("A reservation with starts_at needs expires_at instead of expires_in.")
    window = TimeWindow(parse_time(body["starts_at"], "starts_at"), end.at)
    # such a time would mean the present, as in claims
    if window.starts_at - body["lead_time"] <= AT_ONCE:
        raise InvalidRequest("A window, with its lead time, cannot begin before the year 1971.")
    # margins make the held time longer, so a later check of it would not find this
    if window.ends_at <= window.starts_at:
        raise InvalidRequest("A reservation has to end after its start.")
    return window


def maintenance_window(body: dict[str, Any], window: TimeWindow | None) -> TimeWindow:
    """Return the window of a maintenance that a body asks for.

    :raises InvalidRequest: the body also has a query or a flavor, or has no start.
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
    """Return the claims of the reservation that a body describes; all have the same consumer.

    :param forms: the registered forms of requests, such as flavors.
    :param window: the time of the reservation.
    :raises InvalidRequest: a query, a flavor or a topology is wrong, or there are too many claims.
    """
    owner = ConsumerOwnership(body["project_id"], body["user_id"], TYPE)
    # with claims there is no order
    wanted = parse_joint(body, forms, uuid, owner, window, alone=["order"])
    order = parse_order(body["order"])
    return [replace(each, order=order) for each in wanted] if order else wanted
