"""``/resource_classes`` and ``/resource_classes/{name}``."""

import time
from typing import Any, Final

from flask import Blueprint, Response

from placement import microversion
from placement.api.call import ApiRequest, operation, prefix
from placement.exceptions import Conflict, NotFound
from placement.policies import rest as rules
from placement.schemas import base
from placement.schemas import resource_provider as schemas
from placement.store import classes as store

blueprint = Blueprint("resource_classes", __name__)

_CLASS: Final = schemas.ResourceClassBody()


def _shown(name: str) -> dict[str, Any]:
    return {"name": name, "links": [{"rel": "self", "href": f"{prefix()}/resource_classes/{name}"}]}


@operation(
    blueprint,
    "GET",
    "/resource_classes",
    rules.LIST_CLASSES,
    since=microversion.CUSTOM_CLASSES,
    writes_json=True,
)
def list_all(call: ApiRequest) -> Response:
    """All resource classes."""
    with call.service.model.fresh_view() as view:
        classes = view.names.classes
        return call.answer(
            {"resource_classes": [_shown(name) for name in classes]},
            max(classes.values(), default=time.time()),
        )


@operation(
    blueprint,
    "POST",
    "/resource_classes",
    rules.CREATE_CLASS,
    since=microversion.CUSTOM_CLASSES,
    reads_json=True,
)
def create(call: ApiRequest) -> Response:
    """Make a custom class."""
    name = call.body(_CLASS)["name"]
    if not call.service.database.write(lambda tx: store.create_class(tx, name)):
        raise Conflict(f"Conflicting resource class already exists: {name}")
    return call.nothing(201, f"/resource_classes/{name}")


@operation(
    blueprint,
    "GET",
    "/resource_classes/<name>",
    rules.SHOW_CLASS,
    since=microversion.CUSTOM_CLASSES,
    writes_json=True,
)
def show(call: ApiRequest, name: str) -> Response:
    """One resource class."""
    with call.service.model.fresh_view() as view:
        if name not in view.names.classes:
            raise NotFound(f"No such resource class {name}.")
        return call.answer(_shown(name), view.names.classes[name])


@operation(
    blueprint, "PUT", "/resource_classes/<name>", rules.UPDATE_CLASS, since=microversion.CUSTOM_CLASSES
)
def update(call: ApiRequest, name: str) -> Response:
    """To 1.6 rename a custom class, from 1.7 make sure that there is one of this name."""
    if call.version < microversion.IDEMPOTENT_CLASSES:
        return _rename(call, name)
    base.load(_CLASS, {"name": name})
    is_new = call.service.database.write(lambda tx: store.create_class(tx, name))
    return call.nothing(201 if is_new else 204, f"/resource_classes/{name}")


def _rename(call: ApiRequest, name: str) -> Response:
    call.require_json()
    new = call.body(_CLASS)["name"]
    if not base.is_storable(name):
        raise NotFound(f"No such resource class {name}.")
    call.service.database.write(lambda tx: store.rename_class(tx, name, new))
    return call.answer(_shown(new), time.time())


@operation(
    blueprint, "DELETE", "/resource_classes/<name>", rules.DELETE_CLASS, since=microversion.CUSTOM_CLASSES
)
def delete(call: ApiRequest, name: str) -> Response:
    """Remove a custom class that nothing uses."""
    if not base.is_storable(name):
        raise NotFound(f"No such resource class {name}.")
    call.service.database.write(lambda tx: store.delete(tx, name))
    return call.nothing()
