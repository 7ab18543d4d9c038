"""The resources ``/usages`` and ``/resource_providers/{uuid}/usages``."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from flask import Blueprint, Response

from placement import microversion
from placement.api.allocations import UNKNOWN_TYPE
from placement.api.call import ApiRequest, api_operation
from placement.api.resource_providers import existing_provider
from placement.policies import rest as rules
from placement.schemas.query import parse_usages
from placement.store.usages import ClassUsage, read_project_usage

blueprint = Blueprint("usages", __name__)

_ALL_TYPES: Final = "all"


@api_operation(blueprint, "GET", "/resource_providers/<uuid>/usages", rules.PROVIDER_USAGES, writes_json=True)
def of_provider(call: ApiRequest, uuid: str) -> Response:
    """Show the used amount of each inventory of a provider."""
    with call.service.model.fresh_view() as view:
        provider = existing_provider(view.snapshot, uuid)
        # an inventory without allocations is shown with a usage of 0
        usages = {name: provider.used.get(name, 0) for name in provider.inventories}
        document = {"resource_provider_generation": provider.generation, "usages": usages}
        return call.json_answer(document, provider.updated_at)


@api_operation(blueprint, "GET", "/usages", None, since=microversion.PROJECT_USAGES, writes_json=True)
def of_project(call: ApiRequest) -> Response:
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
