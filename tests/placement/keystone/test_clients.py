"""Tests of clients that sign in at a real Keystone and find the service in its catalog: `openstack`, and an
agent.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from compute_agent import conf as agent_conf
from compute_agent.inventory.options import host_name
from compute_agent.report.answers import CredentialsError, UnavailableError
from compute_agent.report.client import PlacementClient
from tests.keystone import CALLERS, REGION, Caller, Keystone
from tests.placement.client.shell import client, run
from tests.placement.keystone.serving import KeystonePlacement, authtoken, placement
from tests.programs import run_program
from tests.waits import wait_for

pytestmark = pytest.mark.slow

HOST = "4e8e5957-649f-477b-9e5b-f1f75b21c03c"
GUEST = "67a82c9a-4a12-4b0a-8b5b-6e5d0b2a9b11"

OpenStack = Callable[..., Any]


@pytest.fixture(scope="module")
def service(keystone: Keystone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeystonePlacement]:
    """The service, with an entry in Keystone's catalog."""
    with placement(tmp_path_factory.mktemp("placement"), authtoken(keystone)) as running:
        keystone.identity.service("placement", "placement", running.base)
        yield running


def password_of(keystone: Keystone, caller: Caller) -> dict[str, str]:
    """Return the options that a client needs to sign in."""
    return {
        "auth_url": keystone.url,
        "username": caller.name,
        "password": caller.password,
        "project_name": str(caller.project),
        "user_domain_name": "Default",
        "project_domain_name": "Default",
    }


@pytest.fixture
def openstack(keystone: Keystone, tmp_path: Path) -> Iterator[OpenStack]:
    """A function that runs `openstack --os-cloud CALLER ...` with only a clouds.yaml."""
    clouds = {
        name: {
            "auth": password_of(keystone, caller),
            "region_name": REGION,
            "placement_api_version": "1.39",
        }
        for name, caller in CALLERS.items()
        if caller.project
    }
    file = tmp_path / "clouds.yaml"
    file.write_text(yaml.safe_dump({"clouds": clouds}))
    with ExitStack() as stack:
        # one process for each caller, because a process keeps its login
        drivers = {
            name: stack.enter_context(client(OS_CLIENT_CONFIG_FILE=str(file)))
            for name in ("admin", "service", "member")
        }

        def openstack(caller: str, command: str, *, fails: bool = False) -> Any:
            words = ["--os-cloud", caller, *command.split(), "--format", "json"]
            status, out, err = run(drivers[caller], words)
            assert (status != 0) == fails, err
            return err if fails else json.loads(out)

        yield openstack


def test_an_operator_works_with_a_clouds_yaml(service: KeystonePlacement, openstack: OpenStack) -> None:
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


def agent_ini(keystone: Keystone, folder: Path, caller: Caller, **options: str) -> Path:
    """Write the configuration of an agent with processes as guests and with this login."""
    values = {"auth_type": "password", **password_of(keystone, caller), "region_name": REGION, **options}
    ini = folder / "compute-agent.conf"
    ini.write_text(
        f"[DEFAULT]\nstate_path = {folder / 'state'}\n[guests]\ndriver = process\n"
        f"[compute]\ncpu_shared_set = {min(os.sched_getaffinity(0))}\n"
        "[placement]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())
    )
    return ini


def test_an_agent_signs_in_and_reports(
    keystone: Keystone, service: KeystonePlacement, tmp_path: Path
) -> None:
    ini = agent_ini(keystone, tmp_path, CALLERS["service"])
    command = [sys.executable, "-m", "compute_agent.cmd.main", "--config-file", str(ini), "run"]
    token = keystone.identity.token(CALLERS["admin"])
    with run_program(command, tmp_path / "log"):
        wait_for(lambda: "VCPU" in classes_of(service, token, host_name()))


def classes_of(service: KeystonePlacement, token: str, host: str) -> set[str]:
    """Return the inventories of the host's tree."""
    found = service.ask("GET", "/resource_providers", token).json()["resource_providers"]
    roots = {each["uuid"] for each in found if each["name"] == host}
    tree = [each["uuid"] for each in found if each["root_provider_uuid"] in roots]
    offered = [service.ask("GET", f"/resource_providers/{uuid}/inventories", token).json() for uuid in tree]
    return {name for each in offered for name in each["inventories"]}


@pytest.fixture
def agent(keystone: Keystone, tmp_path: Path) -> Callable[..., PlacementClient]:
    """Return the HTTP session of an agent with this login."""

    def signed_in(caller: Caller, **options: str) -> PlacementClient:
        ini = agent_ini(keystone, tmp_path, caller, **options)
        return PlacementClient.from_conf(agent_conf.load([], [str(ini)]))

    return signed_in


def test_an_agent_without_the_role_gets_an_error(
    service: KeystonePlacement, agent: Callable[..., PlacementClient]
) -> None:
    with pytest.raises(CredentialsError, match="Policy does not allow"):
        agent(CALLERS["reader"]).resource_classes()


def test_an_agent_with_a_wrong_password_gets_an_error(
    service: KeystonePlacement, agent: Callable[..., PlacementClient]
) -> None:
    with pytest.raises(CredentialsError, match="requires authentication"):
        agent(CALLERS["service"], password="wrong").resource_classes()


def test_the_error_of_a_missing_catalog_entry_names_the_options_that_choose_it(
    service: KeystonePlacement, agent: Callable[..., PlacementClient]
) -> None:
    with pytest.raises(UnavailableError, match=r"\[placement\] region_name"):
        agent(CALLERS["service"], region_name="Elsewhere").resource_classes()
