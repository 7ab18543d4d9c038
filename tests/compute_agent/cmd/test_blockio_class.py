"""Tests that classes of block I/O from the command line reach the cgroup of the guest."""

import pytest

from compute_agent.drivers.cgroup import group_name
from tests.compute_agent.cgroups import CONTROLLERS, FILES
from tests.compute_agent.cmd.agents import AgentProcess

BULK = {"blockio_class:bulk": "weight = 50"}
UNKNOWN = (
    "there is no class of block I/O 'nobody'; there are bulk, and a section [blockio_class:NAME] makes"
    " another one\n"
)


@pytest.fixture
def group(tmp_path, uid):
    """The cgroup folder of the guest, below a folder that looks like a delegated group."""
    folder = tmp_path / "cgroup" / group_name(uid)
    folder.mkdir(parents=True)
    for each in (folder.parent, folder):
        for name, text in FILES.items():
            (each / name).write_text(text)
        for name in ("cgroup.controllers", "cgroup.subtree_control"):
            (each / name).write_text(" ".join(CONTROLLERS))
    return folder


@pytest.fixture
def agent(two_cpus, write_ini, group):
    with AgentProcess(write_ini(cgroup=f"root = {group.parent}", **BULK)) as agent:
        yield agent


def test_a_guest_has_what_its_class_says_until_it_has_none(agent, uid, group):
    agent.start_reporting()
    done = agent.cli("guest", "run", "--uuid", uid, "--blockio-class", "nobody", "--", "sleep", "100")
    assert (done.returncode, done.stderr) == (1, UNKNOWN)
    guest = agent.ask("guest", "run", "--uuid", uid, "--blockio-class", "bulk", "--", "sleep", "100")
    assert guest["blockio_class"] == "bulk"
    agent.wait_for(lambda: (group / "io.weight").read_text().strip() == "default 50")
    agent.ask("guest", "set", uid, "--blockio-class", "")
    agent.wait_for(lambda: (group / "io.weight").read_text().strip() == "default 100")
    assert agent.ask("guest", "show", uid)["blockio_class"] == ""
