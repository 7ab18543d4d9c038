"""``/console/``: the fleet; and ``/console/providers/{uuid}``: a host, or a part of one."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlencode

from flask import Blueprint, Response, redirect, render_template, request, url_for

from placement.api.resource_providers import existing_provider
from placement.policies import ext, rest
from placement.store.holders import list_holders
from placement_extras.console import fleet, host, page_request, scheduling, settings
from placement_extras.console.fleet import HostCondition, HostFilter
from placement_extras.console.page_request import SEE_HOSTS, PageRequest, page

blueprint = Blueprint("hosts", __name__)

_MAX_TEXT: Final = 255
_MAX_CHOICES: Final = 250
_MAX_HOLDERS: Final = 100
_MAX_HOLDERS_PAGES: Final = 1000
"""The database goes through all holders before those of a page."""
_ORDERS: Final = ("name", "free", "used")


@page(blueprint, "/console")
def home(visit: PageRequest) -> Response:
    """Where the console begins: for who may not see hosts, with his own project."""
    endpoint = "hosts.show_fleet" if visit.may(*SEE_HOSTS) else "consumers.show_project"
    answer = redirect(url_for(endpoint), Response=Response)
    assert isinstance(answer, Response)
    return answer


@page(blueprint, "/console/", *SEE_HOSTS)
def show_fleet(visit: PageRequest) -> str:
    """All hosts, or those that the filters let through."""
    wanted = wanted_of(request.args)
    with visit.looking() as (snapshot, _):
        shown = fleet.show(snapshot, wanted, _now(visit))
        classes, traits, aggregates = fleet.choices(snapshot, _MAX_CHOICES)

    def address(**changes: Any) -> str:
        return url_for("hosts.show_fleet", **parameters(replace(wanted, **changes)))

    return render_template(
        "fleet.html",
        fleet=shown,
        wanted=wanted,
        is_filtered=replace(wanted, page=1, order="name") != HostFilter(),
        classes=classes,
        traits=traits,
        aggregates=aggregates,
        states=HostCondition,
        address=address,
        address_of_page=lambda number: address(page=number),
    )


def _now(visit: PageRequest) -> float:
    """The time; 0 for a visitor who may not read attributes, to whom no agent is silent."""
    return time.time() if visit.may(ext.ATTRIBUTES) else 0.0


def wanted_of(arguments: Mapping[str, str]) -> HostFilter:
    """What a query string asks for; what cannot be meant is left out."""
    name, resource_class, trait, aggregate = (
        arguments.get(each, "").strip()[:_MAX_TEXT]
        for each in ("name", "resource_class", "trait", "aggregate")
    )
    wanted = HostFilter(name, resource_class, trait, aggregate)
    with suppress(ValueError):
        wanted = replace(wanted, state=HostCondition(arguments.get("state", "")))
    if arguments.get("order") in _ORDERS:
        wanted = replace(wanted, order=arguments["order"])
    return replace(wanted, page=page_request.number_of(arguments))


def parameters(wanted: HostFilter) -> dict[str, Any]:
    """The query string that asks for this, without what would be so anyway: :func:`wanted_of` reads it."""
    plain = HostFilter()
    names = ("name", "resource_class", "trait", "aggregate", "state", "order", "page")
    return {name: getattr(wanted, name) for name in names if getattr(wanted, name) != getattr(plain, name)}


@page(blueprint, "/console/providers/<uuid>", *SEE_HOSTS)
def show_provider(visit: PageRequest, uuid: str) -> str:
    """A provider with all below it, and who holds what of them."""
    now = _now(visit)
    with visit.looking() as (snapshot, _):
        provider = existing_provider(snapshot, uuid)
        shown = host.show(snapshot, provider, page_request.asked("providers"), now)
        members = snapshot.whole_trees()[shown.root.id].members
        following = settings.follower(shown.root, members)
        # kept: who holds what is read later
        by_uuid = {each: snapshot.providers[snapshot.by_uuid[each]] for each in shown.members}
    may_see_attributes = visit.may(ext.ATTRIBUTES)
    is_whole = may_see_attributes and shown.node.provider is shown.root
    held: list[host.ConsumerHolding] | None = None
    number, more_holders = min(page_request.asked("holders"), _MAX_HOLDERS_PAGES), False

    def address(**changes: int) -> str:
        pages = {"providers": shown.part.page, "holders": number, **changes}
        return f"{url_for('hosts.show_provider', uuid=uuid)}?{urlencode(pages)}"

    if visit.may(rest.LIST_PROVIDER_ALLOCATIONS):
        with visit.service.database.read() as conn:
            rows, more_holders = list_holders(conn, shown.members, _MAX_HOLDERS, (number - 1) * _MAX_HOLDERS)
        more_holders = more_holders and number < _MAX_HOLDERS_PAGES
        held = host.held(rows, by_uuid)
    return render_template(
        "host.html",
        host=shown,
        held=held,
        picture=host.draw(shown.node, held) if held else None,
        positions=host.said(members, held) if is_whole and held is not None else None,
        more_holders=more_holders,
        holders_page=number,
        address_of_providers=lambda number: address(providers=number),
        address_of_holders=lambda number: address(holders=number),
        scheduling=scheduling.scheduling_of(shown.root),
        may_see_reason=may_see_attributes,
        is_silent=shown.heartbeat is not None and shown.heartbeat.is_overdue(now),
        follower=following if may_see_attributes else None,
        may_change=visit.may(*scheduling.CHANGE),
        may_see_consumers=visit.may(rest.LIST_ALLOCATIONS),
        may_see_projects=visit.may(rest.LIST_ALLOCATIONS),
    )
