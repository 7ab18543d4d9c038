"""Tests of two agents with different state folders for the same guests: the second agent is refused."""

import pytest

from tests.compute_agent.cmd.agents import AgentProcess

pytestmark = pytest.mark.slow


@pytest.fixture
def configure(write_ini, tmp_path):
    """A function that writes the ini file of one of several agents."""

    def configure(name, locks="locks", **sections):
        return write_ini(
            f"{name}.ini",
            DEFAULT=f"state_path = {tmp_path / name}\nlock_path = {tmp_path / locks}",
            compute=f"cpu_shared_set = 0\nresource_provider_name = {name}",
            **sections,
        )

    return configure


@pytest.fixture
def first(configure, tmp_path, request):
    """A function that starts the first agent."""

    def first(**sections):
        agent = AgentProcess(configure("first", **sections))
        agent.folder = tmp_path / "first"
        request.addfinalizer(agent.close)
        agent.start()
        return agent

    return first


def refused(agent, ini, words):
    done = agent.run_in_vain(ini)
    assert done.returncode == 1
    assert (
        f"another agent (pid {agent.process.pid}, agent of first, state folder {agent.folder}) already"
        f" manages {words}: stop one of the two, or give this one another"
    ) in done.stderr
    assert agent.status()["pid"] == agent.process.pid


@pytest.mark.parametrize("locks", ["locks", "of another container"])
def test_a_second_agent_on_one_libvirtd_is_refused_until_the_first_is_gone(
    first, configure, libvirtd, tmp_path, locks
):
    libvirt = {"guests": "reconcile_interval = 0.3", "libvirt": f"uri = {libvirtd.uri}"}
    agent = first(**libvirt)
    assert agent.status()["driver"] == "libvirt"
    other = configure("second", locks, **libvirt)
    refused(agent, other, f"the domains of {libvirtd.uri}")
    agent.kill()
    second = AgentProcess(other)
    second.folder = tmp_path / "second"
    try:
        second.start()
        assert second.status()["driver_status"] == "up"
    finally:
        second.close()


def test_a_second_agent_below_one_cgroup_is_refused(first, configure, tmp_path):
    root = tmp_path / "cgroup"
    root.mkdir()
    for name in ("cgroup.controllers", "cgroup.subtree_control", "cgroup.procs"):
        (root / name).touch()
    agent = first(cgroup=f"root = {root}")
    refused(agent, configure("second", cgroup=f"root = {root}"), f"the guests below {root}")


def test_agents_of_processes_without_groups_have_guests_of_their_own(first, configure, tmp_path):
    first()
    second = AgentProcess(configure("second"))
    second.folder = tmp_path / "second"
    try:
        second.start()
        assert second.status()["provider"] == "second"
    finally:
        second.close()
