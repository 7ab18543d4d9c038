"""The resources ``/ext/v1/trees`` and ``/ext/v1/trees/{uuid}``: all providers of a host at once."""

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import orjson
from flask import Blueprint, Response, request

from placement.api.call import ApiRequest, api_operation
from placement.api.context import EXT
from placement.api.ext.attributes import shown_attributes
from placement.api.resource_providers import existing_provider
from placement.policies import ext as rules
from placement.read_model.feed import ModelView
from placement.read_model.provider import Provider, in_order
from placement.schemas import tree as schemas
from placement.store import allocations
from placement.store import trees as store

blueprint = Blueprint("ext_trees", __name__)

PATH: Final = f"{EXT}/trees"
_BODY: Final = schemas.TreeBody()


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
        "attributes": shown_attributes(each.attributes),
    }


@api_operation(blueprint, "POST", PATH, rules.WRITE_TREE, reads_json=True, writes_json=True)
def write(call: ApiRequest) -> Response:
    """Create and change the providers of one tree. Either all changes are written, or none of them."""
    wanted = schemas.parse_descriptions(call.parse_body(_BODY))
    generations = call.service.write(lambda tx: store.write(tx, wanted))
    written = [{"uuid": uuid, "generation": generation} for uuid, generation in generations.items()]
    return call.json_answer({"resource_providers": written})
