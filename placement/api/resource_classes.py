"""The resources ``/resource_classes`` and ``/resource_classes/{name}``."""

import time
from typing import Any, Final

from flask import Blueprint, Response

from placement import microversion
from placement.api.call import ApiRequest, api_operation, mount_prefix
from placement.exceptions import Conflict, NotFound
from placement.policies import rest as rules
from placement.schemas import base
from placement.schemas import resource_provider as schemas
from placement.store import known_names as store

blueprint = Blueprint("resource_classes", __name__)

_CLASS: Final = schemas.CustomName()


def _class_document(name: str) -> dict[str, Any]:
    return {"name": name, "links": [{"rel": "self", "href": f"{mount_prefix()}/resource_classes/{name}"}]}


@api_operation(
    blueprint,
    "GET",
    "/resource_classes",
    rules.LIST_CLASSES,
    since=microversion.CUSTOM_CLASSES,
    writes_json=True,
)
def list_all(call: ApiRequest) -> Response:
    """List the resource classes."""
    with call.service.model.fresh_view() as view:
        classes = view.names.classes
        return call.json_answer(
            {"resource_classes": [_class_document(name) for name in classes]},
            max(classes.values(), default=time.time()),
        )


@api_operation(
    blueprint,
    "POST",
    "/resource_classes",
    rules.CREATE_CLASS,
    since=microversion.CUSTOM_CLASSES,
    reads_json=True,
)
def create_class(call: ApiRequest) -> Response:
    """Create a custom class."""
    name = call.parse_body(_CLASS)["name"]
    if not call.service.database.write(lambda tx: store.create_class(tx, name)):
        raise Conflict(f"Conflicting resource class already exists: {name}")
    return call.empty_answer(201, f"/resource_classes/{name}")


@api_operation(
    blueprint,
    "GET",
    "/resource_classes/<name>",
    rules.SHOW_CLASS,
    since=microversion.CUSTOM_CLASSES,
    writes_json=True,
)
def show_class(call: ApiRequest, name: str) -> Response:
    """Show one resource class."""
    with call.service.model.fresh_view() as view:
        if name not in view.names.classes:
            raise NotFound(f"No such resource class {name}.")
        return call.json_answer(_class_document(name), view.names.classes[name])


@api_operation(
    blueprint, "PUT", "/resource_classes/<name>", rules.UPDATE_CLASS, since=microversion.CUSTOM_CLASSES
)
def update(call: ApiRequest, name: str) -> Response:
    """Rename a custom class, up to microversion 1.6; from 1.7 on, create the class unless it exists."""
    if call.version < microversion.IDEMPOTENT_CLASSES:
        return _rename_class(call, name)
    # from microversion 1.7 on, the request has no body, so the schema checks the name in the path
    base.load(_CLASS, {"name": name})
    is_new = call.service.database.write(lambda tx: store.create_class(tx, name))
    return call.empty_answer(201 if is_new else 204, f"/resource_classes/{name}")


def _rename_class(call: ApiRequest, name: str) -> Response:
    call.require_json()
    new = call.parse_body(_CLASS)["name"]
    if not base.is_storable(name):
        raise NotFound(f"No such resource class {name}.")
    call.service.database.write(lambda tx: store.rename_class(tx, name, new))
    return call.json_answer(_class_document(new), time.time())


@api_operation(
    blueprint, "DELETE", "/resource_classes/<name>", rules.DELETE_CLASS, since=microversion.CUSTOM_CLASSES
)
def delete(call: ApiRequest, name: str) -> Response:
    """Delete a custom class that is not in use."""
    if not base.is_storable(name):
        raise NotFound(f"No such resource class {name}.")
    call.service.database.write(lambda tx: store.delete_class(tx, name))
    return call.empty_answer()
