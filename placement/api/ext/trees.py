"""All providers of a host at once (``/ext/v1/trees``), and the attributes of a single provider.

Attributes are the resource ``/ext/v1/resource_providers/{uuid}/attributes``.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson
from flask import Blueprint, Response, request

from placement.api.call import ApiRequest, api_operation
from placement.api.context import EXT
from placement.api.resource_providers import (
    current_provider,
    existing_provider,
    missing_provider_first,
    path_uuid,
)
from placement.policies import ext as rules
from placement.read_model.feed import ModelView
from placement.read_model.provider import Attribute, Provider, in_order
from placement.schemas import tree as schemas
from placement.schemas.resource_provider import AttributesBody
from placement.store import allocations, provider_properties
from placement.store import trees as store

blueprint = Blueprint("ext_trees", __name__)

PATH: Final = f"{EXT}/trees"
_BODY: Final = schemas.TreeBody()
_ATTRIBUTES_PATH: Final = f"{EXT}/resource_providers/<uuid>/attributes"
_ATTRIBUTES_BODY: Final = AttributesBody()
# up to this number, a float represents each integer exactly
_MAX_INTEGER: Final = 2.0**53


@api_operation(blueprint, "GET", f"{PATH}/<uuid>", rules.TREE, writes_json=True)
def show_tree(call: ApiRequest, uuid: str) -> Response:
    """Show all providers of a tree. If the client already has the current document, the status is 304."""
    with_allocations = schemas.parse_show(call.query_parameters, call.version)
    with call.service.model.fresh_view() as view:
        provider = existing_provider(view.snapshot, uuid)
        everyone = view.snapshot.providers
        members = _top_down([everyone[each] for each in view.snapshot.trees[provider.root_id]], view)
        shown_providers = [_provider_document(each, view) for each in members]
        # the read model has no allocations, but has a number for each provider that changes with its
        # allocations
        changes = [view.change_seq(each) for each in members] if with_allocations else []
    body = orjson.dumps({"resource_providers": shown_providers})
    # the tag is a hash of the document and of these numbers, so that each change leads to a new tag
    tag = hashlib.blake2b(body + str(changes).encode(), digest_size=16).hexdigest()
    if request.if_none_match.contains_weak(tag):
        answer = call.empty_answer(304)
    elif with_allocations:
        # allocations can be newer than the tag. This is harmless, because the next request gets a new tag.
        _add_allocations(call, shown_providers)
        answer = call.json_answer({"resource_providers": shown_providers})
    else:
        answer = call.json_answer(body)
    answer.set_etag(tag)
    # clients are allowed to cache the answer, but have to check by its tag whether it is current
    answer.headers["Cache-Control"] = "no-cache"
    return answer


def _add_allocations(call: ApiRequest, shown_providers: Iterable[dict[str, Any]]) -> None:
    """Add the allocations of each provider to its document."""
    held: dict[str, dict[str, dict[str, int]]] = {each["uuid"]: {} for each in shown_providers}
    with call.service.database.read() as conn:
        for one in allocations.of_providers(conn, held):
            held[one.provider].setdefault(one.consumer, {})[one.resource_class] = one.used
    for each in shown_providers:
        of_provider = held[each["uuid"]].items()
        each["allocations"] = {consumer: {"resources": amounts} for consumer, amounts in of_provider}


def _top_down(members: Iterable[Provider], view: ModelView) -> list[Provider]:
    """Sort the providers of a tree: parents before their children, and siblings by uuid."""

    def path(provider: Provider) -> list[str]:
        return [each.uuid for each in view.snapshot.lineage_of(provider)][::-1]

    return sorted(members, key=path)


def _provider_document(each: Provider, view: ModelView) -> dict[str, Any]:
    parent = None if each.parent_id is None else view.snapshot.providers[each.parent_id].uuid
    return {
        "uuid": each.uuid,
        "name": each.name,
        "parent_provider_uuid": parent,
        "generation": each.generation,
        "inventories": {name: inventory.to_values() for name, inventory in sorted(each.inventories.items())},
        "traits": in_order(each.traits),
        "aggregates": sorted(each.aggregates),
        "attributes": _shown_attributes(each.attributes),
    }


@api_operation(blueprint, "POST", PATH, rules.WRITE_TREE, reads_json=True, writes_json=True)
def write(call: ApiRequest) -> Response:
    """Create and change the providers of one tree. Either all changes are written, or none of them."""
    wanted = schemas.parse_descriptions(call.parse_body(_BODY))
    generations = call.service.write(lambda tx: store.write(tx, wanted))
    written = [{"uuid": uuid, "generation": generation} for uuid, generation in generations.items()]
    return call.json_answer({"resource_providers": written})


@api_operation(blueprint, "GET", _ATTRIBUTES_PATH, rules.ATTRIBUTES, writes_json=True)
def list_attributes(call: ApiRequest, uuid: str) -> Response:
    """List the attributes of a provider."""
    provider = current_provider(call, uuid)
    return _attributes_answer(call, provider.attributes, provider.generation)


@api_operation(blueprint, "PUT", _ATTRIBUTES_PATH, rules.CHANGE_ATTRIBUTES, reads_json=True, writes_json=True)
def replace_attributes(call: ApiRequest, uuid: str) -> Response:
    """Replace the attributes of a provider."""
    known = path_uuid(uuid)
    with missing_provider_first(call, uuid):
        body = call.parse_body(_ATTRIBUTES_BODY)
    wanted: Mapping[str, Attribute] = body["attributes"]
    expected: int = body["resource_provider_generation"]
    generation = call.service.database.write(
        lambda tx: provider_properties.replace_attributes(tx, known, expected, wanted)
    )
    return _attributes_answer(call, wanted, generation)


def _attributes_answer(call: ApiRequest, attributes: Mapping[str, Attribute], generation: int) -> Response:
    return call.json_answer(
        {"attributes": _shown_attributes(attributes), "resource_provider_generation": generation}
    )


def _shown_attributes(attributes: Mapping[str, Attribute]) -> dict[str, Any]:
    """Return attributes, by name, as answers show them. Whole numbers are shown as integers."""
    return {name: _shown_value(value) for name, value in sorted(attributes.items())}


def _shown_value(value: Attribute) -> str | float | int:
    whole = isinstance(value, float) and value.is_integer() and abs(value) < _MAX_INTEGER
    return int(value) if whole else value
