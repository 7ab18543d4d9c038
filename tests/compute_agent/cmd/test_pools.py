"""Tests of an agent with a CPU pool, and of a guest that keeps its resources when the pool is removed."""

import pytest

from tests.compute_agent.builders import hold_resources
from tests.compute_agent.cmd.agents import AgentProcess, allowed_cpus

pytestmark = pytest.mark.slow

POOL = {"cpu_pool:gold": "cpus = 1\nguest_classes = LSR\n"}
SETS = "cpu_dedicated_set = 0-1"


@pytest.fixture
def agent(client, configure):
    """An agent with CPU 0 in NUMA node 0, and CPU 1 of node 1 in a pool."""
    with AgentProcess(configure(SETS, **POOL)) as agent:
        agent.start_reporting()
        yield agent


def test_a_guest_keeps_its_cpu_when_its_pool_goes_and_holds_that_of_the_node_then(
    agent, configure, client, uid
):
    root = agent.status()["provider_uuid"]
    providers = {one.name: one.uuid for one in client.providers_in_tree(root)}
    gold, node = providers["testhost_NUMA_1_POOL_gold"], providers["testhost_NUMA_1"]
    assert client.get_inventories(gold)[0]["PCPU"]["total"] == 1
    assert "CUSTOM_CPU_POOL_GOLD" in client.get_traits(gold)[0]
    assert "PCPU" not in client.get_inventories(node)[0]
    hold_resources(client, uid, {gold: {"PCPU": 1}})
    refused = agent.cli("guest", "run", "--uuid", uid, "--", "sleep", "600")
    assert "[cpu_pool:gold] admits guests of LSR, but the guest is of LS" in refused.stderr
    guest = agent.ask("guest", "run", "--uuid", uid, "--qos-class", "LSR", "--", "sleep", "600")
    assert allowed_cpus(guest["pid"]) == "1"

    configure(SETS)
    (waiting,) = agent.wait_for(lambda: agent.status()["refused"])
    assert "guests that hold what moves: 1;" in waiting
    assert agent.ask("guest", "show", uid)["dedicated_cpus"] == "1"
    assert allowed_cpus(guest["pid"]) == "1"

    agent.terminate()
    agent.start()
    agent.wait_for(lambda: client.get_allocations(uid).resources == {node: {"PCPU": 1}})
    agent.wait_for(lambda: gold not in {one.uuid for one in client.providers_in_tree(root)})
    shown = agent.ask("guest", "show", uid)
    assert (shown["dedicated_cpus"], shown["stray"], shown["refusal"]) == ("1", "", "")
    assert allowed_cpus(guest["pid"]) == "1"
