"""Tests of the first agent on a host of Nova with a real QEMU guest: it detects Nova, and moves no guest."""

import pytest

from tests.compute_agent.builders import hold_resources
from tests.compute_agent.cmd.agents import AgentProcess, places
from tests.compute_agent.nova_compute import NovaCompute

NOVAS = "99999999-0000-4000-8000-000000000001"


@pytest.fixture
def nova(client):
    nova = NovaCompute(client, NOVAS, "testhost", vcpus=1, pcpus=1, memory_mb=4096)
    nova.update()
    return nova


@pytest.fixture
def agent(two_cpus, write_ini, libvirtd, nova):
    """An agent with CPU 0 dedicated and CPU 1 shared. Its configuration does not mention nova-compute."""
    with AgentProcess(
        write_ini(
            "nova.ini",
            guests="drivers = libvirt\nreconcile_interval = 0.1",
            libvirt=f"uri = {libvirtd.uri}",
        )
    ) as agent:
        yield agent


def test_a_guest_that_nova_pinned_stays_where_it_is(agent, nova, client, libvirtd, uid, live_placement):
    """Nova has pinned the guest to CPU 1, where the agent's own policy would place no dedicated guest."""
    hold_resources(client, uid, {NOVAS: {"PCPU": 1, "MEMORY_MB": 64}})
    domain = libvirtd.run(uid, vcpus=1, persistent=True)
    domain.pinVcpu(0, (False, True))
    pid = libvirtd.process(domain)
    before = places(pid)
    assert before[0] == {"1"}
    live_placement.writes()

    agent.start()
    agent.wait_for(lambda: agent.status()["provider_is"] == "nova-compute's")
    agent.wait_for(lambda: agent.status()["last_report_seconds_ago"] is not None)
    held = {NOVAS: {"PCPU": 1, "MEMORY_MB": 64}}
    agent.wait_for(lambda: agent.ask("guest", "show", uid)["allocation"] == held)
    assert agent.ask("guest", "show", uid)["vcpu_cpus"] == ["1"]
    agent.kill()
    agent.start()
    agent.wait_for(lambda: agent.status()["guests"] == 1)
    assert agent.status()["policy"] == "follow"
    assert places(pid) == before
    assert "nova-compute owns the root provider testhost" in agent.log()
    assert live_placement.writes() == []  # a host without resctrl has nothing to offer that Nova does not
    assert {one.uuid for one in client.providers_in_tree(NOVAS)} == {NOVAS}
