"""The resource ``/resource_providers/{uuid}/aggregates``."""

import time
from typing import Any, Final

from flask import Blueprint, Response

from placement import microversion
from placement.api.call import ApiRequest, api_operation
from placement.api.resource_providers import existing_provider, missing_provider_first, path_uuid
from placement.policies import rest as rules
from placement.schemas import resource_provider as schemas
from placement.store import provider_properties as store

blueprint = Blueprint("aggregates", __name__)

_PATH: Final = "/resource_providers/<uuid>/aggregates"
_AGGREGATES, _LIST = schemas.AggregatesBody(), schemas.AggregateList()


def _aggregates_answer(
    call: ApiRequest, aggregates: list[str], generation: int, last_modified: float
) -> Response:
    document: dict[str, Any] = {"aggregates": aggregates}
    if call.version >= microversion.AGGREGATES_GENERATION:
        document["resource_provider_generation"] = generation
    return call.json_answer(document, last_modified)


@api_operation(
    blueprint, "GET", _PATH, rules.LIST_AGGREGATES, since=microversion.AGGREGATES, writes_json=True
)
def show_aggregates(call: ApiRequest, uuid: str) -> Response:
    """Show the aggregates of a provider."""
    with call.service.model.fresh_view() as view:
        provider = existing_provider(view.snapshot, uuid)
        return _aggregates_answer(call, sorted(provider.aggregates), provider.generation, provider.updated_at)


@api_operation(
    blueprint, "PUT", _PATH, rules.UPDATE_AGGREGATES, since=microversion.AGGREGATES, reads_json=True
)
def replace(call: ApiRequest, uuid: str) -> Response:
    """Replace the aggregates of a provider."""
    known = path_uuid(uuid)
    # requests before microversion 1.19 have no generation, so no generation is checked
    expected = None
    with missing_provider_first(call, known):
        if call.version >= microversion.AGGREGATES_GENERATION:
            body = call.parse_body(_AGGREGATES)
            aggregates, expected = body["aggregates"], body["resource_provider_generation"]
        else:
            aggregates = call.wrapped_body(_LIST, "aggregates")
    generation = call.service.database.write(
        lambda tx: store.replace_aggregates(tx, known, expected, aggregates)
    )
    return _aggregates_answer(call, aggregates, generation, time.time())
