"""Tests of reshapes by a running agent: by command, at the start, and with a kill at every request."""

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import uuid

import pytest

from compute_agent.agent import service
from compute_agent.agent.protocol import DaemonUnreachableError
from tests.compute_agent.builders import hold_resources, load_options
from tests.compute_agent.cmd.agents import AgentProcess, allowed_cpus
from tests.examples import PERCENT
from tests.placement.running import application
from tests.waits import wait_for

EACH = max(1, 100 // PERCENT)
"""The agent is killed at one in `EACH` requests."""
GUESTS = [str(uuid.UUID(int=number + (4 << 76) + (2 << 62))) for number in (1, 2)]


@pytest.fixture
def agent(client, configure):
    """An agent that has reported a flat provider tree with VCPU, and that moves no guest."""
    with AgentProcess(configure("provider_tree = flat", policy="none")) as agent:
        agent.start_reporting()
        yield agent


@pytest.fixture
def pinned(agent, client):
    """Two guests that hold VCPU of the flat tree. Another program has pinned each to a CPU of its NUMA
    node.
    """
    root = agent.status()["provider_uuid"]
    processes = []
    for number, consumer in enumerate(GUESTS):
        hold_resources(client, consumer, {root: {"VCPU": 1, "MEMORY_MB": 64}})
        process = subprocess.Popen(["sleep", "600"])
        processes.append(process)
        agent.ask("guest", "adopt", "--uuid", consumer, "--pid", process.pid, "--vcpus", "1")
        os.sched_setaffinity(process.pid, {1 - number})
    yield processes
    for process in processes:
        process.kill()
        process.wait()


NUMA = "provider_tree = numa\ncpu_dedicated_set = 0-1"


def shown(client, root):
    """Read from Placement all providers by name and all allocations by consumer, without generations."""
    names = {provider.uuid: provider.name for provider in client.providers_in_tree(root)}
    providers = {}
    for identifier, name in names.items():
        totals = {rc: record["total"] for rc, record in client.get_inventories(identifier)[0].items()}
        totals.pop("DISK_GB", None)
        providers[name] = totals
    held = {
        consumer: {names[at]: amounts for at, amounts in client.get_allocations(consumer).resources.items()}
        for consumer in GUESTS
    }
    return providers, held


OLD = (
    {"testhost": {"VCPU": 2, "MEMORY_MB": 16384}},
    {consumer: {"testhost": {"VCPU": 1, "MEMORY_MB": 64}} for consumer in GUESTS},
)
NEW = (
    {
        "testhost": {},
        "testhost_NUMA_0": {"PCPU": 1, "MEMORY_MB": 8192},
        "testhost_NUMA_1": {"PCPU": 1, "MEMORY_MB": 8192},
    },
    {
        GUESTS[0]: {"testhost_NUMA_1": {"PCPU": 1, "MEMORY_MB": 64}},
        GUESTS[1]: {"testhost_NUMA_0": {"PCPU": 1, "MEMORY_MB": 64}},
    },
)


def without_empty(state):
    """The state without providers that have no inventory, which may exist before and after a reshape."""
    providers, held = state
    return {name: totals for name, totals in providers.items() if totals or name == "testhost"}, held


def test_the_command_moves_allocations_that_a_changed_file_is_refused_for(agent, pinned, configure, client):
    """The agent refuses a changed file if allocations would have to move. The command shows the plan first,
    and then carries it out.
    """
    root = agent.status()["provider_uuid"]
    assert agent.ask("reshape", "--dry-run") == []
    configure(NUMA, policy="none")
    (refused,) = agent.wait_for(lambda: agent.status()["refused"])
    assert "guests that hold what moves: 2;" in refused
    assert "compute-agent reshape" in refused
    assert shown(client, root) == OLD

    rows = agent.ask("reshape", "--dry-run")
    moves = [tuple(row.values())[1:] for row in rows if row["kind"] == "allocation"]
    assert sorted(moves) == sorted(
        (consumer, "testhost", old, amount, node, new, amount)
        for consumer, node in zip(GUESTS, ("testhost_NUMA_1", "testhost_NUMA_0"), strict=True)
        for old, new, amount in (("VCPU", "PCPU", 1), ("MEMORY_MB", "MEMORY_MB", 64))
    )
    inventories = [tuple(row.values())[2:] for row in rows if row["kind"] == "inventory"]
    assert ("testhost", "VCPU", 2, "", "", "") in inventories
    assert ("", "", "", "testhost_NUMA_0", "PCPU", 1) in inventories
    assert shown(client, root) == OLD
    assert "testhost_NUMA_1" in agent.cli("reshape", "--dry-run").stdout

    assert agent.ask("reshape") == rows
    assert shown(client, root) == NEW
    assert agent.status()["refused"] == []
    assert agent.ask("reshape") == []
    assert [allowed_cpus(process.pid) for process in pinned] == ["1", "0"]


def test_an_agent_reshapes_at_its_start(agent, pinned, configure, client):
    """If a dedicated set is configured, the agent changes the VCPU of pinned guests to PCPU in Placement."""
    root = agent.status()["provider_uuid"]
    agent.terminate()
    configure(NUMA)
    agent.start_reporting()
    assert shown(client, root) == NEW
    agent.wait_for(lambda: {guest["kind"] for guest in agent.ask("guest", "list")} == {"dedicated"})
    assert [allowed_cpus(process.pid) for process in pinned] == ["1", "0"]


class Snapshot:
    """A copy of the database and of the agent's folder, from which a test starts again and again."""

    def __init__(self, folder):
        self._folder = folder
        self._number = 0
        shutil.copytree(folder / "state", folder / "state.before")
        with (
            contextlib.closing(sqlite3.connect(folder / "placement.sqlite")) as live,
            contextlib.closing(sqlite3.connect(folder / "before.db")) as copy,
        ):
            live.backup(copy)

    def restore(self):
        """Restore the agent's folder; return a service on a fresh copy of the database."""
        shutil.rmtree(self._folder / "state")
        shutil.copytree(self._folder / "state.before", self._folder / "state")
        self._number += 1
        database = self._folder / f"{self._number}.db"
        shutil.copy(self._folder / "before.db", database)
        return application(f"sqlite:///{database}")


class Killer:
    """A service that kills the agent right before or right after it handles a given request."""

    def __init__(self, serve, agent, when, at):
        self._serve, self._agent, self._when, self._at = serve, agent, when, at
        self.seen = 0

    def __call__(self, environ, start_response):
        self.seen += 1
        if self.seen == self._at and self._when == "before":
            self._kill()
            start_response("503 Gone", [])
            return []
        answer = self._serve(environ, start_response)
        if self.seen == self._at:
            self._kill()
        return answer

    def _kill(self):
        os.kill(self._agent.process.pid, signal.SIGKILL)  # the test alone waits for the process


def reported(agent):
    try:
        return agent.status()["placement"] == "up"
    except DaemonUnreachableError:
        return False


def finish(ini):
    """Start the next agent in this process, and wait until everything is reported."""
    agent = service.HostAgent(lambda: load_options(ini))
    agent.start()
    try:
        wait_for(lambda: agent.reports.status.up)
    finally:
        agent.stop()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_agent_killed_at_any_request_leaves_the_old_or_the_new_state(
    agent, pinned, configure, client, live_placement, tmp_path, when
):
    """A SIGKILL at any request leaves the old or the new state, and the next start finishes."""
    root = agent.status()["provider_uuid"]
    agent.terminate()
    configure(NUMA)
    before = Snapshot(tmp_path)
    left = []
    for at in range(1, 100, EACH):
        serve = before.restore()
        killer = live_placement.application = Killer(serve, agent, when, at)
        agent.launch()
        agent.wait_for(lambda: agent.process.poll() is not None or reported(agent))
        finished = killer.seen < at
        if not finished:  # the last request can still be in the service after the agent has reported
            agent.process.wait(30)
        live_placement.application = serve
        state = without_empty(shown(client, root))
        assert state in (OLD, NEW), f"{when} request {at}"
        left.append(state == OLD)
        if not finished:
            finish(agent.ini)
        assert shown(client, root) == NEW, f"{when} request {at}"
        assert [allowed_cpus(process.pid) for process in pinned] == ["1", "0"]
        agent.kill()
        if finished:
            break
    assert left == sorted(left, reverse=True), "from one request on it is the new state"
    assert set(left) == {True, False}
