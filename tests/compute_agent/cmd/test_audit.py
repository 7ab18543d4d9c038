"""Tests of ``compute-agent audit``: its findings, the commands that repair them, and exit statuses."""

import csv
import io
import json
import os
import subprocess

import pytest
import yaml

from compute_agent.cmd.allocations import AuditCommand
from compute_agent.cmd.main import main
from tests.compute_agent.cmd.agents import MAIN

PARSERS = {
    "json": json.loads,
    "yaml": yaml.safe_load,
    "csv": lambda text: list(csv.DictReader(io.StringIO(text))),
}


@pytest.fixture
def unused(agent, claim, uid):
    """A consumer that holds the dedicated CPU without having a guest."""
    claim(uid, PCPU=1)
    return uid


def start(agent):
    return agent.ask("guest", "run", "--vcpus", "1", "--", "sleep", "100")["uuid"]


def answer(agent, text, *arguments):
    """Run an audit, and answer its question with `text`."""
    command = [*MAIN, "--config-file", agent.ini, "audit", "-f", "json", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)


def test_an_audit_without_findings_succeeds(agent, numa_node):
    assert agent.audit() == (0, [])
    assert agent.audit("--heal", "--delete", "--yes") == (0, [])


@pytest.mark.parametrize("form", [*PARSERS, "table"])
def test_findings_are_shown_in_every_format(agent, unused, form):
    done = agent.cli("audit", "-f", form)
    assert done.returncode == 3
    if form == "table":
        assert "testhost_NUMA_0: PCPU=1" in done.stdout
    else:
        (row,) = PARSERS[form](done.stdout)
        assert (row["finding"], row["consumer"]) == ("allocation without guest", unused)
        assert row["remedy"] == "--delete"


def test_a_healed_guest_is_shown_with_its_outcome(agent, client, numa_node):
    uuid = start(agent)
    assert agent.audit()[0] == 3
    status, (row,) = agent.audit("--heal", "--dry-run")
    assert (status, row["outcome"], row["resources"]) == (
        3,
        "would be done",
        {"testhost_NUMA_0": {"VCPU": 1}},
    )
    assert client.get_allocations(uuid).resources == {}
    status, (row,) = agent.audit("--heal")
    assert (status, row["outcome"]) == (4, "done")
    assert client.get_allocations(uuid).resources == {numa_node: {"VCPU": 1}}
    agent.wait_for(lambda: agent.ask("guest", "show", uuid)["kind"] == "shared")
    assert agent.audit() == (0, [])


def test_young_allocations_are_not_deleted(agent, client, unused):
    status, (row,) = agent.audit("--delete", "--yes")
    assert status == 3
    assert row["outcome"].startswith("left: it has been without a guest for 0 s")
    assert client.get_allocations(unused).resources != {}


def test_deletions_need_a_confirmation(agent, client, unused):
    for text in ("n\n", "\n", ""):
        done = answer(agent, text, "--delete", "--min-age", "0")
        assert done.returncode == 3
        assert f"to be deleted: {unused} (testhost_NUMA_0: PCPU=1), without a guest for 0 s" in done.stderr
        assert "Nothing is deleted." in done.stderr
        assert client.get_allocations(unused).resources != {}
    assert answer(agent, "y\n", "--delete", "--min-age", "0").returncode == 4
    assert client.get_allocations(unused).resources == {}


def test_a_script_deletes_the_allocation_of_one_consumer(agent, client, unused):
    status, (row,) = agent.audit("--delete", "--yes", "--min-age", "0", "--consumer", unused)
    assert (status, row["outcome"]) == (4, "done")
    assert client.get_allocations(unused).resources == {}


def test_age_counts_from_the_guests_end(agent, claim, client, uid):
    claim(uid, PCPU=1)
    agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "100")
    agent.ask("guest", "stop", uid)
    _, (row,) = agent.audit("--delete", "--yes", "--min-age", "0.01")
    assert row["outcome"] == "done"


def test_a_guest_that_uses_other_amounts_is_a_finding(agent, claim, uid):
    claim(uid, PCPU=1)
    agent.ask("guest", "run", "--uuid", uid, "--vcpus", "2", "--", "sleep", "100")
    status, (row,) = agent.audit("--heal", "--delete", "--yes")
    assert (status, row["detail"], row["remedy"]) == (3, "holds 0 VCPU, uses 1", "")


@pytest.mark.parametrize(("remedy", "status"), [("[isolation] emulator = move", 0), ("", 3)])
def test_emulator_threads_on_dedicated_cpus_count_if_the_agent_moves_them(
    monkeypatch, capsys, remedy, status
):
    finding = dict.fromkeys(("consumer", "name", "detail", "outcome"), "") | {"resources": {}}
    finding |= {"finding": "emulator threads on dedicated CPUs", "remedy": remedy}
    monkeypatch.setattr(AuditCommand, "ask_daemon", lambda self, *question: [finding])
    assert main(["audit", "-f", "csv"]) == status
    assert finding["finding"] in capsys.readouterr().out


def test_bad_options_are_named(agent, numa_node):
    done = agent.cli("audit", "--min-age", "-1")
    assert done.returncode == 1
    assert "min_age" in done.stderr


def test_placement_away_is_an_error(agent, numa_node, live_placement):
    live_placement.stop()  # the test waits for the first report, because its threads write to stderr as well
    done = agent.cli("audit")
    assert (done.returncode, done.stdout) == (1, "")
    assert os.linesep not in done.stderr.strip()


NOVAS = """<nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
  <nova:flavor name="pinned"><nova:memory>64</nova:memory><nova:disk>1</nova:disk><nova:vcpus>1</nova:vcpus>
    <nova:extraSpecs><nova:extraSpec name="hw:cpu_policy">dedicated</nova:extraSpec></nova:extraSpecs>
  </nova:flavor>
  <nova:owner><nova:user uuid="u1">me</nova:user><nova:project uuid="p1">us</nova:project></nova:owner>
</nova:instance>"""


def test_a_domain_gets_the_amounts_of_its_flavor_and_its_cpus(
    write_ini, agent, client, libvirtd, uid, numa_node
):
    agent.kill()
    libvirt = f"uri = {libvirtd.uri}"
    write_ini(guests="drivers = libvirt\nreconcile_interval = 0.3", libvirt=libvirt)
    agent.start()
    domain = libvirtd.run(uid, vcpus=1, metadata=NOVAS)
    agent.wait_for(lambda: [guest["kind"] for guest in agent.ask("guest", "list")] == ["unallocated"])
    status, (row,) = agent.audit("--heal")
    assert (status, row["outcome"], row["name"]) == (4, "done", domain.name())
    record = client.get_allocations(uid)
    assert record.resources == {numa_node: {"PCPU": 1, "MEMORY_MB": 64}}
    assert (record.project_id, record.user_id) == ("p1", "u1")
    agent.wait_for(lambda: agent.ask("guest", "show", uid)["cpus"] == "0")
    assert agent.audit() == (0, [])


def test_a_domain_that_is_shut_off_keeps_its_allocation(write_ini, agent, claim, client, libvirtd, uid):
    agent.kill()
    libvirt = f"uri = {libvirtd.uri}"
    write_ini(guests="drivers = libvirt\nreconcile_interval = 0.3", libvirt=libvirt)
    agent.start()
    claim(uid, PCPU=1)
    domain = libvirtd.run(uid, vcpus=1, persistent=True)
    agent.wait_for(lambda: [guest["kind"] for guest in agent.ask("guest", "list")] == ["dedicated"])
    domain.destroy()
    agent.wait_for(lambda: agent.ask("guest", "list") == [])
    arguments = ("--delete", "--yes", "--min-age", "0")
    assert agent.audit(*arguments) == (0, [])
    assert client.get_allocations(uid).resources != {}
    domain.undefine()
    assert agent.audit(*arguments)[0] == 4
    assert client.get_allocations(uid).resources == {}
