"""The agent on a host where `nova-compute` runs: neither undoes what the other one does."""

import time

import pytest

from tests.openstack.agent import agent
from tests.openstack.cloud import REAL, cloud, real_host, wait_for
from tests.openstack.ground import Ground
from tests.openstack.record import Record
from tests.openstack.scenario import Scene
from tests.openstack.servers import Servers

pytestmark = [pytest.mark.slow, pytest.mark.openstack]


def test_agent_and_nova_compute_leave_each_other_alone(openstack: Ground) -> None:
    with cloud(openstack, "ours") as running:
        servers = Servers(running)
        known = Scene(running, servers).record

        def pins() -> dict[str, str]:
            domains = openstack.libvirtd.connection.listAllDomains()
            return {each.UUIDString(): str(each.vcpuPinInfo()) for each in domains}

        wait_for("nova-compute has reported", lambda: "CUSTOM_LLC" in _root(known())["inventories"])
        servers.flavor("shared")
        servers.flavor("dedicated", hw_cpu_policy="dedicated")
        for name in ("shared", "dedicated"):
            servers.boot(name, name, REAL)
        before, pinned = known(), pins()
        with agent(openstack, real_host()) as beside:
            status = beside.ask("status")
            assert (status["provider_is"], status["waiting_for"]) == ("nova-compute's", "")
            time.sleep(10)  # it reports once a second
            assert beside.audit() == []
            assert _root(known()) == _root(before)
            assert known().allocations == before.allocations
            assert pins() == pinned
            childless = len(known().providers)
            running.hosts[REAL].stop()
            running.start(REAL)
            assert len(known().providers) == childless
            servers.delete("dedicated")
            wait_for("it holds nothing", lambda: "dedicated" not in known().allocations)
            wait_for("the agent knows", lambda: beside.audit() == [])


def _root(known: Record) -> dict[str, object]:
    """What is known of the host's own provider."""
    found: dict[str, object] = known.providers[REAL]
    return found
