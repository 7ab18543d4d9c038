"""Tests of a running agent that offers PCI devices, counts the guests that hold them, and notices lost
devices.
"""

import shutil
import uuid

import pytest

from tests.compute_agent.builders import hold_resources
from tests.compute_agent.cmd.agents import AgentProcess, allowed_cpus
from tests.compute_agent.host.pci_trees import FakeDevice, make_pci_tree

GPU = "0000:82:00.0"
ON_SECOND_NODE = FakeDevice(("0000:80:01.0", GPU), node=1)


@pytest.fixture
def agent(client, configure, two_nodes):
    make_pci_tree(two_nodes, [ON_SECOND_NODE])
    ini = configure(
        "provider_tree = flat\ncpu_dedicated_set = 0-1",
        pci='device_spec = {"vendor_id": "10de", "resource_class": "gpu"}',
        guests="drivers = process\nreconcile_interval = 1",
    )
    with AgentProcess(ini) as agent:
        agent.start_reporting()
        yield agent


@pytest.fixture
def providers(agent, client):
    """A function that reads the providers of the host, by the part of their names after the host's name."""
    root = agent.status()["provider_uuid"]
    return lambda: {each.name.removeprefix("testhost"): each.uuid for each in client.providers_in_tree(root)}


def test_a_guest_runs_near_its_device_and_keeps_it_in_placement_when_it_vanishes(
    agent, client, providers, two_nodes
):
    gpu = providers()[f"_{GPU}"]
    consumer = str(uuid.uuid4())
    hold_resources(client, consumer, {providers()[""]: {"PCPU": 1}, gpu: {"CUSTOM_GPU": 1}})
    guest = agent.ask("guest", "run", "--uuid", consumer, "--name", "web", "--", "sleep", "100")
    assert allowed_cpus(guest["pid"]) == "1"
    (row,) = [row for row in agent.ask("guest", "verify") if row["kind"] == "devices"]
    assert (row["state"], row["promised"]) == ("unknown", f"PCI devices {GPU}")

    (row,) = agent.ask("device", "list")
    assert (row["address"], row["held"], row["numa_node"], row["guests"]) == (GPU, 1, 1, ["web"])
    assert f"PCI device  {GPU} CUSTOM_GPU: web" in agent.cli("topology", "show").stdout

    devices = two_nodes / "sys/bus/pci/devices"
    (devices / GPU).rename(two_nodes / "aside")
    kinds = ("event", "list", "--kind", "device_gone", "--kind", "device_back")
    agent.wait_for(lambda: [each["guest"] for each in agent.ask(*kinds)] == [consumer])
    (sentence,) = agent.wait_for(lambda: agent.status()["waiting_devices"])
    assert "the device is gone" in sentence
    assert client.get_inventories(gpu)[0]["CUSTOM_GPU"]["reserved"] == 1
    assert allowed_cpus(guest["pid"]) == "1"

    (two_nodes / "aside").rename(devices / GPU)
    agent.wait_for(lambda: client.get_inventories(gpu)[0]["CUSTOM_GPU"]["reserved"] == 0)
    agent.wait_for(lambda: agent.status()["waiting_devices"] == [])
    agent.wait_for(lambda: len(agent.ask(*kinds)) == 2)

    # A device without a holder goes at once.
    agent.ask("guest", "stop", "web")
    hold_resources(client, consumer, {})
    shutil.rmtree(two_nodes / "sys/devices/pci0000:80")
    (devices / GPU).unlink()
    agent.wait_for(lambda: f"_{GPU}" not in providers())
