"""Tests that commands of deployment tools run unchanged on a database that OpenStack Placement has filled.

The command lines are those of openstack/kolla (docker/placement/placement-api/extend_start.sh),
openstack-ansible-os_placement (tasks/placement_db_sync.yml, placement_db_post_setup.yml), puppet-placement
(manifests/db/sync.pp, up to ten times) and devstack (lib/placement); and the commands in upgrade guides.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from placement.db import adoption, migration
from tests.databases import DatabaseServer
from tests.placement.running import Admin, application
from tests.placement_extras.migration import reference_world as world

pytestmark = pytest.mark.slow

SYNC = "placement-manage db sync"
ONLINE = "placement-manage db online_data_migrations"
CHECK = "placement-status upgrade check"

# (command, the statuses that the tool takes for success)
TOOLS = {
    "kolla, bootstrap": [(SYNC, {0}), (ONLINE, {0})],
    "kolla, upgrade": [(SYNC, {0}), (CHECK, {0, 1}), (ONLINE, {0})],
    "openstack-ansible": [(SYNC, {0}), (ONLINE, {0, 2})],
    "puppet": [(SYNC, {0}), (SYNC, {0})],
    "devstack": [(SYNC, {0})],
}

Shell = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def stock(database_server: DatabaseServer) -> str:
    """The URL of a database of OpenStack Placement with some content."""
    database = world.ReferenceDatabase(database_server.fresh_database())
    database.fill()
    database.at_revision(adoption.REVISIONS[-1])
    return database.url


@pytest.fixture
def shell(stock: str, tmp_path: Path) -> Callable[[str], Shell]:
    """A function that runs command lines as a tool does: with the programs in PATH, and the configuration in
    its folder.
    """
    programs = str(Path(sys.executable).parent)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
    environ |= {"PATH": f"{programs}:/usr/bin:/bin", "OS_PLACEMENT_CONFIG_DIR": str(tmp_path)}

    def configured(options: str) -> Shell:
        (tmp_path / "placement.conf").write_text(
            "[DEFAULT]\ndebug = False\nstate_path = /var/lib/placement\n"
            f"[placement_database]\nconnection = {stock.replace('$', '$$')}\n"
            f"max_retries = -1\nmax_overflow = 1000\nmax_pool_size = 1\n{options}\n"
        )

        def run(command: str) -> "subprocess.CompletedProcess[str]":
            return subprocess.run(
                ["bash", "-c", command],
                cwd=tmp_path,
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=300,
            )

        return run

    return configured


def test_all_of_them_adopt_the_database_if_they_may(shell: Callable[[str], Shell], stock: str) -> None:
    """The tools run one after the other, and each must tolerate the work of the tools before it."""
    run = shell("adopt = true")
    for tool, commands in TOOLS.items():
        for command, successes in commands:
            done = run(command)
            assert done.returncode in successes, (tool, command, done.stdout, done.stderr)
    assert run("placement-manage db version").stdout.strip() == migration.newest_revision()
    admin = Admin(application(stock))
    listed = admin("GET", "/resource_providers").get_json()["resource_providers"]
    assert {world.HOST, world.NUMA, world.SHARING} <= {each["uuid"] for each in listed}


def test_without_leave_each_ends_with_what_to_do(shell: Callable[[str], Shell], stock: str) -> None:
    run = shell("")
    assert run("placement-manage db version").stdout.strip() == adoption.REVISIONS[-1]
    for command in (SYNC, ONLINE):
        done = run(command)
        assert done.returncode == 1
        assert "placement-manage db adopt" in done.stderr
        assert "Traceback" not in done.stderr
    assert run(CHECK).returncode == 2
    assert migration.version(stock) == adoption.REVISIONS[-1]
