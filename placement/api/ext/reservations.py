"""``/ext/v1/reservations`` and ``/ext/v1/reservations/{uuid}``."""

import uuid as uuids
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlencode

from flask import Blueprint, Response

from placement.api.call import ApiRequest, operation, prefix
from placement.api.ext import claims
from placement.api.ext.claims import claimer
from placement.api.paths import EXT
from placement.db.database import WriteTransaction
from placement.exceptions import Forbidden
from placement.policies import ext as rules
from placement.schemas import reservation as schemas
from placement.schemas.base import canonical_uuid
from placement.store import allocations
from placement.store import reservations as store
from placement.store.allocations import Allocation
from placement.store.reservations import CapacityReservation, WrittenReservation

blueprint = Blueprint("ext_reservations", __name__)

PATH: Final = f"{EXT}/reservations"
_ONE: Final = f"{PATH}/<reservation_uuid>"
_ANY_PROJECT: Final = str(uuids.uuid4())
"""The project of nobody: who may see its reservations may see those of all."""
_CREATE: Final = schemas.ReservationCreation()
_UPDATE: Final = schemas.ReservationUpdate()


@operation(blueprint, "POST", PATH, rules.RESERVE, reads_json=True, writes_json=True)
def create(call: ApiRequest) -> Response:
    """Find what is to be reserved, and hold it until a time."""
    body = call.body(_CREATE)
    uuid = body["uuid"] or str(uuids.uuid4())
    wanted, end = schemas.wanted_of(body, call.service.request_forms, uuid), schemas.end_of(body)
    made: list[WrittenReservation] = []

    def make(tx: WriteTransaction) -> None:
        made[:] = [store.make_reservation(tx, uuid, body["group"], end)]

    claimer(call).claim_places([wanted], also=make)
    (written,) = made
    shown = {"reservation": _document(written.reservation, written.held), "warnings": wanted.warnings}
    return call.located(call.answer(shown, status=201), f"{PATH}/{uuid}")


@operation(blueprint, "GET", PATH, None, writes_json=True)
def list_some(call: ApiRequest) -> Response:
    """Reservations by uuid; to who may not see all, those of its project."""
    page = schemas.parse_list(call.parameters, call.version)
    project_id = page.project_id
    if project_id is None:
        project_id = (
            None if _allows(call, rules.LIST_RESERVATIONS, _ANY_PROJECT) else call.project_id or _ANY_PROJECT
        )
    if project_id is not None:
        call.authorize(rules.LIST_RESERVATIONS, {"project_id": project_id})
    with call.service.database.read() as conn:
        found = store.list_reservations(conn, project_id, page.group, page.marker, page.limit + 1)
        shown = found[: page.limit]
        held = allocations.of_consumers(conn, [each.uuid for each in shown])
    document: dict[str, Any] = {"reservations": [_document(each, held) for each in shown]}
    if len(found) > page.limit:
        asked = {"project_id": page.project_id, "group": page.group}
        following = {"limit": page.limit, "marker": shown[-1].uuid}
        following |= {name: value for name, value in asked.items() if value is not None}
        document["links"] = [{"rel": "next", "href": f"{prefix()}{PATH}?{urlencode(following)}"}]
    return call.answer(document)


@operation(blueprint, "GET", _ONE, None, writes_json=True)
def show(call: ApiRequest, reservation_uuid: str) -> Response:
    """One reservation; one of another project is none to who may not see it."""
    call.authorize(rules.SHOW_RESERVATION, {"project_id": call.project_id or _ANY_PROJECT})
    uuid = _known(reservation_uuid)
    with call.service.database.read() as conn:
        found = store.find_reservation(conn, uuid)
        held = allocations.of_consumer(conn, uuid)
    if found is None or not _allows(call, rules.SHOW_RESERVATION, found.project_id):
        raise store.no_reservation(uuid)
    return call.answer({"reservation": _document(found, held)})


@operation(
    blueprint,
    "PUT",
    _ONE,
    rules.CHANGE_RESERVATION,
    reads_json=True,
    writes_json=True,
)
def update(call: ApiRequest, reservation_uuid: str) -> Response:
    """Have it end at another time."""
    known = _known(reservation_uuid)
    body = call.body(_UPDATE)
    end, generation = schemas.end_of(body), body["generation"]
    written = call.service.database.write(lambda tx: store.change_end(tx, known, generation, end))
    if not _allows(call, rules.SHOW_RESERVATION, written.reservation.project_id):
        raise store.no_reservation(known)
    return call.answer({"reservation": _document(written.reservation, written.held)})


@operation(blueprint, "DELETE", _ONE, rules.DELETE_RESERVATION)
def delete(call: ApiRequest, reservation_uuid: str) -> Response:
    """Give back what it still holds."""
    known = _known(reservation_uuid)
    call.service.database.write(lambda tx: store.delete(tx, known))
    return call.nothing()


def _known(uuid: str) -> str:
    """The uuid of a path in the form that the database knows.

    :raises NotFound: it is none.
    """
    canonical = canonical_uuid(uuid)
    if canonical is None:
        raise store.no_reservation(uuid)
    return canonical


def _allows(call: ApiRequest, rule: str, project_id: str) -> bool:
    """Whether a rule lets the caller see reservations of a project."""
    try:
        call.authorize(rule, {"project_id": project_id})
    except Forbidden:
        return False
    return True


def _document(reservation: CapacityReservation, held: Iterable[Allocation]) -> dict[str, Any]:
    by_provider: dict[str, Any] = {}
    for each in held:
        if each.consumer == reservation.uuid:
            entry = by_provider.setdefault(each.provider, {"resources": {}})
            entry["resources"][each.resource_class] = each.used
    return {
        "uuid": reservation.uuid,
        "project_id": reservation.project_id,
        "user_id": reservation.user_id,
        "group": reservation.group,
        "generation": reservation.generation,
        "expires_at": claims.shown(reservation.expires_at),
        "allocations": by_provider,
    }
