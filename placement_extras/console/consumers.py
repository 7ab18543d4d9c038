"""The page ``/console/consumers`` lists the reservations.

The page ``/console/consumers/{uuid}`` shows one consumer. The page ``/console/project`` shows the usage of a
project.
"""

from typing import Any, Final

from flask import Blueprint, Response, render_template, request, url_for

from placement.exceptions import NotFound
from placement.policies import ext, rest
from placement.schemas.base import canonical_uuid
from placement_extras.console import page_request
from placement_extras.console.page_request import SEE_HOSTS, PageRequest, ask_api, console_page, redirect_to

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
    """Show a consumer: its project, its user and its allocations."""
    known = canonical_uuid(uuid)
    if known is None:
        raise NotFound(f"There is no consumer {uuid[:64]!r}.")
    found: dict[str, Any] = ask_api("GET", f"/allocations/{known}")
    if not found["allocations"]:
        raise NotFound(f"No consumer {known} has allocations.")
    # only visitors with the right to see hosts over REST see the names of hosts
    providers = {}
    if visit.may_use(*SEE_HOSTS):
        with visit.service.model.fresh_view() as view:
            for each in found["allocations"]:
                provider = view.snapshot.get(each)
                if provider is not None:
                    providers[each] = provider, view.snapshot.providers[provider.root_id]
    return render_template(
        "consumer.html",
        uuid=known,
        consumer=found,
        held=page_request.cut_page(list(found["allocations"].items()), page_request.asked_page(), _PER_PAGE),
        providers=providers,
        address=lambda number: url_for("consumers.show_consumer", uuid=known, page=number),
    )


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
