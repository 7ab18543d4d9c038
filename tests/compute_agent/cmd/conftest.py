"""Fixtures that run agents for tests of the command line."""

import pytest

from tests.compute_agent.builders import hold_resources
from tests.compute_agent.cmd.agents import AgentProcess, scrape_sample
from tests.ports import free_port

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


@pytest.fixture
def agent(two_cpus, write_ini):
    """An agent with the real placement service. CPU 0 is dedicated, CPU 1 shared."""
    with AgentProcess(write_ini()) as agent:
        yield agent


@pytest.fixture
def numa_node(agent, client):
    """The uuid of the provider that has the CPUs, after the agent has reported."""
    agent.start_reporting()
    root = agent.status()["provider_uuid"]
    (node,) = [provider for provider in client.providers_in_tree(root) if provider.parent_uuid == root]
    return node.uuid


@pytest.fixture
def claim(client, numa_node):
    """A function that allocates resources of the host to a consumer."""

    def claim(consumer, **resources):
        hold_resources(client, consumer, {numa_node: resources})

    return claim


@pytest.fixture
def metrics_port():
    """The port at which the agent serves its metrics."""
    return free_port()


@pytest.fixture
def metric(metrics_port):
    """A function that reads the value of one series of the agent's metrics; None without such a series."""
    return lambda series: scrape_sample(metrics_port, series)


@pytest.fixture
def two_nodes(two_cpus, tmp_path):
    """The files of a host on which CPUs 0 and 1 are a NUMA node each."""
    root = tmp_path / "host"
    files = {f"{CPU}/online": "0-1", f"{CPU}/present": "0-1", "proc/meminfo": "MemTotal: 16777216 kB"}
    for number in (0, 1):
        files |= {
            f"{CPU}/cpu{number}/topology/core_cpus_list": str(number),
            f"{CPU}/cpu{number}/topology/package_cpus_list": "0-1",
            f"{CPU}/cpu{number}/topology/physical_package_id": "0",
            f"{CPU}/cpu{number}/topology/core_id": str(number),
            f"{NODE}/node{number}/cpulist": str(number),
            f"{NODE}/node{number}/meminfo": f"Node {number} MemTotal: 8388608 kB",
            f"{NODE}/node{number}/distance": "10 20" if number == 0 else "20 10",
        }
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content + "\n")
    return root


@pytest.fixture
def configure(write_ini, two_nodes):
    """A function that writes the ini file with these CPU sets and this shape of the provider tree."""

    def configure(compute, policy="topology-aware", **sections):
        return write_ini(
            compute=f"resource_provider_name = testhost\n{compute}",
            host=f"root = {two_nodes}",
            policy=f"name = {policy}",
            **sections,
        )

    return configure
