"""Fixtures that the files of requests name: configurations of the service and their content."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias
from wsgiref.types import WSGIApplication

import pytest
import yaml
from oslo_config.cfg import ConfigOpts
from werkzeug.test import Client

from placement import policies
from placement.api.middleware import build_application
from tests.conformance import worlds
from tests.conformance.world import Allocation, FixtureWorld, Provider, identifier
from tests.placement.running import service_conf

Setting: TypeAlias = Callable[[ConfigOpts, Path], None]
"""A function that changes the configuration; files that the options name go into the folder."""


def _default_policy(conf: ConfigOpts, folder: Path) -> None:
    """Only the built-in policies of the service."""


def _open_policy(conf: ConfigOpts, folder: Path) -> None:
    """Every user may call every operation."""
    path = folder / "policy.yaml"
    path.write_text(yaml.safe_dump({rule.name: "@" for rule in policies.list_rules()}))
    conf.set_override("policy_file", str(path), "oslo_policy")


def _legacy_policy(conf: ConfigOpts, folder: Path) -> None:
    """The deprecated defaults of policies apply beside the new ones."""
    conf.set_override("enforce_new_defaults", False, "oslo_policy")


def _secure_policy(conf: ConfigOpts, folder: Path) -> None:
    """Only the new defaults of policies apply."""
    conf.set_override("enforce_new_defaults", True, "oslo_policy")


def _allowed_origin(conf: ConfigOpts, folder: Path) -> None:
    conf.set_override("allowed_origin", ["http://valid.example.com"], "cors")


@dataclass(frozen=True, slots=True)
class Fixture:
    """Configuration and content of the service at the start of a file of requests."""

    world: FixtureWorld = worlds.EMPTY
    setting: Setting = _default_policy


FIXTURES: Final[Mapping[str, Fixture]] = {
    "APIFixture": Fixture(),
    "AllocationFixture": Fixture(worlds.ALLOCATIONS),
    "CORSFixture": Fixture(setting=_allowed_origin),
    "DeepNUMANetworkFixture": Fixture(worlds.DEEP_NUMA_NETWORK),
    "GranularFixture": Fixture(worlds.GRANULAR),
    "LegacyRBACPolicyFixture": Fixture(setting=_legacy_policy),
    "NUMAAggregateFixture": Fixture(worlds.NUMA_AGGREGATES),
    "NUMANetworkFixture": Fixture(worlds.NUMA_NETWORK),
    "NeutronQoSMultiSegmentFixture": Fixture(worlds.MULTI_SEGMENT_NETWORK),
    "NonSharedStorageFixture": Fixture(worlds.NON_SHARED_STORAGE),
    "OpenPolicyFixture": Fixture(setting=_open_policy),
    "SecureRBACPolicyFixture": Fixture(setting=_secure_policy),
    "SharedStorageFixture": Fixture(worlds.SHARED_STORAGE),
}

# objects that the requests create, and the projects and users of their consumers
_IDENTIFIERS: Final = (
    *("RP_UUID", "RP_UUID1", "RP_UUID2", "ALT_RP_UUID"),
    *("PARENT_PROVIDER_UUID", "ALT_PARENT_PROVIDER_UUID"),
    *("CONSUMER_0", "CONSUMER_ID", "CONSUMER_UUID", "ALT_CONSUMER_ID", "INSTANCE_UUID", "MIGRATION_UUID"),
    *("PROJECT_ID", "PROJECT_ID_ALT", "ADMIN_PROJECT_ID", "SERVICE_PROJECT_ID"),
    *("USER_ID", "USER_ID_ALT", "ALT_USER_ID"),
    *("AGGA_UUID", "AGGB_UUID", "AGGC_UUID"),
)
_NAMES: Final = {
    "RP_NAME": "rp_name",
    "RP_NAME1": "rp_name1",
    "RP_NAME2": "rp_name2",
    "ALT_RP_NAME": "alt_rp_name",
    "CUSTOM_RES_CLASS": "CUSTOM_IRON_NFV",
}


def environment(fixture: Fixture) -> dict[str, str]:
    """Environment variables that the requests refer to in files with this fixture."""
    variables = {*_IDENTIFIERS, *fixture.world.variables()}
    return {**{variable: identifier(variable) for variable in variables}, **_NAMES}


@contextmanager
def running(fixture: Fixture, database_url: str, folder: Path) -> Iterator[WSGIApplication]:
    """The service on an empty database, with the configuration and content of the fixture."""
    conf = service_conf(database_url, placement={"additional_resource_classes": []})
    fixture.setting(conf, folder)
    application = build_application(conf)
    build(application, fixture.world)
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in environment(fixture).items():
            patch.setenv(variable, value)
        yield application


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
