"""Clients that sign in at a real Keystone and find the service in its catalog: `openstack`, and an agent."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from compute_agent import conf as agent_conf
from compute_agent.report.client import PlacementClient
from compute_agent.report.errors import CredentialsError, UnavailableError
from tests.keystone import CALLERS, REGION, Caller, Keystone
from tests.placement.keystone.serving import Placement, authtoken, placement

pytestmark = pytest.mark.slow

HOST = "4e8e5957-649f-477b-9e5b-f1f75b21c03c"
GUEST = "67a82c9a-4a12-4b0a-8b5b-6e5d0b2a9b11"

OpenStack = Callable[..., Any]


@pytest.fixture(scope="module")
def service(keystone: Keystone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Placement]:
    """The service, which is in the catalog."""
    with placement(tmp_path_factory.mktemp("placement"), authtoken(keystone)) as running:
        keystone.identity.service("placement", "placement", running.base)
        yield running


def password_of(keystone: Keystone, caller: Caller) -> dict[str, str]:
    """What a client needs to sign in."""
    return {
        "auth_url": keystone.url,
        "username": caller.name,
        "password": caller.password,
        "project_name": str(caller.project),
        "user_domain_name": "Default",
        "project_domain_name": "Default",
    }


@pytest.fixture
def openstack(keystone: Keystone, tmp_path: Path) -> OpenStack:
    """Runs `openstack --os-cloud CALLER ...`, with nothing but a clouds.yaml to go by."""
    clouds = {
        name: {
            "auth": password_of(keystone, caller),
            "region_name": REGION,
            "placement_api_version": "1.39",
        }
        for name, caller in CALLERS.items()
        if caller.project
    }
    (tmp_path / "clouds.yaml").write_text(yaml.safe_dump({"clouds": clouds}))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}

    def run(caller: str, command: str, *, fails: bool = False) -> Any:
        words = [str(Path(sys.executable).with_name("openstack")), "--os-cloud", caller, *command.split()]
        done = subprocess.run(
            [*words, "--format", "json"],
            cwd=tmp_path,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert (done.returncode != 0) == fails, done.stderr
        return done.stderr if fails else json.loads(done.stdout)

    return run


def test_an_operator_works_with_a_clouds_yaml(service: Placement, openstack: OpenStack) -> None:
    made = openstack("admin", f"resource provider create --uuid {HOST} host")
    assert (made["uuid"], made["name"], made["generation"]) == (HOST, "host", 0)
    (inventory,) = openstack("service", f"resource provider inventory set {HOST} --resource VCPU=8")
    assert (inventory["resource_class"], inventory["total"]) == ("VCPU", 8)
    (candidate,) = openstack("service", "allocation candidate list --resource VCPU=2")
    assert (candidate["resource provider"], candidate["allocation"]) == (HOST, "VCPU=2")
    owner = "--project-id cloud --user-id ann --consumer-type INSTANCE"
    given = openstack(
        "service", f"resource provider allocation set {GUEST} --allocation rp={HOST},VCPU=2 {owner}"
    )
    assert given[0]["resources"] == {"VCPU": 2}
    (shown,) = openstack("admin", f"resource provider allocation show {GUEST}")
    assert (shown["resource_provider"], shown["resources"]) == (HOST, {"VCPU": 2})
    refused = openstack("member", "resource provider list", fails=True)
    assert "Policy does not allow placement:resource_providers:list to be performed. (HTTP 403)" in refused


@pytest.fixture
def agent(keystone: Keystone, tmp_path: Path) -> Callable[..., PlacementClient]:
    """An agent's client, as an ini file with this login has it."""

    def client(caller: Caller, **options: str) -> PlacementClient:
        values = {"auth_type": "password", **password_of(keystone, caller), "region_name": REGION, **options}
        ini = tmp_path / "compute-agent.conf"
        ini.write_text("[placement]\n" + "".join(f"{name} = {value}\n" for name, value in values.items()))
        return PlacementClient.from_conf(agent_conf.load([], [str(ini)]))

    return client


def test_an_agent_signs_in_and_reports(service: Placement, agent: Callable[..., PlacementClient]) -> None:
    client = agent(CALLERS["service"])
    root = "11111111-0000-4000-8000-000000000001"
    made = client.create_provider(root, "host-of-an-agent", None)
    client.set_inventories(root, {"PCPU": {"total": 4, "max_unit": 4}}, made.generation)
    inventories, _ = client.inventories(root)
    assert inventories["PCPU"]["total"] == 4
    assert client.provider_named("host-of-an-agent") == root


def test_an_agent_without_the_role_is_told(service: Placement, agent: Callable[..., PlacementClient]) -> None:
    with pytest.raises(CredentialsError, match="Policy does not allow"):
        agent(CALLERS["reader"]).resource_classes()


def test_an_agent_with_a_wrong_password_is_told(
    service: Placement, agent: Callable[..., PlacementClient]
) -> None:
    with pytest.raises(CredentialsError, match="requires authentication"):
        agent(CALLERS["service"], password="wrong").resource_classes()


def test_an_agent_for_which_the_catalog_has_no_service_is_told_what_chooses_it(
    service: Placement, agent: Callable[..., PlacementClient]
) -> None:
    with pytest.raises(UnavailableError, match=r"\[placement\] region_name"):
        agent(CALLERS["service"], region_name="Elsewhere").resource_classes()
