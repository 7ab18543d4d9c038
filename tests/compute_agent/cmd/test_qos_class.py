"""Tests that guests can have only QoS classes that are configured."""

import subprocess

import pytest

REFUSED = "there is no class 'FOO'; there are BE, LS, LSR, and a section [qos_class:NAME] makes another one"
BATCH = {"qos_class:batch": "rank = 5"}


@pytest.fixture
def process():
    process = subprocess.Popen(["sleep", "100"])
    yield process
    process.kill()
    process.wait()


def test_an_unknown_class_is_refused_with_the_names_of_those_known(agent, numa_node, process, uid):
    agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "100")
    for command in (
        ("guest", "run", "--qos-class", "FOO", "--", "sleep", "100"),
        ("guest", "adopt", "--qos-class", "FOO", "--pid", process.pid),
        ("guest", "set", uid, "--qos-class", "FOO"),
    ):
        done = agent.cli(*command)
        assert (done.returncode, done.stderr) == (1, f"{REFUSED}\n")
    assert agent.ask("guest", "show", uid)["qos_class"] == "LS"
    assert [guest["uuid"] for guest in agent.ask("guest", "list")] == [uid]


def test_a_class_is_known_as_soon_as_it_is_configured(agent, numa_node, uid, write_ini):
    assert agent.cli("guest", "run", "--uuid", uid, "--qos-class", "batch", "--", "true").returncode == 1
    write_ini(**BATCH)
    agent.wait_for(lambda: "The configuration and the host were read again" in agent.log())
    guest = agent.ask("guest", "run", "--uuid", uid, "--qos-class", "batch", "--", "sleep", "100")
    assert guest["qos_class"] == "batch"
