"""Tests that a running agent keeps values that an operator sets through the API, and reports them."""

import pytest


@pytest.fixture
def root(agent, numa_node):
    return agent.status()["provider_uuid"]


def put(client, provider, name, **fields):
    inventories, generation = client.get_inventories(provider)
    client.set_inventories(provider, {**inventories, name: {**inventories[name], **fields}}, generation)


def shown(agent, name):
    (row,) = (row for row in agent.ask("inventory", "show") if row["name"] == name)
    return row


def test_a_running_agent_and_its_next_one_leave_what_an_operator_set(agent, client, root, numa_node):
    put(client, numa_node, "VCPU", allocation_ratio=7.5)
    put(client, numa_node, "MEMORY_MB", reserved=777)
    agent.reload()
    agent.wait_for(lambda: len(agent.status()["set_through_api"]) == 2)
    agent.terminate()
    agent.start_reporting()

    inventories = client.get_inventories(numa_node)[0]
    assert (inventories["VCPU"]["allocation_ratio"], inventories["MEMORY_MB"]["reserved"]) == (7.5, 777)
    assert shown(agent, "VCPU")["set_by"] == "allocation_ratio: set through the API, kept"
    assert shown(agent, "MEMORY_MB")["set_by"] == "reserved: set through the API, kept"
    assert shown(agent, "PCPU")["set_by"] == "agent"
    said = agent.status()["set_through_api"]
    assert any("reserved of MEMORY_MB was set to 777 through the API and stays" in one for one in said)

    put(client, numa_node, "VCPU", allocation_ratio=4.0)
    put(client, numa_node, "MEMORY_MB", reserved=512)
    agent.reload()
    agent.wait_for(lambda: agent.status()["set_through_api"] == [])


def test_an_option_of_the_ini_file_wins(agent, client, root, numa_node, write_ini):
    put(client, numa_node, "VCPU", allocation_ratio=7.5)
    agent.reload()
    agent.wait_for(lambda: agent.status()["set_through_api"])
    folder = agent.ini.parent
    write_ini(
        DEFAULT=f"state_path = {folder / 'state'}\nlock_path = {folder / 'locks'}\ncpu_allocation_ratio = 2.0"
    )
    agent.wait_for(lambda: client.get_inventories(numa_node)[0]["VCPU"]["allocation_ratio"] == 2.0)
    agent.wait_for(lambda: agent.status()["set_through_api"] == [])
    assert "but [DEFAULT] cpu_allocation_ratio says 2: unset that to keep what is set here" in agent.log()
