"""Tests that the agent works with the few privileges of its systemd unit; tests/packages counts these."""

import os
import pwd
import re
import subprocess
from pathlib import Path

import pytest

from tests.compute_agent.cmd.agents import MAIN, AgentProcess, allowed_cpus
from tests.packages import confinement

UNIT = Path(__file__).parents[3] / "etc/compute-agent/compute-agent.service"
NOBODY = pwd.getpwnam("nobody").pw_uid


class ConfinedAgent(AgentProcess):
    """An agent that has only the capabilities and system calls that the unit allows."""

    def launch(self):
        words = [*MAIN, "--config-file", self.ini, "run"]
        with open(self.ini.parent / "agent.log", "ab") as log:
            self.process = subprocess.Popen(confinement.command(UNIT, words, []), stderr=log)


@pytest.fixture
def agent(two_cpus, write_ini):
    agent = ConfinedAgent(write_ini())
    try:
        agent.start()
    except confinement.ConfinementMissing as missing:
        pytest.skip(str(missing))
    agent.wait_for_placement()
    yield agent
    agent.close()


@pytest.fixture
def foreign():
    """A process of another user that ignores SIGTERM."""
    command = ["sh", "-c", "trap '' TERM; echo; while :; do sleep 1; done"]
    process = subprocess.Popen(command, user=NOBODY, cwd="/", stdout=subprocess.PIPE)
    process.stdout.read(1)
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.root
def test_the_agent_pins_and_ends_guests_with_the_capabilities_of_the_unit(agent, foreign, uid, write_ini):
    status = Path(f"/proc/{agent.process.pid}/status").read_text()
    assert "Seccomp:\t2" in status
    kept = int(re.search(r"CapEff:\s+(\w+)", status)[1], 16)
    assert kept.bit_count() == len(confinement.settings_of(UNIT)["CapabilityBoundingSet"][0].split())

    guest = agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "300")
    assert allowed_cpus(guest["pid"]) == "1"
    os.sched_setaffinity(guest["pid"], {0, 1})
    agent.wait_for(lambda: allowed_cpus(guest["pid"]) == "1")
    agent.ask("guest", "stop", uid)

    adopted = agent.ask("guest", "adopt", "--name", "theirs", "--pid", foreign.pid)
    agent.wait_for(lambda: allowed_cpus(foreign.pid) == "1")
    assert adopted["pid"] == foreign.pid
    agent.ask("guest", "set", "theirs", "--qos-class", "BE")
    agent.wait_for(lambda: Path(f"/proc/{foreign.pid}/oom_score_adj").read_text() == "500\n")
    write_ini(guests="drivers = process\nreconcile_interval = 0.3\nstop_timeout = 0.2")
    agent.reload()
    agent.wait_for(lambda: "The configuration and the host were read again" in agent.log())
    agent.ask("guest", "stop", "theirs")
    assert foreign.wait(20) == -9


def data_limits(pid):
    """The soft and the hard limit of a process's memory, in bytes."""
    return re.search(r"Max data size +(\w+) +(\w+)", Path(f"/proc/{pid}/limits").read_text()).groups()


@pytest.mark.root
def test_the_memory_of_the_agent_has_a_limit_and_that_of_its_guests_none(agent, uid):
    assert data_limits(agent.process.pid) == (str(2 * 2**30), "unlimited")
    guest = agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "300")
    assert data_limits(guest["pid"]) == ("unlimited", "unlimited")
    agent.ask("guest", "stop", uid)


@pytest.mark.root
def test_a_guest_can_give_up_root_under_the_unit(agent, uid):
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--", "sleep", "300"]
    guest = agent.ask("guest", "run", "--uuid", uid, "--", *command)
    agent.wait_for(lambda: os.stat(f"/proc/{guest['pid']}").st_uid == NOBODY)
    assert allowed_cpus(guest["pid"]) == "1"
    agent.ask("guest", "stop", uid)
    assert agent.ask("guest", "list") == []
