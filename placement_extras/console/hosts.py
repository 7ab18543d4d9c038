"""The page ``/console/`` lists the hosts.

The page ``/console/providers/{uuid}`` shows a host, or a part of a host.

``POST /console/providers/{uuid}/scheduling`` disables a host for new guests, or enables it. To disable a
host, one write gives its root provider a trait, which Nova's scheduler always forbids, and two attributes:
the visitor and the reason. The console removes the trait only if the provider has these attributes. Without
the attributes, the trait is from an agent or nova-compute, which would set the trait again. The attributes
disappear together with the trait, even if another client removes the trait.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from flask import Blueprint, Response, redirect, render_template, request, url_for

from placement.api.resource_providers import existing_provider
from placement.exceptions import CONCURRENT_UPDATE, InvalidRequest
from placement.policies import ext, rest
from placement.read_model.provider import DISABLED, Attribute, Provider
from placement.store.holders import list_holders
from placement_extras.console import DISABLED_BY, DISABLED_REASON, fleet, host, page_request, settings
from placement_extras.console.devices import ShownDevices, list_devices
from placement_extras.console.fleet import HostCondition, HostFilter
from placement_extras.console.page_request import (
    SEE_HOSTS,
    ApiRefusal,
    PageRequest,
    ask_api,
    console_page,
    redirect_to,
)

blueprint = Blueprint("hosts", __name__)

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
        classes, traits, aggregates = fleet.filter_choices(snapshot)

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
    state, order = arguments.get("state", ""), arguments.get("order", "")
    return HostFilter(
        **page_request.field_texts(arguments, ("name", "resource_class", "trait", "aggregate")),
        state=HostCondition(state) if state in list(HostCondition) else None,
        order=order if order in _ORDERS else "name",
        page=page_request.number_of(arguments),
        broken=arguments.get("broken") == "1",
    )


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
        scheduling=_scheduling_of(shown.root),
        may_see_reason=may_see_attributes,
        is_silent=shown.heartbeat is not None and shown.heartbeat.is_overdue(now),
        follower=following if may_see_attributes else None,
        may_change=visit.may_use(*_CHANGE),
        may_see_consumers=visit.may_use(rest.LIST_ALLOCATIONS),
    )


_CHANGE: Final = (rest.UPDATE_PROVIDER_TRAITS, ext.WRITE_TREE, ext.ATTRIBUTES, ext.CHANGE_ATTRIBUTES)
"""The policy rules that the REST API requires to disable or enable a host."""
_MAX_REASON: Final = 255
"""Maximum number of characters of a reason, because the attribute that stores it cannot be longer."""
_TRIES: Final = 5  # several tries are needed, because claims of other clients change the generation meanwhile


@dataclass(frozen=True, slots=True)
class HostScheduling:
    """Whether a host is disabled for new guests.

    ``is_ours`` is set if the console has disabled the host; ``by`` is then the visitor, with the ``reason``.
    """

    is_disabled: bool
    is_ours: bool
    reason: str = ""
    by: str = ""


def _scheduling_of(root: Provider) -> HostScheduling:
    """Return whether the host with this root is disabled, and why."""
    is_disabled, reason = DISABLED in root.traits, root.attributes.get(DISABLED_REASON)
    if not is_disabled or not isinstance(reason, str):
        return HostScheduling(is_disabled, is_ours=False)
    return HostScheduling(True, True, reason, str(root.attributes.get(DISABLED_BY, "")))


def _scheduling_description(root: Provider, *, disabled: bool, reason: str, by: str) -> dict[str, Any]:
    """Return the body of ``POST /ext/v1/trees`` that disables or enables a host.

    :raises InvalidRequest: the host to disable is already disabled, or the host to enable was not disabled by
        the console.
    """
    now = _scheduling_of(root)
    if disabled and now.is_disabled:
        raise InvalidRequest(f"{root.name} is disabled already.")
    # nova-compute or the agent would set its trait again, and the visitor would not know the cause
    if not disabled and not now.is_ours:
        raise InvalidRequest(f"{root.name} was not disabled here, so it cannot be enabled here.")
    attributes: Mapping[str, Attribute] = {
        name: value for name, value in root.attributes.items() if name not in (DISABLED_REASON, DISABLED_BY)
    }
    if disabled:
        attributes = {**attributes, DISABLED_REASON: reason, DISABLED_BY: by}
    return {
        "uuid": root.uuid,
        "name": root.name,
        "parent_provider_uuid": None,
        "generation": root.generation,
        "traits": sorted(root.traits | {DISABLED} if disabled else root.traits - {DISABLED}),
        "attributes": dict(attributes),
    }


@console_page(blueprint, "/console/providers/<uuid>/scheduling", *SEE_HOSTS, *_CHANGE, methods=("POST",))
def change_scheduling(visit: PageRequest, uuid: str) -> Response:
    """Disable or enable a host."""
    page_request.check_form()
    # line ends in the reason become blanks, because the value of an attribute must be one line
    reason = " ".join(request.form.get("reason", "").split())[:_MAX_REASON]
    disabled = request.form.get("do") == "disable"
    if disabled and not reason:
        raise InvalidRequest("Please give a reason, which other visitors see on the page of the host.")
    by = (visit.visitor.user_name or visit.visitor.user_id or "")[:_MAX_REASON]
    for tries_left in reversed(range(_TRIES)):
        with visit.service.model.fresh_view() as view:
            # each attempt reads the root again, because the generation of the failed attempt was outdated
            root = view.snapshot.providers[existing_provider(view.snapshot, uuid).root_id]
        wanted = _scheduling_description(root, disabled=disabled, reason=reason, by=by)
        try:
            ask_api("POST", "/ext/v1/trees", body={"resource_providers": [wanted]})
            break
        except ApiRefusal as refusal:
            # only a conflict of generations is worth another attempt
            if refusal.code != CONCURRENT_UPDATE or not tries_left:
                raise
    return redirect_to(url_for("hosts.show_provider", uuid=root.uuid))
