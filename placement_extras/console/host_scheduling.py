"""Handles ``POST /console/providers/{uuid}/scheduling``, which disables a host for new guests or enables it.

To disable a host, one write gives its root provider a trait, which Nova's scheduler always forbids, and two
attributes: the visitor and the reason. The console removes the trait only if the provider has these
attributes. Without the attributes, the trait is from an agent or nova-compute, which would set the trait
again. The attributes disappear together with the trait, even if another client removes the trait.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from flask import Blueprint, Response, request, url_for

from placement.api.resource_providers import existing_provider
from placement.exceptions import CONCURRENT_UPDATE, InvalidRequest
from placement.policies import ext, rest
from placement.read_model.provider import DISABLED, Attribute, Provider
from placement_extras.console import DISABLED_BY, DISABLED_REASON, forms
from placement_extras.console.page_request import (
    SEE_HOSTS,
    ApiRefusal,
    PageRequest,
    ask_api,
    console_page,
    redirect_to,
)

blueprint = Blueprint("host_scheduling", __name__)

CHANGE: Final = (rest.UPDATE_PROVIDER_TRAITS, ext.WRITE_TREE, ext.ATTRIBUTES, ext.CHANGE_ATTRIBUTES)
"""The policy rules that the REST API requires for the same change."""
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


def scheduling_of(root: Provider) -> HostScheduling:
    """Return whether the host with this root is disabled, and why."""
    is_disabled, reason = DISABLED in root.traits, root.attributes.get(DISABLED_REASON)
    if not is_disabled or not isinstance(reason, str):
        return HostScheduling(is_disabled, is_ours=False)
    return HostScheduling(True, True, reason, str(root.attributes.get(DISABLED_BY, "")))


def scheduling_description(root: Provider, *, disabled: bool, reason: str, by: str) -> dict[str, Any]:
    """Return the body of ``POST /ext/v1/trees`` that disables or enables a host.

    :raises InvalidRequest: the host to disable is already disabled, or the host to enable was not disabled by
        the console.
    """
    now = scheduling_of(root)
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


@console_page(blueprint, "/console/providers/<uuid>/scheduling", *SEE_HOSTS, *CHANGE, methods=("POST",))
def change_scheduling(visit: PageRequest, uuid: str) -> Response:
    """Disable or enable a host."""
    forms.check_form()
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
        wanted = scheduling_description(root, disabled=disabled, reason=reason, by=by)
        try:
            ask_api("POST", "/ext/v1/trees", body={"resource_providers": [wanted]})
            break
        except ApiRefusal as refusal:
            # only a conflict of generations is worth another attempt
            if refusal.code != CONCURRENT_UPDATE or not tries_left:
                raise
    return redirect_to(url_for("hosts.show_provider", uuid=root.uuid))
