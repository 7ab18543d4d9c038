"""Builds a world with requests to the application, as an administrator would."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final
from wsgiref.types import WSGIApplication

from werkzeug.test import Client

from tests.conformance.world import Allocation, FixtureWorld, Provider, identifier

_HEADERS: Final = {
    "accept": "application/json",
    "x-auth-token": "admin",
    # the last version that accepts a consumer without a type
    "openstack-api-version": "placement 1.37",
}


class WorldNotBuilt(Exception):
    """The application refused a request that builds a part of the world; the message is its answer."""


def build(application: WSGIApplication, world: FixtureWorld) -> None:
    """Create everything in ``world``, one request for each inventory and each allocation.

    :raises WorldNotBuilt: on the first request that does not succeed.
    """
    api = _Api(application)
    for trait in _custom(chain.from_iterable(provider.traits for provider in world.providers)):
        api.request("PUT", f"/traits/{trait}")
    for name in _custom(chain.from_iterable(provider.inventories for provider in world.providers)):
        api.request("PUT", f"/resource_classes/{name}")
    for provider in world.providers:
        _build_provider(api, provider)
    for allocation in world.allocations:
        _build_allocation(api, allocation)


def _custom(names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name.startswith("CUSTOM_")})


def _build_provider(api: "_Api", provider: Provider) -> None:
    uuid = identifier(provider.variable)
    parent = identifier(provider.parent) if provider.parent else None
    api.request(
        "POST", "/resource_providers", {"name": provider.name, "uuid": uuid, "parent_provider_uuid": parent}
    )
    generation = 0
    for name, inventory in provider.inventories.items():
        body = {"resource_class": name, **inventory}
        api.request("POST", f"/resource_providers/{uuid}/inventories", body)
        generation += 1
    if provider.traits:
        body = {"resource_provider_generation": generation, "traits": provider.traits}
        api.request("PUT", f"/resource_providers/{uuid}/traits", body)
        generation += 1
    if provider.aggregates:
        aggregates = [identifier(variable) for variable in provider.aggregates]
        body = {"resource_provider_generation": generation, "aggregates": aggregates}
        api.request("PUT", f"/resource_providers/{uuid}/aggregates", body)


def _build_allocation(api: "_Api", allocation: Allocation) -> None:
    body = {
        "allocations": {identifier(allocation.provider): {"resources": allocation.resources}},
        "project_id": identifier(allocation.project),
        "user_id": identifier(allocation.user),
        "consumer_generation": None,
    }
    api.request("PUT", f"/allocations/{identifier(allocation.consumer)}", body)


class _Api:
    def __init__(self, application: WSGIApplication) -> None:
        self._client = Client(application)

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> None:
        response = self._client.open(path, method=method, headers=_HEADERS, json=body)
        if response.status_code >= 300:
            raise WorldNotBuilt(f"{method} {path} {body or ''}: {response.status} {response.text}")
