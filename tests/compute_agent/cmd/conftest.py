"""Agents for tests of the command line."""

import os
import uuid

import pytest

from tests.compute_agent.cmd.agents import Agent


@pytest.fixture
def agent(write_ini):
    """An agent of the real placement service; CPU 0 is dedicated, CPU 1 shared."""
    if not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("needs CPUs 0 and 1")
    agent = Agent(write_ini())
    yield agent
    agent.close()


@pytest.fixture
def uid():
    """A consumer's uuid."""
    return str(uuid.uuid4())


@pytest.fixture
def numa_node(agent, client):
    """uuid of the provider that has the CPUs; the agent has reported by then."""
    agent.start()
    agent.wait_for(lambda: agent.status()["placement"] == "up")
    root = agent.status()["provider_uuid"]
    (node,) = [provider for provider in client.providers_in_tree(root) if provider.parent_uuid == root]
    return node.uuid


@pytest.fixture
def claim(client, numa_node):
    """Allocates resources of the host to a consumer."""

    def claim(consumer, **resources):
        body = {
            "allocations": {numa_node: {"resources": resources}},
            "project_id": "p",
            "user_id": "u",
            "consumer_generation": client.allocations(consumer).generation,
            "consumer_type": "INSTANCE",
        }
        client._request("PUT", f"/allocations/{consumer}", body)

    return claim
