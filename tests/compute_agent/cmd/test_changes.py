"""Tests that a running agent applies changes of its files, of the hardware and of Placement at once.

The intervals of reports and reconciliations are longer than any test waits, so that only the changes
themselves can cause the effect.
"""

import os
import signal
import uuid

import pytest

from tests.compute_agent.builders import hold_resources, release_resources
from tests.compute_agent.cmd.agents import SECONDS, AgentProcess, allowed_cpus

SELDOM = 10 * SECONDS


@pytest.fixture
def rewrite(configure, metrics_port):
    """A function that rewrites the ini file, with long intervals of reports and reconciliations."""

    def rewrite(compute=""):
        return configure(
            f"update_resources_interval = {SELDOM}\n{compute}",
            guests=f"reconcile_interval = {SELDOM}",
            daemon=f"http_port = {metrics_port}",
        )

    return rewrite


@pytest.fixture
def agent(client, rewrite):
    with AgentProcess(rewrite()) as agent:
        agent.start_reporting()
        yield agent


@pytest.fixture
def shown(agent, client):
    """A function that reads the totals in Placement, by name of the provider and resource class."""
    root = agent.status()["provider_uuid"]

    def shown():
        return {
            provider.name.removeprefix("testhost").lstrip("_"): {
                name: record["total"]
                for name, record in client.get_inventories(provider.uuid)[0].items()
                if name != "DISK_GB"
            }
            for provider in client.providers_in_tree(root)
        }

    return shown


@pytest.fixture
def claim(agent, client):
    """A function that allocates resources of one of the host's providers to a new consumer, and returns its
    uuid.
    """

    def claim(zone, **resources):
        consumer = str(uuid.uuid4())
        root = agent.status()["provider_uuid"]
        at = next(p.uuid for p in client.providers_in_tree(root) if p.name == f"testhost_{zone}")
        hold_resources(client, consumer, {at: resources})
        return consumer

    return claim


def node(cpu_class="VCPU", memory_mb=8192):
    return {cpu_class: 1, "MEMORY_MB": memory_mb}


def test_a_changed_file_is_reported_at_once(agent, rewrite, shown):
    assert shown() == {"": {}, "NUMA_0": node(), "NUMA_1": node()}
    rewrite("cpu_dedicated_set = 1")
    agent.wait_for(lambda: shown() == {"": {}, "NUMA_0": {"MEMORY_MB": 8192}, "NUMA_1": node("PCPU")})


def test_a_signal_reloads_the_configuration_at_once(agent, shown, two_nodes):
    meminfo = two_nodes / "sys/devices/system/node/node1/meminfo"
    meminfo.write_text("Node 1 MemTotal: 4194304 kB\n")
    agent.process.send_signal(signal.SIGHUP)
    agent.wait_for(lambda: shown()["NUMA_1"] == node(memory_mb=4096))


def test_a_cpu_that_goes_offline_and_online_is_reported_at_once(agent, shown, two_nodes):
    online = two_nodes / "sys/devices/system/cpu/online"
    online.write_text("0\n")
    agent.wait_for(lambda: shown()["NUMA_1"] == {"MEMORY_MB": 8192})
    online.write_text("0-1\n")
    agent.wait_for(lambda: shown()["NUMA_1"] == node())


def offline_warnings(agent):
    return [each for each in agent.status()["warnings"] if "cpu_dedicated_set: CPU 1 offline" in each]


def test_a_dedicated_cpu_that_goes_offline_counts_as_present_for_reloads_and_restarts(
    agent, rewrite, shown, two_nodes, metric, claim
):
    rewrite("cpu_dedicated_set = 1")
    agent.wait_for(lambda: shown()["NUMA_1"] == node("PCPU"))
    online = two_nodes / "sys/devices/system/cpu/online"
    online.write_text("0\n")
    agent.wait_for(lambda: offline_warnings(agent))
    assert agent.status()["config_error"] == ""
    assert metric("compute_agent_configuration_refused") == 0
    assert shown()["NUMA_1"] == node("PCPU")
    # other changes are applied meanwhile
    rewrite("cpu_dedicated_set = 1\nreserved_host_memory_mb = 1024")
    agent.wait_for(lambda: "reserved_host_memory_mb" not in agent.status()["config_error"])
    assert shown()["NUMA_1"] == node("PCPU")

    agent.terminate()
    agent.start_reporting()
    assert (len(offline_warnings(agent)), agent.status()["refused"]) == (1, [])
    assert shown()["NUMA_1"] == node("PCPU")
    consumer = claim("NUMA_1", PCPU=1)
    done = agent.cli("guest", "run", "--uuid", consumer, "--", "sleep", "60", "-f", "json")
    assert "CPUs 1 are offline" in done.stdout + done.stderr + agent.log()

    online.write_text("0-1\n")
    agent.wait_for(lambda: not offline_warnings(agent))
    kinds = ("--kind", "cpu_offline", "--kind", "cpu_online")
    offline, back = ["Dedicated CPU 1 went offline"], ["Dedicated CPU 1 came online again"]
    # the file of events is written by a thread of its own
    agent.wait_for(
        lambda: [each["text"] for each in agent.ask("event", "list", *kinds)] == 2 * offline + back
    )


def test_a_dedicated_cpu_that_was_never_online_is_left_out_by_reloads_and_restarts(
    agent, rewrite, shown, two_nodes
):
    (two_nodes / "sys/devices/system/cpu/online").write_text("0\n")
    agent.wait_for(lambda: shown()["NUMA_1"] == {"MEMORY_MB": 8192})
    rewrite("cpu_dedicated_set = 0-1")
    for _ in range(2):
        (warning,) = agent.wait_for(lambda: [w for w in agent.status()["warnings"] if "left out" in w])
        assert "CPU 1 is offline" in warning
        assert agent.status()["config_error"] == ""
        agent.wait_for(lambda: shown() == {"": {}, "NUMA_0": node("PCPU"), "NUMA_1": {"MEMORY_MB": 8192}})
        agent.terminate()
        agent.start()


def test_a_refused_change_is_shown_and_tried_again(agent, rewrite, shown, claim, client, metric):
    consumer = claim("NUMA_1", VCPU=1)
    rewrite("cpu_shared_set = 0")
    (refused,) = agent.wait_for(lambda: agent.status()["refused"])
    assert refused.startswith("Reshape: guests that hold what moves: 1;")
    assert "Placement refused Reshape" in agent.log()
    assert metric("compute_agent_refused_changes") == 1
    assert shown()["NUMA_1"] == node()

    count = 'compute_agent_reports_total{outcome="refused"}'
    before = metric(count)
    agent.wait_for(lambda: metric(count) >= before + 2)
    release_resources(client, consumer)
    agent.wait_for(lambda: shown()["NUMA_1"] == {"MEMORY_MB": 8192})
    agent.wait_for(lambda: agent.status()["refused"] == [])
    assert metric("compute_agent_refused_changes") == 0


def test_a_change_while_placement_is_away_is_reported_when_it_answers(
    agent, rewrite, shown, live_placement, metric
):
    live_placement.stop()
    rewrite("cpu_dedicated_set = 1")
    agent.wait_for(lambda: agent.status()["placement"] == "away")
    assert metric("compute_agent_placement_up") == 0
    live_placement.start()
    agent.wait_for_placement()
    assert shown()["NUMA_1"] == node("PCPU")


def test_an_agent_that_starts_without_placement_reports_when_it_answers(agent, live_placement, client):
    agent.terminate()
    live_placement.stop()
    agent.start()
    agent.wait_for(lambda: agent.status()["placement"] == "away")
    guest = agent.cli("guest", "run", "--", "sleep", "60")
    assert (guest.returncode, "no answer" in guest.stderr) == (1, True)
    live_placement.start()
    agent.wait_for_placement()


def test_a_guest_stays_where_it_is_while_its_allocation_waits_to_be_moved(
    agent, rewrite, shown, claim, client
):
    rewrite("cpu_dedicated_set = 1\ncpu_shared_set = 0")
    agent.wait_for(lambda: "PCPU" in shown()["NUMA_1"])
    consumer = claim("NUMA_1", PCPU=1)
    guest = agent.ask("guest", "run", "--uuid", consumer, "--", "sleep", "60")
    assert allowed_cpus(guest["pid"]) == "1"

    rewrite("cpu_dedicated_set = 1\ncpu_shared_set = 0\nprovider_tree = flat")
    agent.wait_for(lambda: agent.status()["refused"])
    os.kill(agent.process.pid, signal.SIGHUP)
    agent.wait_for(lambda: agent.log().count("The configuration and the host were read again") >= 3)
    assert agent.ask("guest", "show", consumer)["kind"] == "dedicated"
    assert allowed_cpus(guest["pid"]) == "1"

    assert agent.ask("reshape")
    assert set(shown()) == {""}
    root = agent.status()["provider_uuid"]
    assert client.get_allocations(consumer).resources == {root: {"PCPU": 1}}
    agent.wait_for(lambda: agent.ask("guest", "show", consumer)["allocation"] == {root: {"PCPU": 1}})
    assert agent.ask("guest", "show", consumer)["kind"] == "dedicated"
    assert allowed_cpus(guest["pid"]) == "1"
