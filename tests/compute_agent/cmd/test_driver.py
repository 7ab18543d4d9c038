"""Tests of the choice of the driver, also after restarts, and of messages while the driver is unknown."""

import contextlib
import json
import urllib.request
import uuid

import pytest

from tests.compute_agent.cmd.agents import AgentProcess, allowed_cpus
from tests.ports import free_port


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def configure(write_ini, libvirtd, port):
    """A function that writes the ini file with these lines in [guests]."""

    def configure(guests=""):
        return write_ini(
            "driver.ini",
            guests=f"reconcile_interval = 0.3\nstop_timeout = 0.2\n{guests}",
            libvirt=f"uri = {libvirtd.uri}",
            daemon=f"http_port = {port}",
        )

    return configure


@pytest.fixture
def agent(two_cpus, configure):
    """An agent that detects by itself which kind of guests the host has."""
    with AgentProcess(configure()) as agent:
        yield agent


@pytest.fixture
def fetch(port):
    def fetch(path):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()

    return fetch


@pytest.fixture
def domain(agent, claim, libvirtd, uid):
    """A running domain with one dedicated CPU."""
    claim(uid, PCPU=1)
    domain = libvirtd.run(uid, vcpus=1, persistent=True)
    agent.wait_for(lambda: [guest["cpus"] for guest in agent.ask("guest", "list")] == ["0"])
    return domain


@contextlib.contextmanager
def stopped(libvirtd):
    """Stop libvirtd and remove its socket until the context ends, as ``systemctl stop`` does."""
    libvirtd.kill()
    (libvirtd.folder / "libvirt-sock").unlink()
    try:
        yield
    finally:
        libvirtd.start()


def driver_up(fetch):
    lines = fetch("metrics")[1].splitlines()
    return [line for line in lines if line.startswith("compute_agent_driver_up ")]


def test_domains_are_not_forgotten_while_libvirtd_is_away_and_that_is_seen(
    agent, domain, client, libvirtd, fetch, uid
):
    assert (agent.status()["driver"], agent.status()["driver_status"]) == ("libvirt", "up")
    assert driver_up(fetch) == ["compute_agent_driver_up 1.0"]
    held = client.get_allocations(uid).resources
    agent.kill()
    with stopped(libvirtd):
        agent.start()
        status = agent.status()
        assert status["driver"] == "libvirt"
        assert status["driver_status"].startswith(f"away: libvirtd at {libvirtd.uri} does not answer")
        assert status["guests"] is None
        assert "set [guests] drivers = process" in status["warnings"][0]
        assert "set [guests] drivers = process" in agent.log()
        code, document = fetch("healthz")
        assert code == 200
        assert json.loads(document)["driver_status"] == status["driver_status"]
        assert driver_up(fetch) == ["compute_agent_driver_up 0.0"]

        agent.wait_for_placement()
        for command in (
            ("guest", "list"),
            ("guest", "show", uid),
            ("audit",),
            ("audit", "--delete", "--yes", "--min-age", "0"),
        ):
            done = agent.cli(*command)
            assert done.returncode == 1
            assert "it is not known which guests run: libvirtd" in done.stderr
            assert done.stdout == ""
        assert client.get_allocations(uid).resources == held
        assert "ended" not in agent.log()

    agent.wait_for(lambda: agent.status()["driver_status"] == "up")
    agent.wait_for(lambda: agent.status()["guests"] == 1)
    assert [guest["cpus"] for guest in agent.ask("guest", "list")] == ["0"]
    assert agent.audit() == (0, [])
    assert driver_up(fetch) == ["compute_agent_driver_up 1.0"]
    assert "ended" not in agent.log()


def test_libvirtd_that_goes_is_seen_and_its_guests_are_still_known(agent, domain, fetch, libvirtd, uid):
    with stopped(libvirtd):
        agent.wait_for(lambda: agent.status()["driver_status"].startswith("away"))
        assert driver_up(fetch) == ["compute_agent_driver_up 0.0"]
        assert [guest["uuid"] for guest in agent.ask("guest", "list")] == [uid]
        assert agent.cli("audit", "--delete", "--yes", "--min-age", "0").returncode == 1


def test_domains_and_processes_are_managed_together_and_processes_without_libvirtd(
    agent, configure, claim, libvirtd, fetch, uid
):
    claim(uid, PCPU=1)
    agent.kill()
    configure("drivers = libvirt, process\n")
    agent.start()
    libvirtd.run(uid, vcpus=1, persistent=True)
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    agent.ask("guest", "run", "--uuid", first, "--", "sleep", "100")
    refused = agent.cli("guest", "run", "--uuid", uid, "--", "sleep", "100")
    assert refused.returncode == 1

    def drivers():
        return {guest["uuid"]: guest["driver"] for guest in agent.ask("guest", "list")}

    def up():
        lines = fetch("metrics")[1].splitlines()
        return [line for line in lines if line.startswith("compute_agent_guest_driver_up{")]

    agent.wait_for(lambda: drivers() == {uid: "libvirt", first: "process"})
    assert agent.ask("guest", "show", first)["driver"] == "process"
    status = agent.status()
    assert (status["driver"], status["driver_status"], status["drivers_away"]) == (
        "libvirt,process",
        "up",
        {},
    )
    agent.kill()
    with stopped(libvirtd):
        agent.start()
        status = agent.status()
        assert status["drivers_away"].keys() == {"libvirt"}
        outage = f"away: driver libvirt: libvirtd at {libvirtd.uri} does not answer"
        assert status["driver_status"].startswith(outage)
        assert "Guests of driver process are managed" in status["driver_status"]
        assert status["driver_status"].endswith("start the service of driver libvirt again")
        assert (
            "Guests of driver libvirt cannot be listed yet. Until they can be listed, 1 guests of the state"
            in agent.log()
        )
        assert up() == [
            'compute_agent_guest_driver_up{driver="libvirt"} 0.0',
            'compute_agent_guest_driver_up{driver="process"} 1.0',
        ]
        assert driver_up(fetch) == ["compute_agent_driver_up 0.0"]
        assert drivers() == {first: "process"}
        agent.ask("guest", "run", "--uuid", second, "--", "sleep", "100")
        agent.ask("guest", "stop", first)
        assert drivers() == {second: "process"}
        unknown = agent.cli("guest", "show", uid)
        assert unknown.returncode == 1
        assert f"it is not known whether guest {uid} runs: driver libvirt" in unknown.stderr
        assert agent.cli("audit", "--delete", "--yes", "--min-age", "0").returncode == 1
    agent.wait_for(lambda: drivers() == {uid: "libvirt", second: "process"})
    agent.wait_for(lambda: agent.status()["drivers_away"] == {})
    assert agent.ask("guest", "show", uid)["cpus"] == "0"
    assert f"Guest {uid} ended" not in agent.log()


def test_another_driver_is_taken_if_the_option_says_so_and_says_what_that_does(
    agent, domain, configure, libvirtd, uid
):
    agent.kill()
    configure("drivers = process")
    agent.start()
    assert agent.status()["driver"] == "process"
    (warning,) = agent.status()["warnings"]
    assert "Guests of driver libvirt (1) continue to run, but the agent no longer manages them" in warning
    assert warning in agent.log()
    assert agent.ask("guest", "list") == []
    assert f"Guest {uid} ended" not in agent.log()
    assert allowed_cpus(libvirtd.process(domain)) == "1"

    agent.kill()
    agent.start()
    assert agent.status()["warnings"] == []  # it was said

    agent.kill()
    configure()
    agent.start()  # no process guest is left behind
    assert agent.status()["driver"] == "libvirt"
    agent.wait_for(lambda: [guest["cpus"] for guest in agent.ask("guest", "list")] == ["0"])


def test_process_guests_are_kept_though_libvirtd_came(agent, libvirtd, uid):
    with stopped(libvirtd):
        agent.start()
        assert (agent.status()["driver"], agent.status()["driver_status"]) == ("process", "up")
        guest = agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "100")
        agent.kill()
    agent.start()
    assert agent.status()["driver"] == "process"
    assert "set [guests] drivers = libvirt" in agent.status()["warnings"][0]
    assert [one["pid"] for one in agent.ask("guest", "list")] == [guest["pid"]]


def test_a_changed_driver_waits_for_a_restart_and_that_is_said(agent, configure):
    agent.start()
    assert agent.status()["warnings"] == []
    configure("drivers = process")
    agent.wait_for(lambda: agent.status()["warnings"])
    assert agent.status()["warnings"] == [
        "[guests] drivers was changed, and takes effect when the agent is restarted"
    ]
    assert agent.status()["driver"] == "libvirt"
