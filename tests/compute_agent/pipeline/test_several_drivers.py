"""Tests of guests of two drivers on one host. If one driver cannot list its guests, the guests of the other
do not change.
"""

import itertools
import logging
from dataclasses import replace

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from compute_agent.classification.resolution import parse_policy
from compute_agent.drivers.combined import CombinedDriver
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import DriverError
from compute_agent.model.resource import CPU_QUOTA, ThrottleControl
from compute_agent.pipeline.events import (
    AllocationsRead,
    GuestStarted,
    GuestStopped,
    LimitGuest,
    ReconcileGuests,
    StartGuest,
)
from compute_agent.pipeline.state import AgentState
from compute_agent.pipeline.worker import GuestRefusedError
from tests.compute_agent.fakes import FakeDriver
from tests.compute_agent.pipeline.fake_host import ALL, HOST_STATE, FakeHost

AWAY = "libvirtd is away"
QUOTA = ThrottleControl(CPU_QUOTA)


class Host(FakeHost):
    """A host with domains, which another program starts, and with processes, which the agent starts."""

    def __init__(self, host_state=HOST_STATE):
        self.domains, self.processes = FakeDriver(ALL, "domains"), FakeDriver(ALL, "processes")
        self.domains.starting_guests = False
        # The pids of one host differ.
        self.processes._pids = itertools.count(5000)
        super().__init__(host_state, driver=CombinedDriver([self.domains, self.processes]))

    def run_domain(self, uuid, node, pcpu=1):
        guest = self.domains.create_guest(uuid, uuid, GuestSettings(), ())
        self.handle(GuestStarted(guest, {f"node{node}": {"PCPU": pcpu}}, 1.0, started=True))
        return guest

    def leave(self):
        """End the daemon of the domains, so that their driver neither makes nor reports a change."""
        self.domains.outage_reason, self.domains.broken = AWAY, DriverError(AWAY)

    def come_back(self):
        self.domains.outage_reason, self.domains.broken, self.domains.awaited = "", None, False
        self.handle(ReconcileGuests())

    def restart_agent(self):
        """An agent that starts while the daemon is away does not know the domains."""
        self.domains.awaited = bool(self.domains.outage_reason)
        self.restart()

    def cpus_of(self, uuid):
        driver = next(one for one in (self.domains, self.processes) if uuid in one.running)
        return set(driver.observed_cpus(driver.running[uuid]))

    def drivers_of_views(self):
        return {view.guest.uuid: view.guest.driver for view in self.pipeline.guest_views()}


@pytest.fixture
def host():
    return Host()


def test_guests_of_both_drivers_get_their_own_cpus(host):
    host.run_domain("d", 0)
    host.run("p", (0, 1, 0))
    assert host.drivers_of_views() == {"d": "domains", "p": "processes"}
    assert host.cpus_of("d") | host.cpus_of("p") == {1, 2}
    assert {uuid: saved.driver for uuid, saved in host.saved.items()} == {"d": "domains", "p": "processes"}


def test_a_process_with_the_uuid_of_a_domain_is_refused(host):
    host.run_domain("d", 0)
    with pytest.raises(GuestRefusedError, match="guest d of driver domains has this uuid"):
        host.run("d", (0, 1, 0))
    assert host.processes.running == {}


def test_a_process_with_the_uuid_of_a_lost_domain_is_refused(host):
    host.run_domain("d", 0)
    host.domains.lost_reasons["d"] = "its process is not found"
    host.handle(GuestStopped(host.domains.running.pop("d")))
    with pytest.raises(GuestRefusedError, match="may have the uuid d: its process is not found"):
        host.run("d", (0, 1, 0))


def test_a_rule_matches_the_guests_of_its_driver(load):
    rules = parse_policy(load("[guest_rule:r]\nmatch_driver = domains\npriority = 7\n"), follows=False)
    host = Host(replace(HOST_STATE, classification=rules))
    host.run_domain("d", 0)
    host.run("p", (0, 1, 0))
    found = {view.guest.uuid: view.guest.settings.priority for view in host.pipeline.guest_views()}
    assert found == {"d": 7, "p": GuestSettings().priority}


class TestADriverThatLeft:
    """The daemon of the domains ends while the agent runs."""

    @pytest.fixture(autouse=True)
    def absence(self, host):
        host.run_domain("d", 0)
        host.leave()

    def test_processes_start_and_move_while_a_domain_waits(self, host):
        assert host.run("p", (0, 1, 0)).assignment.dedicated == (2,)
        host.handle(AllocationsRead({"p": {"node1": {"PCPU": 1}}, "d": {"node1": {"PCPU": 1}}}, 2.0))
        assert host.cpus_of("p") == {5}
        assert host.cpus_of("d") == {1}
        assert {view.guest.uuid: view.pending for view in host.pipeline.guest_views()} == {
            "d": ("cpuset",),
            "p": (),
        }
        host.come_back()
        assert host.cpus_of("d") == {6}

    def test_a_drift_of_a_process_is_corrected(self, host):
        host.run("p", (0, 1, 0))
        process = host.processes.running["p"]
        host.processes.affinities["p"][process.pid] = ALL
        host.handle(ReconcileGuests())
        assert host.cpus_of("p") == {2}


class TestAnAgentThatStartsMeanwhile:
    """The agent starts while the daemon of the domains is away, so it knows only the processes."""

    @pytest.fixture(autouse=True)
    def absence(self, host, caplog):
        caplog.set_level(logging.INFO)
        host.run_domain("d", 0)
        host.run("p", (0, 1, 0))
        host.leave()

    def test_the_processes_are_managed_and_the_cpus_of_domains_stay_held(self, host, caplog):
        host.restart_agent()
        assert host.drivers_of_views() == {"p": "processes"}
        assert host.saved.keys() == {"d", "p"}
        with pytest.raises(GuestRefusedError, match="0 free dedicated CPUs"):
            host.run("q", (0, 1, 0))
        assert (
            "Guests of driver domains cannot be listed yet. Until they can be listed, 1 guests of the state"
            in caplog.text
        )
        assert "libvirtd is away. Guests of driver processes are managed" in caplog.text
        for _ in range(3):
            host.handle(ReconcileGuests())
        assert host.saved.keys() == {"d", "p"}
        assert "ended" not in caplog.text

    def test_a_domain_is_taken_over_when_its_driver_is_back(self, host):
        writes = host.domains.writes
        host.restart_agent()
        host.restart_agent()
        host.come_back()
        assert host.drivers_of_views() == {"d": "domains", "p": "processes"}
        assert host.cpus_of("d") == {1}
        assert host.domains.writes == writes
        assert host.saved["d"].allocation == {"node0": {"PCPU": 1}}

    def test_a_limit_of_a_domain_is_in_effect_again(self, host):
        host.domains.awaited = True
        host.new_pipeline()
        host.pipeline.start(AgentState(host.saved), limits={"d": {QUOTA: 0.5}})
        host.pipeline.stop()
        host.come_back()
        (view,) = (view for view in host.pipeline.guest_views() if view.guest.uuid == "d")
        assert view.limits == {QUOTA: 0.5}
        host.handle(LimitGuest("d", QUOTA, None))

    def test_a_domain_that_ended_meanwhile_gives_its_cpus_back(self, host, caplog):
        host.restart_agent()
        del host.domains.running["d"]
        host.come_back()
        assert host.saved.keys() == {"p"}
        assert caplog.text.count("ended while the agent did not run") == 1
        assert host.run("q", (0, 1, 0)).assignment.dedicated == (1,)

    def test_a_process_that_ended_meanwhile_is_no_secret_of_the_domains(self, host):
        del host.processes.running["p"]
        host.restart_agent()
        assert host.saved.keys() == {"d"}
        assert host.run("q", (0, 1, 0)).assignment.dedicated == (2,)

    def test_guests_of_a_former_release_are_looked_up_in_each_driver(self, host):
        host.saved = {uuid: replace(saved, driver="") for uuid, saved in host.saved.items()}
        del host.processes.running["p"]
        host.restart_agent()
        assert host.saved.keys() == {"d", "p"}  # either could be a domain
        with pytest.raises(GuestRefusedError, match="may have the uuid p"):
            host.run("p", (0, 1, 0))
        host.come_back()
        assert {uuid: saved.driver for uuid, saved in host.saved.items()} == {"d": "domains"}

    def test_a_start_that_is_reported_before_the_list_is_not_forgotten(self, host):
        host.restart_agent()
        host.handle(GuestStarted(host.domains.running["d"], None, 2.0))
        host.handle(ReconcileGuests())
        host.come_back()
        assert host.drivers_of_views() == {"d": "domains", "p": "processes"}
        assert host.cpus_of("d") == {1}

    def test_only_all_guests_count_as_taken_over(self, host):
        host.domains.awaited = True
        host.new_pipeline()
        pipeline = host.pipeline
        pipeline.start(AgentState(host.saved, unclaimed=host.unclaimed))
        try:
            assert (pipeline.has_taken_over, pipeline.has_taken_over_some) == (False, True)
            host.come_back()
            assert (pipeline.has_taken_over, pipeline.has_taken_over_some) == (True, True)
        finally:
            pipeline.stop()


class Histories(RuleBasedStateMachine):
    """Random starts, ends, absences and restarts, which never move or forget a guest of the other driver."""

    def __init__(self):
        super().__init__()
        self.host = Host()
        self.nodes = {}
        self.names = itertools.count()
        self.placed = {}
        """The CPUs that each running guest got, by uuid."""

    @property
    def is_away(self):
        return bool(self.host.domains.outage_reason)

    def has_room(self, node):
        return list(self.nodes.values()).count(node) < 2

    @precondition(lambda self: not self.is_away)
    @rule(node=st.integers(0, 1))
    def start_domain(self, node):
        if self.has_room(node):
            uuid = f"d{next(self.names)}"
            self.nodes[uuid] = node
            self.host.run_domain(uuid, node)
            self.placed[uuid] = self.host.cpus_of(uuid)

    @rule(node=st.integers(0, 1))
    def start_process(self, node):
        uuid = f"p{next(self.names)}"
        amounts = {f"node{node}": {"PCPU": 1}}
        event = StartGuest(uuid, uuid, GuestSettings(), ("x",), amounts, 1.0)
        if not self.has_room(node):
            with pytest.raises(GuestRefusedError):
                self.host.handle(event)
            return
        try:
            self.host.handle(event)
        except GuestRefusedError:
            # A domain that ended while its driver is away keeps its CPUs until the driver is back.
            assert self.is_away
            return
        self.nodes[uuid] = node
        self.placed[uuid] = self.host.cpus_of(uuid)

    @rule(data=st.data(), is_told=st.booleans())
    def end(self, data, is_told):
        if not self.nodes:
            return
        uuid = data.draw(st.sampled_from(sorted(self.nodes)))
        driver = self.host.domains if uuid in self.host.domains.running else self.host.processes
        guest = driver.running.pop(uuid)
        del driver.affinities[uuid], self.nodes[uuid], self.placed[uuid]
        # A driver that is away reports nothing; the next comparison finds the end.
        if is_told and not (driver is self.host.domains and self.is_away):
            self.host.handle(GuestStopped(guest))
        elif not self.host.domains.awaited or driver is self.host.processes:
            self.host.handle(ReconcileGuests())

    @rule()
    def leave(self):
        self.host.leave()

    @rule()
    def come_back(self):
        self.host.come_back()

    @rule()
    def reconcile(self):
        self.host.handle(ReconcileGuests())

    @rule()
    def restart(self):
        self.host.restart_agent()

    @invariant()
    def every_guest_runs_where_it_was_put(self):
        assert {uuid: self.host.cpus_of(uuid) for uuid in self.nodes} == self.placed
        cpus = [cpu for held in self.placed.values() for cpu in held]
        assert len(cpus) == len(set(cpus))

    @invariant()
    def no_guest_is_forgotten(self):
        assert self.host.saved.keys() >= self.nodes.keys()
        known = self.host.drivers_of_views()
        for uuid in self.nodes:
            if uuid in self.host.processes.running:
                assert known[uuid] == "processes"
            elif not self.host.domains.awaited:
                assert known[uuid] == "domains"


Histories.TestCase.settings = hypothesis_settings(deadline=None)
TestHistories = Histories.TestCase
