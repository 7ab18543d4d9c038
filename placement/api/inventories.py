"""The resource ``/resource_providers/{uuid}/inventories`` and its sub-paths."""

import time
from http import HTTPStatus
from typing import Final

from flask import Blueprint, Response

from placement import microversion
from placement.api.call import ApiRequest, api_operation
from placement.api.resource_providers import current_provider, missing_provider_first, path_uuid
from placement.exceptions import NotFound
from placement.policies import rest as rules
from placement.schemas import inventory as schemas
from placement.schemas.base import is_storable
from placement.store import inventories as store

blueprint = Blueprint("inventories", __name__)

_PATH: Final = "/resource_providers/<uuid>/inventories"
_CREATE, _REPLACE_ALL, _UPDATE = schemas.InventoryCreation(), schemas.ReplaceAll(), schemas.InventoryUpdate()


@api_operation(blueprint, "GET", _PATH, rules.LIST_INVENTORIES, writes_json=True)
def list_all(call: ApiRequest, uuid: str) -> Response:
    """List the inventories of a provider."""
    provider = current_provider(call, uuid)
    newest = max(provider.inventory_times, default=time.time())
    documents = {name: each.to_values() for name, each in provider.inventories.items()}
    document = {"resource_provider_generation": provider.generation, "inventories": documents}
    return call.json_answer(document, newest)


@api_operation(blueprint, "POST", _PATH, rules.CREATE_INVENTORY, reads_json=True)
def create_inventory(call: ApiRequest, uuid: str) -> Response:
    """Add an inventory of a resource class that the provider does not have yet."""
    known = path_uuid(uuid)
    with missing_provider_first(call, known):
        body = call.parse_body(_CREATE)
    name, values = body["resource_class"], body["values"]
    # from microversion 1.26 on, the whole total of an inventory can be reserved
    may_have_none = call.version >= microversion.ALL_RESERVED
    generation = call.service.write(
        lambda tx: store.add(tx, known, name, values, may_have_none=may_have_none)
    )
    document = {"resource_provider_generation": generation, **values.to_values()}
    return call.add_location(
        call.json_answer(document, time.time(), 201), f"/resource_providers/{known}/inventories/{name}"
    )


@api_operation(blueprint, "PUT", _PATH, rules.UPDATE_INVENTORIES, reads_json=True)
def replace_all(call: ApiRequest, uuid: str) -> Response:
    """Replace the inventories of a provider."""
    known = path_uuid(uuid)
    with missing_provider_first(call, known):
        body = call.parse_body(_REPLACE_ALL)
    wanted = {name: each["values"] for name, each in body["inventories"].items()}
    given = body["resource_provider_generation"]
    may_have_none = call.version >= microversion.ALL_RESERVED
    generation = call.service.write(
        lambda tx: store.replace_all(tx, known, given, wanted, may_have_none=may_have_none)
    )
    documents = {name: values.to_values() for name, values in wanted.items()}
    return call.json_answer(
        {"resource_provider_generation": generation, "inventories": documents}, time.time()
    )


@api_operation(
    blueprint,
    "DELETE",
    _PATH,
    rules.DELETE_INVENTORIES,
    since=microversion.DELETE_INVENTORIES,
    before=HTTPStatus.METHOD_NOT_ALLOWED,
)
def delete_all(call: ApiRequest, uuid: str) -> Response:
    """Remove all inventories of a provider."""
    known = path_uuid(uuid)
    call.service.write(lambda tx: store.remove_all(tx, known))
    return call.empty_answer()


@api_operation(blueprint, "GET", f"{_PATH}/<resource_class>", rules.SHOW_INVENTORY, writes_json=True)
def show_inventory(call: ApiRequest, uuid: str, resource_class: str) -> Response:
    """Show one inventory."""
    provider = current_provider(call, uuid)
    inventory = provider.inventories.get(resource_class)
    if inventory is None:
        raise NotFound(f"No inventory of class {resource_class} for {provider.uuid}")
    document = {"resource_provider_generation": provider.generation, **inventory.to_values()}
    return call.json_answer(document, provider.offered_at(resource_class))


@api_operation(blueprint, "PUT", f"{_PATH}/<resource_class>", rules.UPDATE_INVENTORIES, reads_json=True)
def update(call: ApiRequest, uuid: str, resource_class: str) -> Response:
    """Change one inventory."""
    known = path_uuid(uuid)
    with missing_provider_first(call, known):
        body = call.parse_body(_UPDATE)
    # a resource class cannot have a name that is not storable, and some databases fail when they compare such
    # a name
    if not is_storable(resource_class):
        raise NotFound(f"No such resource class {resource_class}.")
    values = body["values"]
    given = body["resource_provider_generation"]
    may_have_none = call.version >= microversion.ALL_RESERVED
    generation = call.service.write(
        lambda tx: store.change_inventory(
            tx, known, given, resource_class, values, may_have_none=may_have_none
        )
    )
    return call.json_answer({"resource_provider_generation": generation, **values.to_values()}, time.time())


@api_operation(blueprint, "DELETE", f"{_PATH}/<resource_class>", rules.DELETE_INVENTORIES)
def delete(call: ApiRequest, uuid: str, resource_class: str) -> Response:
    """Remove one inventory."""
    known = path_uuid(uuid)
    if not is_storable(resource_class):
        raise NotFound(f"No inventory of class {resource_class} found for delete")
    call.service.write(lambda tx: store.remove(tx, known, resource_class))
    return call.empty_answer()
