"""Tests that a host is not shown as open if its agent's report is overdue."""

import time

import pytest

from placement_extras.console import fleet
from tests.placement.running import Admin
from tests.placement_extras.console import world
from tests.placement_extras.console.pages import read_answer


@pytest.fixture
def told(app):
    """A function by which the agent of a host announces the time of its report, and the seconds until the
    next one is due.
    """
    admin, names = Admin(app), []

    def tell(name, ago, lasts):
        reported = time.time() - ago
        names.append(name)
        world.follow(
            admin,
            name,
            {fleet.REPORTED_AT: reported, fleet.REPORT_DUE: reported + lasts},
        )

    yield tell
    for name in names:
        world.follow(admin, name, {})


def test_a_silent_agent_is_seen_in_the_fleet_and_on_its_host(client, told):
    uuid = world.uuid_of("edge-1")
    assert "agent reported no time" in read_answer(client, f"providers/{uuid}")
    told("edge-1", 60, 1800)
    assert "edge-1 open" in read_answer(client, "", name="edge-1")
    assert "is silent" not in read_answer(client, f"providers/{uuid}")
    told("edge-1", 3600, 1800)
    fleet = read_answer(client, "", state="silent")
    assert "1 host of 8" in fleet
    assert "edge-1 silent" in fleet
    page = read_answer(client, f"providers/{uuid}")
    assert "edge-1 silent" in page
    assert "The agent of this host is silent: it should have reported by" in page
    stamp = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 3600))
    assert f"agent reported {stamp}" in page


def test_a_disabled_host_with_a_silent_agent_is_disabled(client, told):
    told("compute-9_NUMA0", 3600, 1800)
    assert "compute-9 5 providers, 2 NUMA nodes disabled" in read_answer(client, "", name="compute-9")
    assert "The agent of this host is silent" in read_answer(
        client, f"providers/{world.uuid_of('compute-9')}"
    )


def test_a_heartbeat_that_is_no_time_is_ignored(app, client, told):
    told("edge-1", 60, 1800)
    world.follow(Admin(app), "edge-1", {fleet.REPORTED_AT: 1.0, fleet.REPORT_DUE: "soon"})
    assert "edge-1 open" in read_answer(client, "", name="edge-1")
