"""The page ``/console/`` lists the hosts.

The page ``/console/providers/{uuid}`` shows a host, or a part of a host.
"""

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
from placement_extras.console import fleet, host, host_scheduling, page_request, settings
from placement_extras.console.devices import ShownDevices, list_devices
from placement_extras.console.fleet import HostCondition, HostFilter
from placement_extras.console.page_request import SEE_HOSTS, PageRequest, console_page

blueprint = Blueprint("hosts", __name__)

_MAX_CHOICES: Final = 250
"""Maximum number of classes that the page offers as filters; the same maximum applies to traits and to
aggregates.
"""
_MAX_HOLDERS: Final = 100
"""Maximum number of consumers on one page of a host."""
_MAX_HOLDERS_PAGES: Final = 1000
"""Maximum number of pages of consumers. Without a maximum, a page could be very slow, because each page also
reads the consumers of all earlier pages.
"""
_ORDERS: Final = ("name", "free", "used")


@console_page(blueprint, "/console")
def show_home(visit: PageRequest) -> Response:
    """Show the first page: the hosts, or the project of a visitor without the right to see hosts."""
    endpoint = "hosts.show_fleet" if visit.may_use(*SEE_HOSTS) else "consumers.show_project"
    answer = redirect(url_for(endpoint), Response=Response)
    # the type checker does not know that redirect() returns an object of the class in its last argument
    assert isinstance(answer, Response)
    return answer


@console_page(blueprint, "/console/", *SEE_HOSTS)
def show_fleet(visit: PageRequest) -> str:
    """Show all hosts that pass the filters."""
    wanted, may_see_broken = wanted_of(request.args), visit.may_use(ext.ATTRIBUTES)
    # as over REST, a visitor without the right to read attributes cannot filter by them
    if not may_see_broken:
        wanted = replace(wanted, broken=False)
    with visit.pinned_model() as (snapshot, _):
        shown = fleet.make_page(snapshot, wanted, _visit_time(visit))
        classes, traits, aggregates = fleet.filter_choices(snapshot, _MAX_CHOICES)

    def page_address(**changes: Any) -> str:
        return url_for("hosts.show_fleet", **query_parameters(replace(wanted, **changes)))

    return render_template(
        "fleet.html",
        fleet=shown,
        wanted=wanted,
        is_filtered=replace(wanted, page=1, order="name") != HostFilter(),
        classes=classes,
        traits=traits,
        aggregates=aggregates,
        states=HostCondition,
        may_see_broken=may_see_broken,
        address=page_address,
        address_of_page=lambda number: page_address(page=number),
    )


def _visit_time(visit: PageRequest) -> float:
    """Return the current time; 0 for visitors without the right to read attributes, so no agent is silent."""
    return time.time() if visit.may_use(ext.ATTRIBUTES) else 0.0


def wanted_of(arguments: Mapping[str, str]) -> HostFilter:
    """Return the filters of hosts in a query string; invalid parameters are ignored."""
    name, resource_class, trait, aggregate = (
        page_request.text_of(arguments, each) for each in ("name", "resource_class", "trait", "aggregate")
    )
    wanted = HostFilter(name, resource_class, trait, aggregate)
    with suppress(ValueError):
        wanted = replace(wanted, state=HostCondition(arguments.get("state", "")))
    if arguments.get("order") in _ORDERS:
        wanted = replace(wanted, order=arguments["order"])
    if arguments.get("broken") == "1":
        wanted = replace(wanted, broken=True)
    return replace(wanted, page=page_request.number_of(arguments))


def query_parameters(wanted: HostFilter) -> dict[str, Any]:
    """Return the query parameters from which :func:`wanted_of` makes the filter, without default values."""
    plain = HostFilter()
    names = ("name", "resource_class", "trait", "aggregate", "state", "order", "page")
    found = {name: getattr(wanted, name) for name in names if getattr(wanted, name) != getattr(plain, name)}
    return found | ({"broken": "1"} if wanted.broken else {})


@console_page(blueprint, "/console/providers/<uuid>", *SEE_HOSTS)
def show_provider(visit: PageRequest, uuid: str) -> str:
    """Show a provider, all providers below it, and the consumers with allocations of these providers."""
    now = _visit_time(visit)
    with visit.pinned_model() as (snapshot, _):
        provider = existing_provider(snapshot, uuid)
        shown = host.make_page(snapshot, provider, page_request.asked_page("providers"), now)
        members = snapshot.whole_trees()[shown.root.id].members
        following = settings.find_follower(shown.root, members)
        # providers are collected here, in the order of the page, because the model is already released when
        # the allocations are read
        by_uuid = {each: snapshot.providers[snapshot.by_uuid[each]] for each in shown.members}
    may_see_attributes = visit.may_use(ext.ATTRIBUTES)
    # positions of guests belong to the whole host, so the page of a part does not show them
    is_whole = may_see_attributes and shown.node.provider is shown.root
    held: list[host.ConsumerHolding] | None = None
    number, more_holders = min(page_request.asked_page("holders"), _MAX_HOLDERS_PAGES), False

    def page_address(**changes: int) -> str:
        pages = {"providers": shown.part.page, "holders": number, **changes}
        return f"{url_for('hosts.show_provider', uuid=uuid)}?{urlencode(pages)}"

    if visit.may_use(rest.LIST_PROVIDER_ALLOCATIONS):
        with visit.service.database.read() as conn:
            rows, more_holders = list_holders(conn, shown.members, _MAX_HOLDERS, (number - 1) * _MAX_HOLDERS)
        more_holders = more_holders and number < _MAX_HOLDERS_PAGES
        held = host.holdings_of(rows, by_uuid)
    return render_template(
        "host.html",
        host=shown,
        held=held,
        picture=host.draw_picture(shown.node, held) if held else None,
        devices=list_devices(by_uuid.values(), held or ()) if may_see_attributes else ShownDevices(),
        positions=host.agent_positions(members, held) if is_whole and held is not None else None,
        more_holders=more_holders,
        holders_page=number,
        address_of_providers=lambda number: page_address(providers=number),
        address_of_holders=lambda number: page_address(holders=number),
        scheduling=host_scheduling.scheduling_of(shown.root),
        may_see_reason=may_see_attributes,
        is_silent=shown.heartbeat is not None and shown.heartbeat.is_overdue(now),
        follower=following if may_see_attributes else None,
        may_change=visit.may_use(*host_scheduling.CHANGE),
        may_see_consumers=visit.may_use(rest.LIST_ALLOCATIONS),
        may_see_projects=visit.may_use(rest.LIST_ALLOCATIONS),
    )
