"""The resources about amounts of consumers: ``/allocations``, ``/usages`` and ``/reshaper``.

Allocations and usages of a provider are below ``/resource_providers/{uuid}``.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from flask import Blueprint, Response
from oslo_config import cfg

from placement import microversion
from placement.api.call import ApiRequest, api_operation
from placement.api.resource_providers import current_provider, path_uuid
from placement.exceptions import InvalidRequest
from placement.microversion import Microversion
from placement.policies import rest as rules
from placement.schemas import allocation as schemas
from placement.schemas.base import canonical_uuid
from placement.schemas.query import parse_usages
from placement.store import allocations as store
from placement.store import consumers, reshaper
from placement.store.allocations import Allocation, release
from placement.store.claims import ConsumerClaim
from placement.store.consumers import ANY_GENERATION, ConsumerOwnership, check_consumer_type
from placement.store.reshaper import NewInventories
from placement.store.usages import ClassUsage, read_project_usage

blueprint = Blueprint("allocations", __name__)

UNKNOWN_TYPE: Final = "unknown"
"""The type that answers show for consumers without a type."""
_ALL_TYPES: Final = "all"
"""The word in a query of usages for the sum of all consumer types."""
_SINCE: Final = {"consumer_type": microversion.CONSUMER_TYPES}
"""Fields of a consumer with the microversions that introduced them. Requests with an older microversion leave
such a field unchanged.
"""


def claim_of(
    conf: cfg.ConfigOpts, version: Microversion, consumer: str, body: Mapping[str, Any]
) -> ConsumerClaim:
    """Return the claim in a request body. Before microversion 1.8, project and user come from options.

    :raises InvalidRequest: the consumer type in the body is one that only the service itself uses.
    """
    check_consumer_type(consumer, body.get("consumer_type"))
    owner = ConsumerOwnership(
        body.get("project_id", conf.placement.incomplete_consumer_project_id),
        body.get("user_id", conf.placement.incomplete_consumer_user_id),
        body.get("consumer_type"),
        unsaid=frozenset(name for name, since in _SINCE.items() if version < since),
    )
    return ConsumerClaim(
        consumer=consumer,
        resources={uuid: each["resources"] for uuid, each in body["allocations"].items()},
        generation=body["consumer_generation"]
        if version >= microversion.CONSUMER_GENERATIONS
        else ANY_GENERATION,
        owner=owner,
    )


def _newest_time(allocations: list[Allocation]) -> float:
    return max((each.updated_at for each in allocations), default=time.time())


@api_operation(blueprint, "GET", "/allocations/<consumer_uuid>", rules.LIST_ALLOCATIONS, writes_json=True)
def list_of_consumer(call: ApiRequest, consumer_uuid: str) -> Response:
    """List the allocations of a consumer."""
    uuid = canonical_uuid(consumer_uuid)
    if uuid is None:
        # a consumer cannot have this id, so the answer is the same as for a consumer without allocations
        return call.json_answer({"allocations": {}}, time.time())
    # the allocations are read from the database, because the read model has only the usages of providers
    with call.service.database.read() as conn:
        # generation and allocations are read in one snapshot of the database, so that they belong together
        held = store.of_consumer(conn, uuid)
        # a consumer without allocations has no row, so only a consumer with allocations is looked up
        consumer = consumers.find_consumer(conn, uuid) if held else None
    by_provider: dict[str, Any] = {}
    for each in held:
        entry = by_provider.setdefault(
            each.provider, {"generation": each.provider_generation, "resources": {}}
        )
        entry["resources"][each.resource_class] = each.used
    document: dict[str, Any] = {"allocations": by_provider}
    if consumer is not None and call.version >= microversion.ALLOCATIONS_BY_PROVIDER:
        document["project_id"] = consumer.project_id
        document["user_id"] = consumer.user_id
        if call.version >= microversion.CONSUMER_GENERATIONS:
            document["consumer_generation"] = consumer.generation
        if call.version >= microversion.CONSUMER_TYPES:
            document["consumer_type"] = consumer.consumer_type or UNKNOWN_TYPE
    return call.json_answer(document, _newest_time(held))


@api_operation(blueprint, "PUT", "/allocations/<consumer_uuid>", rules.UPDATE_ALLOCATIONS, reads_json=True)
def replace_of_consumer(call: ApiRequest, consumer_uuid: str) -> Response:
    """Replace the allocations of a consumer."""
    uuid = canonical_uuid(consumer_uuid)
    if uuid is None:
        raise InvalidRequest(f"Malformed consumer_uuid: {consumer_uuid}")
    body = call.parse_body(schemas.put_allocations(call.version))
    claim = claim_of(call.service.conf, call.version, uuid, body)
    call.service.write(lambda tx: store.replace(tx, [claim]))
    return call.empty_answer()


@api_operation(
    blueprint,
    "POST",
    "/allocations",
    rules.MANAGE_ALLOCATIONS,
    since=microversion.MANY_CONSUMERS,
    reads_json=True,
)
def replace_several(call: ApiRequest) -> Response:
    """Replace the allocations of several consumers in one transaction."""
    body = call.wrapped_body(schemas.post_allocations(call.version), "allocations")
    claims = [claim_of(call.service.conf, call.version, uuid, each) for uuid, each in body.items()]
    call.service.write(lambda tx: store.replace(tx, claims))
    return call.empty_answer()


@api_operation(blueprint, "DELETE", "/allocations/<consumer_uuid>", rules.DELETE_ALLOCATIONS)
def delete_of_consumer(call: ApiRequest, consumer_uuid: str) -> Response:
    """Delete the allocations of a consumer."""
    release(call.service.database, path_uuid(consumer_uuid, store.no_allocations))
    return call.empty_answer()


@api_operation(
    blueprint,
    "GET",
    "/resource_providers/<uuid>/allocations",
    rules.LIST_PROVIDER_ALLOCATIONS,
    writes_json=True,
)
def list_of_provider(call: ApiRequest, uuid: str) -> Response:
    """List the allocations of a provider."""
    provider = current_provider(call, uuid)
    # the allocations are read from the database, because the read model has only the usages of providers
    with call.service.database.read() as conn:
        held = store.of_providers(conn, [provider.uuid])
    by_consumer: dict[str, Any] = {}
    for each in held:
        entry = by_consumer.setdefault(each.consumer, {"resources": {}})
        entry["resources"][each.resource_class] = each.used
        if call.version >= microversion.CONSUMER_GENERATIONS:
            entry["consumer_generation"] = each.consumer_generation
    # if there are allocations, the generation comes with them, so that generation and allocations are from
    # one snapshot of the database
    generation = held[0].provider_generation if held else provider.generation
    document = {"resource_provider_generation": generation, "allocations": by_consumer}
    return call.json_answer(document, _newest_time(held))


@api_operation(blueprint, "POST", "/reshaper", rules.RESHAPE, since=microversion.RESHAPER, reads_json=True)
def reshape_providers(call: ApiRequest) -> Response:
    """Move inventories and allocations between providers, in one transaction."""
    body = call.parse_body(schemas.reshaper_body(call.version))
    wanted = {
        uuid: NewInventories(
            each["resource_provider_generation"],
            {name: inventory["values"] for name, inventory in each["inventories"].items()},
        )
        for uuid, each in body["inventories"].items()
    }
    claims = [
        claim_of(call.service.conf, call.version, uuid, each) for uuid, each in body["allocations"].items()
    ]
    reshaper.reshape_providers(call.service.database, wanted, claims)
    return call.empty_answer()


@api_operation(blueprint, "GET", "/resource_providers/<uuid>/usages", rules.PROVIDER_USAGES, writes_json=True)
def show_provider_usages(call: ApiRequest, uuid: str) -> Response:
    """Show the used amount of each inventory of a provider."""
    provider = current_provider(call, uuid)
    # an inventory without allocations is shown with a usage of 0
    usages = {name: provider.used.get(name, 0) for name in provider.inventories}
    document = {"resource_provider_generation": provider.generation, "usages": usages}
    return call.json_answer(document, provider.updated_at)


@api_operation(blueprint, "GET", "/usages", None, since=microversion.PROJECT_USAGES, writes_json=True)
def show_project_usages(call: ApiRequest) -> Response:
    """Show the usages of a project. From microversion 1.38 on, they are grouped by consumer type."""
    wanted = parse_usages(call.query_parameters, call.version)
    call.authorize(rules.TOTAL_USAGES, {"project_id": wanted.project_id})
    with call.service.database.read() as conn:
        # usages and numbers of consumers are read in one snapshot of the database, so that they belong
        # together
        usage = read_project_usage(conn, wanted.project_id, wanted.user_id)
    usages, counts = usage.amounts, usage.consumer_counts
    if call.version < microversion.CONSUMER_TYPES:
        document: dict[str, Any] = _sum_usages(usages)
    elif wanted.consumer_type == _ALL_TYPES:
        document = (
            {_ALL_TYPES: {**_sum_usages(usages), "consumer_count": sum(counts.values())}} if counts else {}
        )
    else:
        document = _by_type(usages, counts)
        if wanted.consumer_type is not None:
            document = {kind: each for kind, each in document.items() if kind == wanted.consumer_type}
    return call.json_answer({"usages": document}, time.time())


def _sum_usages(usages: Sequence[ClassUsage]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for usage in usages:
        totals[usage.resource_class] = totals.get(usage.resource_class, 0) + usage.used
    return totals


def _by_type(usages: Sequence[ClassUsage], counts: Mapping[str | None, int]) -> dict[str, dict[str, int]]:
    document = {kind or UNKNOWN_TYPE: {"consumer_count": count} for kind, count in counts.items()}
    for usage in usages:
        document[usage.consumer_type or UNKNOWN_TYPE][usage.resource_class] = usage.used
    return document
