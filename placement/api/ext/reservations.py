"""Reservations and their limits, and the times at which there is room for them.

The resources are ``/ext/v1/reservations``, ``/ext/v1/reservation_limits`` and ``/ext/v1/availability``.
"""

import logging
import math
import uuid as uuids
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from flask import Blueprint, Response

from placement.api.call import ANY_PROJECT, ApiRequest, api_operation, next_links
from placement.api.context import EXT
from placement.api.ext.claims import (
    amounts_by_consumer,
    amounts_document,
    claim_context,
    place_document,
    time_or_null,
)
from placement.api.resource_providers import path_uuid
from placement.db.clock import server_time
from placement.db.database import WriteTransaction
from placement.db.tables import RESERVATION
from placement.exceptions import NoCandidate
from placement.policies import ext as rules
from placement.schemas import reservation as schemas
from placement.schemas.claim import parse_end_action
from placement.search.claims.availability import FreeWindow
from placement.search.claims.claim import HostChoice
from placement.search.claims.reserved_amounts import (
    DegradationCause,
    PromisingProviders,
    find_causes,
    has_failed,
)
from placement.search.claims.service import ClaimService
from placement.search.claims.window_room import move_away
from placement.search.claims.window_search import find_earliest, search_windows
from placement.store import reservation_changes
from placement.store import reservations as store
from placement.store.allocations import Allocation
from placement.store.consumers import ConsumerOwnership
from placement.store.maintenances import HostGuest, book_maintenance, find_guests
from placement.store.reservation_changes import ReservationEnd
from placement.store.reservations import (
    CapacityReservation,
    ReservationState,
    ReservedAmounts,
    WrittenReservation,
)
from placement.store.time_profile import EndAction, TimeWindow, WindowMargins, iso_time
from placement.store.time_schedule import project_amounts, read_schedule
from placement.store.time_skyline import SkylinesByProvider, make_skylines
from placement.store.window_history import PastState, WindowRecord, list_past

LOG = logging.getLogger(__name__)
blueprint = Blueprint("ext_reservations", __name__)

PATH: Final = f"{EXT}/reservations"
_ONE: Final = f"{PATH}/<reservation_uuid>"
# this path is not below PATH, where it would be the path of a reservation, with other methods
_LIMITS: Final = f"{EXT}/reservation_limits"
_CREATE: Final = schemas.ReservationCreation()
_UPDATE: Final = schemas.ReservationUpdate()
_AVAILABILITY: Final = schemas.AvailabilityBody()


@api_operation(blueprint, "POST", PATH, rules.RESERVE, reads_json=True, writes_json=True)
def create_reservation(call: ApiRequest) -> Response:
    """Find a candidate for each claim, and reserve the resources of all candidates until a given time.

    With ``maintenance_of``, the request has no claims, and the whole tree of this host is reserved.
    """
    body = call.parse_body(_CREATE)
    uuid = body["uuid"] or str(uuids.uuid4())
    end = schemas.end_of(body)
    window = schemas.window_of(body, end)
    if body["maintenance_of"] is not None:
        call.authorize(rules.MAINTAIN_HOST)
        time = schemas.maintenance_window(body, window)
        owner = ConsumerOwnership(body["project_id"], body["user_id"], RESERVATION)
        written = call.service.database.write(
            lambda tx: book_maintenance(tx, uuid, body["maintenance_of"], owner, time)
        )
        moved = _move_windows(call, written)
        document = {"reservation": _written_document(call, written), "preempted": [], "warnings": []}
        answer = call.json_answer(document | {"moved": moved}, status=201)
        return call.add_location(answer, f"{PATH}/{uuid}")
    margins, starts_at = schemas.margins_of(body), None
    if window is not None:
        window = margins.held_window(window)
        starts_at, end = window.starts_at, ReservationEnd(window.ends_at, None)
    wanted = schemas.wanted_of(body, call.service.request_forms, uuid, window)
    limits = call.service.booking_limits
    # a window with given hosts stays on them. A window for several claims is not moved, because a move would
    # have to keep the claims together, or apart.
    is_movable = (
        body["movable"] and window is not None and len(wanted) == 1 and not wanted[0].names_hosts_or_trees
    )
    # the transaction fills this list. If the transaction runs several times, the result of the last run
    # counts.
    made: list[WrittenReservation] = []

    on_end = parse_end_action(body["on_end"]) or EndAction.NONE

    def make_written(tx: WriteTransaction) -> None:
        made[:] = [
            reservation_changes.make_reservation(
                tx, uuid, body["group"], end, starts_at, limits, margins, on_end, is_movable=is_movable
            )
        ]

    context = claim_context(call)
    try:
        placed = ClaimService(context, wanted).claim_places(also=make_written)
    except NoCandidate as refusal:
        # a later start helps only if other windows, or claims that end, need the room at this time
        if window is not None and refusal.has_overlaps:
            earliest = find_earliest(context, wanted, window, limits)
            refusal.add_earliest_start(None if earliest is None else iso_time(earliest + margins.lead))
        raise
    (written,) = made
    # equal claims have equal warnings, which are shown once
    warnings = list(dict.fromkeys(text for each in wanted for text in each.warnings))
    moved = [consumer for each in placed for consumer in each.moved]
    if moved:
        LOG.info("The windows %s have moved, because of the reservation %s.", ", ".join(moved), uuid)
    shown: dict[str, Any] = {
        "reservation": _written_document(call, written),
        "preempted": sorted(consumer for each in placed for consumer in each.preempted),
        "moved": moved,
        "warnings": warnings,
    }
    if body["claims"] is not None:
        shown["claims"] = [place_document(each.choice) for each in placed]
    return call.add_location(call.json_answer(shown, status=201), f"{PATH}/{uuid}")


def _move_windows(call: ApiRequest, maintenance: WrittenReservation) -> list[str]:
    """Move movable windows out of the way of a maintenance, and return their uuids.

    The maintenance is written, so no error of the moves becomes the answer.
    """
    moved = list[str]()
    found = maintenance.reservation
    # the moves matter even if the client no longer waits for the answer
    context = replace(claim_context(call), check_awaited=lambda: None)
    try:
        for each in move_away(context, maintenance.amounts.held[0].provider, found.time_ahead):
            moved.append(each)
    except Exception:
        LOG.exception(
            "Some windows that overlap the maintenance %s perhaps stay on its host, and are degraded. Any PUT"
            " of the maintenance moves them.",
            found.uuid,
        )
    if moved:
        LOG.info("The windows %s have moved, because of the maintenance %s.", ", ".join(moved), found.uuid)
    return sorted(moved)


@api_operation(blueprint, "GET", PATH, None, writes_json=True)
def list_some(call: ApiRequest) -> Response:
    """List reservations in the order of their uuids.

    A caller without the right to see all projects gets the reservations of its own project.
    """
    page = schemas.parse_list(call.query_parameters, call.version)
    project_id = visible_project(call, rules.LIST_RESERVATIONS, page.project_id)
    if page.state in set(PastState):
        with call.service.database.read() as conn:
            past = list_past(conn, PastState(page.state), project_id, page.group, page.marker, page.limit + 1)
        shown = [_past_document(each, PastState(page.state)) for each in past[: page.limit]]
        return call.json_answer(_page_document(page, shown, has_more=len(past) > page.limit))
    _release_due(call)
    with call.service.database.read() as conn:
        # one reservation more than the limit of the page is read, to find out whether there is a next page
        found = store.list_reservations(conn, project_id, page.group, page.marker, page.limit + 1)
        read = found[: page.limit]
        amounts = store.reserved_amounts(conn, read)
    shown = _reservation_documents(call, read, amounts)
    # the state of a reservation depends on the clock and on providers, so the page is filtered by state after
    # it is read. So the cost of a page is limited, but it can have fewer reservations than its limit.
    return call.json_answer(_page_document(page, shown, has_more=len(found) > page.limit))


def visible_project(call: ApiRequest, rule: str, project_id: str | None) -> str | None:
    """Return the project that a list is about; None for all projects.

    If the request has no project, the list is about all projects if the policy allows this to the caller, and
    otherwise about the caller's project.

    :raises placement.exceptions.Forbidden: the policy does not allow the operation for this project.
    """
    if project_id is None:
        if call.allows_project(rule, ANY_PROJECT):
            return None
        # a caller without a project gets the list of a project that does not exist, which is empty
        project_id = call.project_id or ANY_PROJECT
    call.authorize(rule, {"project_id": project_id})
    return project_id


def _page_document(
    page: schemas.ReservationsPage, shown: Sequence[dict[str, Any]], *, has_more: bool
) -> dict[str, Any]:
    document: dict[str, Any] = {"reservations": [each for each in shown if page.has_state(each)]}
    if has_more:
        following = {
            "limit": page.limit,
            "marker": shown[-1]["uuid"],
            "project_id": page.project_id,
            "group": page.group,
            "state": page.state,
        }
        document["links"] = next_links(PATH, following)
    return document


@api_operation(blueprint, "GET", _LIMITS, None, writes_json=True)
def show_limits(call: ApiRequest) -> Response:
    """Show the limits on the reservations of a project, each with the amount that the project uses."""
    project_id = call.asked_project(rules.LIST_RESERVATIONS)
    limits = call.service.booking_limits
    with call.service.database.read() as conn:
        number, now = reservation_changes.count_living(conn, project_id), server_time(conn)
        held = project_amounts(conn, project_id) if limits.needs_amounts else []
    amounts, hours = limits.uses_of(project_id, held, now)
    shown = {
        "project_id": project_id,
        "max_duration": limits.max_duration,
        "max_ahead": limits.max_ahead,
        "reservations": {"limit": limits.max_number, "used": number},
        "amounts": {name: asdict(each) for name, each in amounts.items()},
        "hours": {name: {"limit": each.limit, "used": round(each.used, 3)} for name, each in hours.items()},
        "hours_period": limits.period,
    }
    return call.json_answer({"limits": shown})


@api_operation(blueprint, "GET", _ONE, None, writes_json=True)
def show_reservation(call: ApiRequest, reservation_uuid: str) -> Response:
    """Show a reservation; answer 404 if the policy does not allow the caller to see its project."""
    # the policy is checked before the reservation is looked up, so that a caller without any right does not
    # learn which reservations exist
    call.authorize(rules.SHOW_RESERVATION, {"project_id": call.project_id or ANY_PROJECT})
    uuid = path_uuid(reservation_uuid, store.no_reservation)
    _release_due(call)
    with call.service.database.read() as conn:
        found = store.find_reservation(conn, uuid)
        amounts = store.reserved_amounts(conn, [] if found is None else [found])
    # the status is 404 instead of 403, because 403 would show that the reservation exists
    if found is None or not call.allows_project(rules.SHOW_RESERVATION, found.project_id):
        raise store.no_reservation(uuid)
    (document,) = _reservation_documents(call, [found], amounts)
    # guests can belong to any project, so only callers with the right to see all projects get them
    if document["degraded"] and call.allows_project(rules.LIST_RESERVATIONS, ANY_PROJECT):
        with call.service.database.read() as conn:
            guests = find_guests(conn, found, {each["provider"] for each in document["degraded"]})
        document["guests"] = [_guest_document(each) for each in guests]
    return call.json_answer({"reservation": document})


@api_operation(
    blueprint,
    "PUT",
    _ONE,
    None,
    reads_json=True,
    writes_json=True,
)
def update(call: ApiRequest, reservation_uuid: str) -> Response:
    """Change the end time of a reservation or whether it can move, or give back a part of its amounts.

    After each change of a maintenance, movable windows that overlap it move away.
    """
    may_change = _project_check(call, rules.CHANGE_RESERVATION)
    known = path_uuid(reservation_uuid, store.no_reservation)
    body = call.parse_body(_UPDATE)
    change, generation = schemas.change_of(body), body["generation"]
    written = reservation_changes.change_reservation(
        call.service.database, known, generation, change, call.service.booking_limits, may_change
    )
    # a worker may have stopped between the booking and the moves, and a later end overlaps further windows
    moved = _move_windows(call, written) if written.reservation.is_maintenance else None
    # a caller can have the right to change a reservation without the right to see it
    if not call.allows_project(rules.SHOW_RESERVATION, written.reservation.project_id):
        raise store.no_reservation(known)
    shown: dict[str, Any] = {"reservation": _written_document(call, written)}
    if moved is not None:
        shown["moved"] = moved
    return call.json_answer(shown)


@api_operation(blueprint, "DELETE", _ONE, None)
def delete(call: ApiRequest, reservation_uuid: str) -> Response:
    """Delete a reservation, and release all allocations that it still has."""
    may_change = _project_check(call, rules.DELETE_RESERVATION)
    known = path_uuid(reservation_uuid, store.no_reservation)
    call.service.database.write(lambda tx: reservation_changes.delete_reservation(tx, known, may_change))
    return call.empty_answer()


def _project_check(call: ApiRequest, rule: str) -> reservation_changes.ProjectCheck:
    """Return a function that tells whether a rule allows the caller an operation on a project's reservations.

    :raises placement.exceptions.Forbidden: the rule does not even allow it for the caller's own project.
    """
    # this check comes before the reservation is looked up, so that a caller without any right does not learn
    # which reservations exist
    call.authorize(rule, {"project_id": call.project_id or ANY_PROJECT})
    return lambda project_id: call.allows_project(rule, project_id)


def _release_due(call: ApiRequest) -> None:
    """Start windows that are due. Callers then read reservations, because a start changes generations."""
    with call.service.model.fresh_view():
        pass


def _written_document(call: ApiRequest, written: WrittenReservation) -> dict[str, Any]:
    return _reservation_documents(call, [written.reservation], written.amounts)[0]


def _reservation_documents(
    call: ApiRequest, found: Sequence[CapacityReservation], reserved: ReservedAmounts
) -> list[dict[str, Any]]:
    """Return the JSON documents of reservations. A degraded reservation is shown with the causes."""
    held = reserved.held
    with call.service.model.fresh_view() as view:
        providers = PromisingProviders.from_snapshot(view.snapshot, {each.provider for each in held})
    skylines: SkylinesByProvider = {}
    # the schedule is read only for overfull providers, and in most cases there are none
    if overfull := providers.overfull_uuids(held):
        with call.service.database.read() as conn:
            schedule = read_schedule(conn, of_providers=overfull)
        skylines = make_skylines(schedule.amounts, schedule.holds)
    amounts, claimed = (amounts_by_consumer(each) for each in (held, reserved.claimed))
    documents = []
    for each in found:
        own = amounts[each.uuid]
        # a reservation for a maintenance is not degraded because its host is disabled, and does not fail
        # because of guests that have not moved yet
        usable = replace(providers, disabled=()) if each.is_maintenance else providers
        causes = find_causes(own, each.time_ahead, usable, skylines)
        state = each.state
        if causes and state is ReservationState.ACTIVE and not each.is_maintenance:
            state = ReservationState.FAILED if has_failed(own, each.now, usable, skylines) else state
        documents.append(_reservation_document(each, state, own, claimed[each.uuid], causes))
    return documents


def _past_document(window: WindowRecord, state: PastState) -> dict[str, Any]:
    usable = window.margins.usable_window(window.held)
    return {
        "uuid": window.uuid,
        "project_id": window.project_id,
        "user_id": window.user_id,
        "group": window.group,
        "generation": None,
        "starts_at": iso_time(usable.starts_at),
        "expires_at": iso_time(usable.ends_at),
        "lead_time": window.margins.lead,
        "cleaning_time": window.margins.cleaning,
        "on_end": window.on_end,
        "movable": False,
        "state": state,
        "degraded": [],
        "allocations": {},
        "claimed": {},
        "promised": window.resources,
        "ended_at": time_or_null(window.ended_at),
    }


def _guest_document(guest: HostGuest) -> dict[str, Any]:
    return {
        "consumer_uuid": guest.consumer,
        "consumer_type": guest.consumer_type,
        "project_id": guest.project_id,
        "ends_at": time_or_null(guest.ends_at),
        "has_to_move": guest.has_to_move,
    }


def _reservation_document(
    reservation: CapacityReservation,
    state: ReservationState,
    held: Sequence[Allocation],
    claimed: Sequence[Allocation],
    causes: Sequence[DegradationCause],
) -> dict[str, Any]:
    return {
        "uuid": reservation.uuid,
        "project_id": reservation.project_id,
        "user_id": reservation.user_id,
        "group": reservation.group,
        "generation": reservation.generation,
        "starts_at": None if reservation.starts_at is None else iso_time(reservation.usable.starts_at),
        "expires_at": iso_time(reservation.usable.ends_at),
        "lead_time": reservation.lead_time,
        "cleaning_time": reservation.cleaning_time,
        "on_end": reservation.on_end,
        "movable": reservation.is_movable,
        "state": state,
        "degraded": [asdict(each) for each in causes],
        "allocations": amounts_document(held),
        "claimed": amounts_document(claimed),
    }


@api_operation(
    blueprint, "POST", f"{EXT}/availability", rules.FIND_WINDOWS, reads_json=True, writes_json=True
)
def find_windows(call: ApiRequest) -> Response:
    """Find the earliest windows in which there is room for all requests together. Nothing is reserved."""
    body = call.parse_body(_AVAILABILITY)
    wanted, time = schemas.searched_claims(body, call.service.request_forms), schemas.searched_time(body)
    limits = call.service.booking_limits
    found = search_windows(claim_context(call), wanted, time, body["limit"], limits, explain=body["explain"])
    refusal = found.refusal
    return call.json_answer(
        {
            "windows": [
                {
                    **_times_document(each, time.duration, schemas.margins_of(body)),
                    **_choices_document(each.choices, are_claims=body["claims"] is not None),
                }
                for each in found.windows
            ],
            "is_complete": found.is_complete,
            "reason": None if refusal is None else refusal.detail,
            "explanation": None if refusal is None else refusal.explanation,
            # equal claims have equal warnings, which are shown once
            "warnings": list(dict.fromkeys(text for each in wanted for text in each.warnings)),
        }
    )


def _times_document(window: FreeWindow, duration: float, margins: WindowMargins) -> dict[str, Any]:
    usable = margins.usable_window(TimeWindow(window.starts_at, window.starts_at + duration))
    return {
        "starts_at": iso_time(usable.starts_at),
        "ends_at": iso_time(usable.ends_at),
        "free_until": None
        if math.isinf(window.free_until)
        else iso_time(window.free_until - margins.cleaning),
    }


def _choices_document(choices: Iterable[HostChoice], *, are_claims: bool) -> dict[str, Any]:
    documents = [place_document(each) for each in choices]
    return {"claims": documents} if are_claims else documents[0]
