"""Tests of the ends of claims with a whole agent and the service: expiry, announcements and evictions."""

import time

import pytest

from compute_agent.agent import dry_run
from compute_agent.agent.release import ReleaseOptions, open_release
from compute_agent.drivers import factory
from compute_agent.loops.note_files import ENDS_FILE
from compute_agent.report.claim_ends import (
    END_NOTES,
    EndNote,
    OnEnd,
    TimedClaim,
    time_text,
)
from tests.compute_agent.agent.cache_agent import uid
from tests.compute_agent.agent.peer_kinds import Containers, DockerContainers, Pods, Services
from tests.compute_agent.agent.running import RunningAgent
from tests.placement.builders import new_claim

pytestmark = pytest.mark.slow

UUID = uid(101)
HOUR = 3600.0
AT_ONCE = 2 * HOUR
"""A grace period that is longer than the claims of the tests."""


class Processes:
    """Process guests, with the interface of the other kinds."""

    name, option, uuid, section = "web", "process", UUID, {}

    def __init__(self, folder, monkeypatch):
        self.rig = None

    def start(self):
        self.rig.ask("guest.run", uuid=UUID, name=self.name, command=["sleep", "600"])

    def is_running(self):
        return any(guest.uuid == UUID for guest in self.rig.agent.driver.guests())

    def end(self):
        pass


@pytest.fixture(params=[Processes])
def kind(request, tmp_path, monkeypatch):
    folder = tmp_path / "peer"
    folder.mkdir()
    kind = request.param(folder, monkeypatch)
    if request.param is Processes:
        yield kind
        return
    monkeypatch.setattr(factory, "HostFolders", lambda *folders: kind.peer.folders)
    yield kind
    kind.peer.close()


@pytest.fixture
def start_agent(two_cpus, write_ini, client, kind):
    """Start an agent with CPU 0 dedicated and CPU 1 shared."""
    rigs = []

    def start_agent(grace=AT_ONCE, *options):
        names = dict.fromkeys((kind.option, "process"))
        lines = (f"drivers = {', '.join(names)}", "reconcile_interval = 0.3", "stop_timeout = 1", *options)

        def write():
            return write_ini(guests="\n".join(lines), qos=f"evict_grace = {grace}", **kind.section)

        rigs.append(RunningAgent(write, client))
        kind.rig = rigs[-1]
        return rigs[-1]

    yield start_agent
    for rig in rigs:
        rig.close()


def claim(rig, seconds, on_end="evict", uuid=UUID, generation=None):
    """Claim for a guest until some seconds from now; return the end."""
    end = int(time.time() + seconds)
    wanted = new_claim("resources=PCPU:1", consumer_uuid=uuid, consumer_generation=generation)
    body = {"claims": [wanted], "ends_at": time_text(end), "on_end": on_end}
    rig.client.send_request("POST", "/ext/v1/claims", body)
    return end


def start(rig, kind, seconds=HOUR, on_end="evict"):
    """Start a guest with a claim that ends, and report until the agent knows the end."""
    claim(rig, seconds, on_end, kind.uuid)
    kind.start()
    rig.wait_for(lambda: rig.agent.reports.report_now() and notes(rig))


def notes(rig):
    path = rig.ini.parent / "state" / ENDS_FILE
    return END_NOTES.parse(path.read_bytes()) if path.exists() else {}


def events(rig, kind="claim"):
    folder = rig.ini.parent / "state"
    return [line for line in (folder / "events.jsonl").read_text().splitlines() if f'"kind":"{kind}"' in line]


def overdue(rig):
    return rig.ask("status")["overdue_guests"]


@pytest.mark.parametrize("kind", [Processes, Services, Containers, DockerContainers, Pods], indirect=True)
def test_guests_of_each_kind_are_evicted_and_keep_their_allocations_until_the_end(start_agent, kind):
    rig = start_agent()
    start(rig, kind)
    rig.wait_for(lambda: not kind.is_running())
    rig.wait_for(lambda: "was evicted, because its claim ends at" in "".join(events(rig, "evict")))
    assert rig.client.get_allocations(kind.uuid).resources == {rig.node(): {"PCPU": 1}}
    assert overdue(rig) == []


def test_a_guest_runs_on_until_the_grace_period_begins(start_agent, kind):
    rig = start_agent(60)
    start(rig, kind)
    claim(rig, 62, generation=1)
    rig.agent.reports.report_now()
    rig.wait_for(lambda: not kind.is_running())


def test_notify_announces_the_end_and_names_the_guest_afterwards(start_agent, kind, caplog):
    rig = start_agent(AT_ONCE, "end_notice = 2h")
    start(rig, kind, on_end="notify")
    rig.wait_for(lambda: len(events(rig)) == 1)
    assert (kind.is_running(), overdue(rig)) == (True, [])
    claim(rig, 2, "notify", generation=1)
    rig.agent.reports.report_now()
    rig.wait_for(lambda: overdue(rig))
    (text,) = overdue(rig)
    assert text.startswith(f"web ({UUID}): its claim ended at ")
    assert kind.is_running()
    gauge = rig.agent.metrics.registry.get_sample_value
    rig.wait_for(lambda: gauge("compute_agent_overdue_guests") == 1)
    rig.wait_for(lambda: rig.agent.reports.report_now() and not rig.client.get_allocations(UUID).resources)
    rig.claim(UUID, PCPU=1)
    rig.wait_for(lambda: rig.agent.reports.report_now() and overdue(rig) == [])
    assert caplog.text.count("and the guest still runs") == 1
    assert "loses its allocation" not in caplog.text


def test_a_claim_that_is_extended_while_no_agent_runs_evicts_nothing(start_agent, kind):
    rig = start_agent(60)
    start(rig, kind, 120)
    rig.agent.stop()
    claim(rig, 2 * HOUR, generation=1)
    rig.start_again()
    rig.wait_for(lambda: rig.agent.reports.report_now() and notes(rig)[UUID].claim.generation == 2)
    assert kind.is_running()


@pytest.mark.parametrize("is_claimed_again", [False, True])
def test_a_claim_that_ends_while_no_agent_runs_evicts_its_guest(
    start_agent, kind, is_claimed_again, live_placement
):
    rig = start_agent(0.1)
    start(rig, kind)
    rig.agent.stop()
    end = claim(rig, 2, generation=1)
    # The agent would have read this end just before it ended.
    known = EndNote(UUID, "web", TimedClaim(2, end, OnEnd.EVICT))
    (rig.ini.parent / "state" / ENDS_FILE).write_bytes(END_NOTES.dump([known]))
    rig.wait_for(lambda: not rig.client.get_allocations(UUID).resources)
    if is_claimed_again:
        rig.claim(UUID, PCPU=1)
    live_placement.stop()
    rig.start_again()
    rig.wait_for(lambda: rig.ask("status")["placement"] == "away")
    assert kind.is_running()
    live_placement.start()
    if is_claimed_again:
        rig.wait_for(lambda: rig.agent.reports.report_now() and not notes(rig))
        assert kind.is_running()
    else:
        rig.wait_for(lambda: not kind.is_running())


def test_a_guest_is_evicted_while_placement_is_away(start_agent, kind, live_placement):
    rig = start_agent(0.1)
    start(rig, kind, HOUR)
    claim(rig, 6, generation=1)
    rig.agent.reports.report_now()
    live_placement.stop()
    rig.wait_for(lambda: not kind.is_running())


@pytest.mark.parametrize("kind", [Containers], indirect=True)
def test_an_agent_that_claims_does_not_claim_for_a_guest_that_has_to_leave(start_agent, kind):
    rig = start_agent(60, "claim = true")
    start(rig, kind, 120)
    rig.agent.stop()
    end = claim(rig, 2, uuid=kind.uuid, generation=1)
    known = EndNote(kind.uuid, kind.name, TimedClaim(2, end, OnEnd.EVICT))
    (rig.ini.parent / "state" / ENDS_FILE).write_bytes(END_NOTES.dump([known]))
    rig.wait_for(lambda: not rig.client.get_allocations(kind.uuid).resources)
    rig.start_again()
    rig.wait_for(lambda: not kind.is_running())
    assert rig.client.get_allocations(kind.uuid).resources == {}


def test_a_dry_run_a_check_and_a_release_evict_nothing(start_agent, kind):
    rig = start_agent(60)
    start(rig, kind, 120)
    rig.agent.stop()
    rig.ini.write_text(rig.ini.read_text().replace("evict_grace = 60", f"evict_grace = {AT_ONCE}"))
    dry_run.dry_run(rig.load_conf())
    dry_run.try_configuration(rig.load_conf())
    with open_release(rig.load_conf(), ReleaseOptions(), 10.0) as release:
        release.carry_out()
    assert kind.is_running()
    rig.start_again()
    rig.wait_for(lambda: not kind.is_running())


def start_sleeping(rig, seconds=600):
    """Start a guest with a claim that expires after `seconds`, and report once."""
    claim = new_claim("resources=PCPU:1", consumer_uuid=UUID, expires_in=seconds)
    rig.client.send_request("POST", "/ext/v1/claims", {"claims": [claim]})
    rig.ask("guest.run", uuid=UUID, name="web", command=["sleep", "60"])
    assert rig.agent.reports.report_now()


def told(rig, caplog):
    return [it for it in caplog.records if it.name == "compute_agent.loops.allocations"]


def test_a_claim_that_expires_under_a_guest_is_logged_once_and_shown(rig, caplog):
    start_sleeping(rig)
    assert rig.ask("guest.show", guest="web")["claim_expires"].startswith("20")
    assert rig.agent.reports.report_now()
    (line,) = told(rig, caplog)
    assert line.levelname == "WARNING"
    assert f"Guest web ({UUID}) loses its allocation in" in line.getMessage()
    assert "confirm_claims" in line.getMessage()
    claim = rig.client.expiring_claim(UUID)
    rig.client.confirm_claim(UUID, claim.generation)
    assert rig.agent.reports.report_now()
    assert rig.ask("guest.show", guest="web")["claim_expires"] == ""


def test_a_cpu_is_free_for_the_next_guest_as_soon_as_its_claim_expires(rig):
    start_sleeping(rig, seconds=5)
    assert rig.ask("guest.show", guest="web")["kind"] == "dedicated"
    rig.wait_for(lambda: rig.ask("guest.show", guest="web")["kind"] == "unallocated")
    other = uid(102)
    claim = new_claim("resources=PCPU:1", consumer_uuid=other)
    rig.client.send_request("POST", "/ext/v1/claims", {"claims": [claim]})
    assert rig.ask("guest.run", uuid=other, command=["sleep", "60"])["cpus"] == "0"


def test_the_agent_confirms_claims_where_an_option_asks_for_it(rig, caplog):
    caplog.set_level("INFO", "compute_agent")
    rig.agent.stop()
    rig.ini = rig.write_ini(guests="drivers = process\nconfirm_claims = true")
    rig.start_again()
    rig.wait_for(lambda: rig.ask("status")["placement"] == "up")
    start_sleeping(rig)
    assert rig.client.expiring_claim(UUID) is None
    assert rig.client.get_allocations(UUID).resources == {rig.node(): {"PCPU": 1}}
    assert [it.levelname for it in told(rig, caplog)] == ["INFO"]
    assert rig.ask("guest.show", guest="web")["claim_expires"] == ""
