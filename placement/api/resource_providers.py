"""``/resource_providers`` and ``/resource_providers/{uuid}``."""

import time
import uuid as uuids
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flask import Blueprint, Response

from placement.api.call import Call, operation, prefix
from placement.candidates.filters import filter_providers
from placement.candidates.request import check_names
from placement.exceptions import InvalidRequest
from placement.microversion import Microversion
from placement.model.feed import View
from placement.model.world import Provider
from placement.policies import resource_provider as rules
from placement.schemas import resource_provider as schemas
from placement.schemas.base import canonical_uuid
from placement.schemas.query import parse_provider_filter
from placement.store import providers

blueprint = Blueprint("resource_providers", __name__)

# microversion that introduced each link, and its relation
_LINKS = (((1, 0), "inventories"), ((1, 0), "usages"), ((1, 1), "aggregates"), ((1, 6), "traits"))
_ALLOCATIONS_LINK = (1, 11)
_NESTED = (1, 14)
_BODY_IN_ANSWER = (1, 20)
_FREE_MOVES = (1, 37)


def shown(provider: Provider, view: View, version: Microversion) -> dict[str, Any]:
    """A provider as the API shows it."""
    everyone = view.world.providers
    parent = None if provider.parent_id is None else everyone[provider.parent_id].uuid
    root = everyone[provider.root_id].uuid
    return _document(provider.uuid, provider.name, provider.generation, parent, root, version)


def _document(
    uuid: str, name: str, generation: int, parent: str | None, root: str, version: Microversion
) -> dict[str, Any]:
    path = f"{prefix()}/resource_providers/{uuid}"
    links = [{"rel": "self", "href": path}]
    links += [{"rel": rel, "href": f"{path}/{rel}"} for since, rel in _LINKS if version >= since]
    if version >= _ALLOCATIONS_LINK:
        links.append({"rel": "allocations", "href": f"{path}/allocations"})
    document: dict[str, Any] = {
        "uuid": uuid,
        "name": name,
        "generation": generation,
        "links": links,
    }
    if version >= _NESTED:
        document["parent_provider_uuid"] = parent
        document["root_provider_uuid"] = root
    return document


def existing(view: View, uuid: str) -> Provider:
    """The provider that a path names.

    :raises placement.exceptions.NotFound: there is none.
    """
    provider = view.world.get(canonical_uuid(uuid) or uuid)
    if provider is None:
        raise providers.missing(uuid)
    return provider


def path_uuid(uuid: str) -> str:
    """The uuid of a path in the form the database knows.

    :raises placement.exceptions.NotFound: it is none, so there is no such provider.
    """
    canonical = canonical_uuid(uuid)
    if canonical is None:
        raise providers.missing(uuid)
    return canonical


@contextmanager
def about(call: Call, uuid: str) -> Iterator[None]:
    """Where the body of a request about a provider is read: that there is none is told before what is wrong.

    :raises placement.exceptions.NotFound: the body is bad, and there is no such provider anyway.
    """
    try:
        yield
    except InvalidRequest:
        with call.service.model.fresh() as view:
            existing(view, uuid)
        raise


@operation(blueprint, "GET", "/resource_providers", rules.LIST, writes_json=True)
def list_all(call: Call) -> Response:
    """All providers, or those that the filters let through."""
    wanted = parse_provider_filter(call.parameters, call.version)
    with call.service.model.fresh() as view:
        check_names(wanted, view.names.classes, view.names.traits)
        found = filter_providers(view.world, wanted)
        documents = [shown(provider, view, call.version) for provider in found]
        newest = max((provider.updated_at for provider in found), default=time.time())
        return call.answer({"resource_providers": documents}, newest)


@operation(blueprint, "POST", "/resource_providers", rules.CREATE, reads_json=True)
def create(call: Call) -> Response:
    """Make a provider; from 1.20 the answer shows it."""
    body = call.body(schemas.create(call.version))
    uuid = body.get("uuid") or str(uuids.uuid4())
    name, parent = body["name"], body.get("parent_provider_uuid")
    root = call.service.database.write(lambda tx: providers.create(tx, uuid, name, parent))
    location = f"/resource_providers/{uuid}"
    if call.version < _BODY_IN_ANSWER:
        return call.nothing(201, location)
    document = _document(uuid, name, 0, parent, root, call.version)
    return call.located(call.answer(document, time.time()), location)


@operation(blueprint, "GET", "/resource_providers/<uuid>", rules.SHOW, writes_json=True)
def show(call: Call, uuid: str) -> Response:
    """One provider."""
    return _show(call, uuid)


def _show(call: Call, uuid: str) -> Response:
    with call.service.model.fresh() as view:
        provider = existing(view, uuid)
        return call.answer(shown(provider, view, call.version), provider.updated_at)


@operation(blueprint, "PUT", "/resource_providers/<uuid>", rules.UPDATE, reads_json=True)
def update(call: Call, uuid: str) -> Response:
    """Rename a provider or put it elsewhere in the trees."""
    known = path_uuid(uuid)
    with about(call, known):
        body = call.body(schemas.update(call.version))
    call.service.database.write(
        lambda tx: providers.update(
            tx,
            known,
            body["name"],
            body.get("parent_provider_uuid"),
            sets_parent="parent_provider_uuid" in body,
            may_move=call.version >= _FREE_MOVES,
        )
    )
    return _show(call, known)


@operation(blueprint, "DELETE", "/resource_providers/<uuid>", rules.DELETE)
def delete(call: Call, uuid: str) -> Response:
    """Remove a provider that has neither children nor allocations."""
    known = canonical_uuid(uuid) or uuid
    call.service.database.write(lambda tx: providers.delete(tx, known))
    return call.nothing()
