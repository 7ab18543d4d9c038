"""The resources ``/traits``, ``/traits/{name}`` and ``/resource_providers/{uuid}/traits``."""

import time
from typing import Final

from flask import Blueprint, Response

from placement import microversion
from placement.api.call import ApiRequest, api_operation
from placement.api.resource_providers import current_provider, path_uuid
from placement.exceptions import InvalidRequest, NotFound
from placement.policies import rest as rules
from placement.read_model.provider import in_order
from placement.schemas import base
from placement.schemas import resource_provider as schemas
from placement.schemas.query import parse_traits
from placement.store import known_names
from placement.store import provider_properties as store

blueprint = Blueprint("traits", __name__)

_TRAITS, _CUSTOM_TRAIT = schemas.TraitsBody(), schemas.CustomName()
_OF_PROVIDER: Final = "/resource_providers/<uuid>/traits"


@api_operation(blueprint, "GET", "/traits", rules.LIST_TRAITS, since=microversion.TRAITS, writes_json=True)
def list_all(call: ApiRequest) -> Response:
    """List the traits that pass the filters."""
    wanted = parse_traits(call.query_parameters, call.version)
    with call.service.model.fresh_view() as view:
        found = {
            name: updated_at
            for name, updated_at in view.names.traits.items()
            if wanted.lists_trait(name, associated=name in view.snapshot.by_trait)
        }
    return call.json_answer({"traits": list(found)}, max(found.values(), default=time.time()))


@api_operation(blueprint, "GET", "/traits/<name>", rules.SHOW_TRAIT, since=microversion.TRAITS)
def show_trait(call: ApiRequest, name: str) -> Response:
    """Answer with the status 204 if the trait exists, and otherwise with 404."""
    with call.service.model.fresh_view() as view:
        if name not in view.names.traits:
            raise NotFound(f"No such trait(s): {name}.")
        return call.add_dates(call.empty_answer(), view.names.traits[name])


@api_operation(blueprint, "PUT", "/traits/<name>", rules.UPDATE_TRAIT, since=microversion.TRAITS)
def create_trait(call: ApiRequest, name: str) -> Response:
    """Create a custom trait. The status is 201 if the trait is new, and 204 if it already existed."""
    try:
        base.load(_CUSTOM_TRAIT, {"name": name})
    # the message of OpenStack Placement replaces the message of the schema
    except InvalidRequest:
        raise InvalidRequest(
            "The trait is invalid. A valid trait must be no longer than 255 characters, start with "
            'the prefix "CUSTOM_" and use following characters: "A"-"Z", "0"-"9" and "_"'
        ) from None
    is_new = call.service.database.write(lambda tx: known_names.create_trait(tx, name))
    return call.add_dates(call.empty_answer(201 if is_new else 204, f"/traits/{name}"), time.time())


@api_operation(blueprint, "DELETE", "/traits/<name>", rules.DELETE_TRAIT, since=microversion.TRAITS)
def delete(call: ApiRequest, name: str) -> Response:
    """Delete a custom trait that no provider has."""
    # a trait cannot have a name that is not storable, and some databases fail when they compare such a name
    if not base.is_storable(name):
        raise NotFound(f"No such trait(s): {name}.")
    call.service.database.write(lambda tx: known_names.delete_trait(tx, name))
    return call.empty_answer()


def _traits_answer(call: ApiRequest, traits: list[str], generation: int, last_modified: float) -> Response:
    return call.json_answer({"traits": traits, "resource_provider_generation": generation}, last_modified)


@api_operation(
    blueprint, "GET", _OF_PROVIDER, rules.LIST_PROVIDER_TRAITS, since=microversion.TRAITS, writes_json=True
)
def list_of_provider(call: ApiRequest, uuid: str) -> Response:
    """List the traits of a provider."""
    provider = current_provider(call, uuid)
    return _traits_answer(call, in_order(provider.traits), provider.generation, provider.updated_at)


@api_operation(
    blueprint, "PUT", _OF_PROVIDER, rules.UPDATE_PROVIDER_TRAITS, since=microversion.TRAITS, reads_json=True
)
def replace_of_provider(call: ApiRequest, uuid: str) -> Response:
    """Replace the traits of a provider."""
    known = path_uuid(uuid)
    body = call.parse_body(_TRAITS)
    generation = call.service.database.write(
        lambda tx: store.replace_traits(tx, known, body["resource_provider_generation"], body["traits"])
    )
    # a set is needed, because clients can send a trait twice
    return _traits_answer(call, in_order(set(body["traits"])), generation, time.time())


@api_operation(blueprint, "DELETE", _OF_PROVIDER, rules.DELETE_PROVIDER_TRAITS, since=microversion.TRAITS)
def delete_of_provider(call: ApiRequest, uuid: str) -> Response:
    """Remove all traits of a provider."""
    known = path_uuid(uuid)
    call.service.database.write(lambda tx: store.remove_traits(tx, known))
    return call.empty_answer()
