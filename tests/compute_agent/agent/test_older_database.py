"""Tests of a whole agent while the database of Placement is replaced by an older copy."""

import json
import os
import sqlite3
from contextlib import closing

import pytest

from compute_agent.cmd.main import main
from tests.compute_agent.agent.cache_agent import uid
from tests.compute_agent.agent.running import RunningAgent
from tests.compute_agent.builders import release_resources

pytestmark = pytest.mark.slow


class OldDatabase:
    """A copy of the service's database, which a test can restore while the service runs."""

    def __init__(self, folder):
        self._live, self._copy = folder / "placement.sqlite", folder / "copy.sqlite"

    def back_up(self):
        self._transfer(self._live, self._copy)

    def restore(self):
        self._transfer(self._copy, self._live)

    @staticmethod
    def _transfer(source, target):
        with closing(sqlite3.connect(source)) as reading, closing(sqlite3.connect(target)) as writing:
            reading.backup(writing)


class AgentOfLostGuest(RunningAgent):
    """An agent with a guest on a dedicated CPU. The older copy of the database lacks the guest's
    allocation.
    """

    def run_dedicated(self, uid):
        self.claim(uid, PCPU=1)
        self.pid = self.ask("guest.run", uuid=uid, name="web", command=["sleep", "60"])["pid"]
        self.look()
        return self.pid

    def look(self):
        """Make one complete report."""
        assert self.agent.reports.report_now()
        self.agent.reconcile()
        self.wait_for(lambda: self.agent.pipeline.has_taken_over)

    def settled_cpus(self):
        """The CPUs of the guest after the worker has handled all events."""
        self.ask("guest.set", guest="web", priority=1)
        return os.sched_getaffinity(self.pid)

    def command(self, *words):
        return main(["--config-file", str(self.ini), *words])

    def metric(self):
        return self.agent.metrics.registry.get_sample_value("compute_agent_placement_older")


@pytest.fixture
def rig(two_cpus, write_ini, client):
    rig = AgentOfLostGuest(write_ini, client)
    yield rig
    rig.close()


@pytest.fixture
def copy(tmp_path):
    return OldDatabase(tmp_path)


UID = uid(1)
OTHER = uid(2)


@pytest.fixture
def lost(rig, copy):
    """The state after the restore: the guest runs, but Placement has no allocation of the guest."""
    copy.back_up()
    rig.run_dedicated(UID)
    copy.restore()
    assert rig.client.get_allocations(UID).resources == {}
    rig.look()
    return rig


def test_a_guest_keeps_its_cpu_though_an_older_copy_does_not_have_its_allocation(lost, caplog):
    assert lost.settled_cpus() == {0}
    status = lost.ask("status")
    assert (status["placement_history"], status["guests_kept"]) == ("older", [UID])
    assert "went back" in status["placement_history_reason"]
    assert status["unallocated_guests"] == []
    assert lost.metric() == 1
    lost.look()
    assert lost.settled_cpus() == {0}
    told = [it.getMessage() for it in caplog.get_records("setup") + caplog.records if it.levelname == "ERROR"]
    assert len(told) == 1, "it is told once"
    assert "Placement has an older copy of its database" in told[0]
    assert "compute-agent audit --heal" in told[0]


def test_an_older_database_is_remembered_across_a_restart(lost):
    lost.restart()
    lost.look()
    assert lost.ask("status")["placement_history"] == "older"
    assert lost.settled_cpus() == {0}


def test_a_restore_while_the_agent_is_away_is_noticed_when_it_comes_back(rig, copy):
    copy.back_up()
    rig.run_dedicated(UID)
    rig.agent.stop()
    copy.restore()
    rig.start_again()
    rig.wait_for(lambda: rig.ask("status")["placement"] == "up")
    rig.look()
    assert rig.settled_cpus() == {0}
    assert rig.ask("status")["placement_history"] == "older"


def test_an_empty_database_takes_nothing_from_guests(rig, copy, migrated_file, tmp_path):
    rig.run_dedicated(UID)
    OldDatabase._transfer(migrated_file, tmp_path / "placement.sqlite")
    rig.wait_for(lambda: rig.agent.reports.report_now())
    rig.look()
    assert rig.settled_cpus() == {0}
    assert rig.ask("status")["placement_history"] == "older"


def test_the_audit_heals_with_the_lost_amounts_and_their_owner(lost):
    (row,) = lost.ask("audit", heal=True)
    assert (row["outcome"], row["resources"]) == ("done", {"testhost_NUMA_0": {"PCPU": 1}})
    record = lost.client.get_allocations(UID)
    assert record.resources == {lost.node(): {"PCPU": 1}}
    assert (record.project_id, record.user_id, record.consumer_type) == ("project", "user", "INSTANCE")
    lost.look()
    assert lost.ask("status")["placement_history"] == "goes on"
    assert lost.metric() == 0
    assert lost.settled_cpus() == {0}


def test_the_states_of_hosts_give_everything_back_in_one_command(lost, capsys):
    files = [str(lost.ini.parent / "state" / "state.json")]
    assert lost.command("allocations", "restore", "--dry-run", "-f", "json", *files) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["consumer"], row["outcome"]) == (UID, "would be given back")
    assert lost.client.get_allocations(UID).resources == {}
    assert lost.command("allocations", "restore", "-f", "json", *files) == 0
    assert json.loads(capsys.readouterr().out)[0]["outcome"] == "given back"
    record = lost.client.get_allocations(UID)
    assert record.resources == {lost.node(): {"PCPU": 1}}
    assert (record.project_id, record.user_id, record.consumer_type) == ("project", "user", "INSTANCE")
    assert lost.command("allocations", "restore", "-f", "json", *files) == 0
    assert json.loads(capsys.readouterr().out)[0]["outcome"] == "not needed: it holds something"


def test_resources_that_another_consumer_got_meanwhile_are_refused_and_left(lost, capsys):
    lost.claim(OTHER, PCPU=1)
    state = str(lost.ini.parent / "state" / "state.json")
    assert lost.command("allocations", "restore", "-f", "json", state) == 1
    (restored,) = json.loads(capsys.readouterr().out)
    assert restored["outcome"].startswith("refused, as another consumer holds it")
    (row,) = (row for row in lost.ask("audit", heal=True) if row["consumer"] == UID)
    assert row["outcome"].startswith("refused")
    lost.look()
    assert lost.settled_cpus() == {0}


def test_an_operator_accepts_the_allocations_of_the_older_database(lost, capsys):
    assert lost.command("allocations", "accept", "-f", "json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["guest"], row["held"], row["holds"]) == (UID, {"testhost_NUMA_0": {"PCPU": 1}}, {})
    assert lost.settled_cpus() == {1}
    assert lost.ask("status")["placement_history"] == "goes on"
    assert lost.command("allocations", "accept", "-f", "json") == 0
    assert json.loads(capsys.readouterr().out) == []


def test_an_allocation_that_its_owner_removed_is_gone_at_once(rig):
    rig.run_dedicated(UID)
    release_resources(rig.client, UID)
    rig.look()
    assert rig.settled_cpus() == {1}
    assert rig.ask("status")["placement_history"] == "goes on"
