"""The page ``/console/consumers`` lists the reservations.

The page ``/console/consumers/{uuid}`` shows one consumer. The page ``/console/project`` shows the usage of a
project.
"""

from http import HTTPStatus
from typing import Any, Final

from flask import Blueprint, Response, render_template, request, url_for

from placement.db.tables import RESERVATION
from placement.exceptions import NotFound
from placement.policies import ext, rest
from placement.schemas.base import canonical_uuid
from placement_extras.console import page_request
from placement_extras.console.page_request import (
    SEE_HOSTS,
    ApiRefusal,
    PageRequest,
    ask_api,
    console_page,
    redirect_to,
)

blueprint = Blueprint("consumers", __name__)

_PER_PAGE: Final = 100


@console_page(blueprint, "/console/consumers", rest.LIST_ALLOCATIONS)
def find_consumer(visit: PageRequest) -> str | Response:
    """Show a form to find a consumer; with the right to list reservations, also show all reservations."""
    text = request.args.get("uuid", "").strip()
    uuid = canonical_uuid(text)
    if uuid is None:
        reserved: dict[str, Any] | None = None
        if visit.may_use(ext.LIST_RESERVATIONS):
            after = canonical_uuid(request.args.get("after", ""))
            page = {"limit": str(_PER_PAGE)} | ({} if after is None else {"marker": after})
            reserved = ask_api("GET", "/ext/v1/reservations", page) | {"after": after}
        return render_template("consumers.html", text=text[:64], is_wrong=bool(text), reserved=reserved)
    return redirect_to(url_for("consumers.show_consumer", uuid=uuid))


@console_page(blueprint, "/console/consumers/<uuid>", rest.LIST_ALLOCATIONS)
def show_consumer(visit: PageRequest, uuid: str) -> str:
    """Show a consumer: its project, its user and its allocations; also the times of a reservation."""
    known = canonical_uuid(uuid)
    if known is None:
        raise NotFound(f"There is no consumer {uuid[:64]!r}.")
    found: dict[str, Any] = ask_api("GET", f"/allocations/{known}")
    reservation: dict[str, Any] | None = None
    amounts: dict[str, tuple[Any, Any]] = {uuid: (each, {}) for uuid, each in found["allocations"].items()}
    # a window has no allocations before its start, and while claims use all of it
    if found.get("consumer_type", RESERVATION) == RESERVATION:
        reservation = _find_reservation(visit, known)
    if reservation is not None:
        own = {"consumer_type": RESERVATION, "consumer_generation": reservation["generation"]}
        found, held, claimed = reservation | own, reservation["allocations"], reservation["claimed"]
        amounts = {uuid: (held.get(uuid, {}), claimed.get(uuid, {})) for uuid in sorted({**held, **claimed})}
    if reservation is None and not amounts:
        raise NotFound(f"No consumer {known} has allocations.")
    # only visitors with the right to see hosts over REST see the names of hosts
    providers = {}
    if visit.may_use(*SEE_HOSTS):
        with visit.service.model.fresh_view() as view:
            for each in amounts:
                provider = view.snapshot.get(each)
                if provider is not None:
                    providers[each] = provider, view.snapshot.providers[provider.root_id]
    return render_template(
        "consumer.html",
        uuid=known,
        consumer=found,
        reservation=reservation,
        held=page_request.cut_page(list(amounts.items()), page_request.asked_page(), _PER_PAGE),
        providers=providers,
        address=lambda number: url_for("consumers.show_consumer", uuid=known, page=number),
    )


def _find_reservation(visit: PageRequest, uuid: str) -> dict[str, Any] | None:
    """Return the document of a reservation; None if there is none that the visitor is allowed to see."""
    if not visit.may_use(ext.SHOW_RESERVATION):
        return None
    try:
        document: dict[str, Any] = ask_api("GET", f"/ext/v1/reservations/{uuid}")["reservation"]
    except ApiRefusal as refusal:
        if refusal.status != HTTPStatus.NOT_FOUND:
            raise
        return None
    return document


@console_page(blueprint, "/console/project", rest.TOTAL_USAGES)
def show_project(visit: PageRequest) -> str:
    """Show the visitor's project: its usage and its reservations."""
    project = visit.visitor.project_id
    if not project:
        raise NotFound("You have not signed in for a project.")
    usages = ask_api("GET", "/usages", {"project_id": project})["usages"]
    reservations = None
    # a visitor without the right to list reservations sees only the usage
    if visit.may_use(ext.LIST_RESERVATIONS):
        answer = ask_api("GET", "/ext/v1/reservations", {"project_id": project})
        reservations = page_request.cut_page(answer["reservations"], page_request.asked_page(), _PER_PAGE)
    name = visit.visitor.project_name
    return render_template(
        "project.html",
        project=project,
        name=name,
        usages=usages,
        reservations=reservations,
        address=lambda number: url_for("consumers.show_project", page=number),
    )
