"""Tests of audits of a fake host with the real Placement service."""

import logging
import re
import time
from dataclasses import replace

import pytest

from compute_agent.drivers.base import GuestFlavor
from compute_agent.loops import audit as audit_module
from compute_agent.loops.audit import HostAuditor
from compute_agent.loops.reports import ReportLoop
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import DriverError
from compute_agent.pipeline.events import ReconcileGuests, StartGuest
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.policy import POLICIES
from compute_agent.report.answers import ConcurrentUpdateError
from compute_agent.report.audit import UNKNOWN_OWNER, HealOptions
from compute_agent.report.capacity import CpuLocation
from compute_agent.report.reporter import HostReporter
from tests.compute_agent.builders import hold_resources, make_pipeline
from tests.compute_agent.fakes import FakeDriver
from tests.compute_agent.loops.configurations import reporting
from tests.compute_agent.loops.two_nodes import ELSEWHERE, NODES, SETS, TOPOLOGY, TREE

GUEST, OTHER = "22222222-0000-4000-8000-000000000001", "22222222-0000-4000-8000-000000000002"
PROJECT, USER = "33333333-0000-4000-8000-000000000001", "33333333-0000-4000-8000-000000000002"
HEAL, DELETE = HealOptions(heal=True), HealOptions(delete=True, min_age=0.0)


class OrderedDriver(FakeDriver):
    """A driver that knows the flavors of its guests."""

    def __init__(self):
        super().__init__(TOPOLOGY.online)
        self.flavor_of, self.defined = {}, set()

    @property
    def flavor_source(self):
        return self

    def read_flavor(self, guest):
        return self.flavor_of.get(guest.uuid, GuestFlavor())

    def inactive_guests(self):
        return frozenset(self.defined - self.running.keys())


class AuditedHost:
    """A host that has reported to Placement, and an audit of it."""

    def __init__(self, client, monkeypatch, policy="topology-aware"):
        self.client = client
        self.driver = OrderedDriver()
        host_state = HostState(TOPOLOGY, SETS, TREE, POLICIES[policy])
        self.pipeline = make_pipeline(host_state, self.driver)
        self.pipeline.start()
        reporter = HostReporter(client, {}, lambda owned: None)
        self.loop = ReportLoop(reporting(client), reporter, self.pipeline, AgentMetrics())
        client.create_provider(ELSEWHERE, "elsewhere", None)
        client.set_inventories(ELSEWHERE, {"PCPU": {"total": 8}}, 0)
        monkeypatch.setattr(audit_module, "locate_guests", lambda driver, host_state: self.locations())
        self.report()

    def locations(self):
        """The CPUs on which guests run in the fake kernel."""
        found = {}
        for guest in self.driver.guests():
            cpus = self.driver.observed_cpus(guest)
            alone = cpus <= SETS.dedicated
            found[guest.uuid] = (
                CpuLocation(cpus, frozenset(), guest.settings.vcpus) if alone else CpuLocation(floating=cpus)
            )
        return found

    def report(self):
        assert self.loop.report_now()
        self.pipeline.submit(ReconcileGuests()).result(10)  # and all before

    def claim(self, consumer, allocation, consumer_type="INSTANCE"):
        hold_resources(self.client, consumer, allocation, consumer_type=consumer_type)

    def held(self, consumer):
        return self.client.get_allocations(consumer).resources

    def run(self, uuid=GUEST, vcpus=1, allocation=None):
        event = StartGuest(uuid, uuid, GuestSettings(vcpus), ("x",), allocation or {}, time.monotonic())
        return self.pipeline.submit(event).result(10).guest

    def audit(self, orders=None):
        auditor = HostAuditor(self.pipeline, self.driver, self.client, lambda: None)
        return [
            (it.finding.kind.name, it.finding.consumer, it.outcome)
            for it in auditor.run_audit(orders or HealOptions())
        ]


@pytest.fixture
def rig(client, monkeypatch):
    rig = AuditedHost(client, monkeypatch)
    yield rig
    rig.pipeline.stop()


class TestHealing:
    """Missing allocations of guests are created if the audit may do so."""

    def test_a_plain_audit_changes_nothing(self, rig):
        rig.run()
        assert rig.audit() == [("UNALLOCATED", GUEST, "")]
        assert rig.audit(HealOptions(heal=True, dry_run=True)) == [("UNALLOCATED", GUEST, "would be done")]
        assert rig.held(GUEST) == {}

    def test_a_guest_on_shared_cpus_gets_vcpu(self, rig):
        rig.run(vcpus=2)
        assert rig.audit(HEAL) == [("UNALLOCATED", GUEST, "done")]
        record = rig.client.get_allocations(GUEST)
        assert record.resources == {NODES[0]: {"VCPU": 2}}
        assert (record.project_id, record.consumer_type) == (UNKNOWN_OWNER, "INSTANCE")
        assert rig.audit(HEAL) == []

    def test_a_guest_gets_the_amounts_of_its_flavor_and_then_its_cpus(self, rig):
        rig.run(vcpus=2)
        rig.driver.flavor_of[GUEST] = GuestFlavor(dedicated=2, project_id=PROJECT, user_id=USER)
        assert rig.audit(HEAL) == [("UNALLOCATED", GUEST, "done")]
        record = rig.client.get_allocations(GUEST)
        assert record.resources == {NODES[0]: {"PCPU": 2}}
        assert (record.project_id, record.user_id) == (PROJECT, USER)
        rig.loop.report_now()
        rig.pipeline.stop()
        assert rig.driver.observed_cpus(rig.driver.running[GUEST]) == {1, 2}

    def test_a_guest_that_holds_something_on_another_host_is_left(self, rig):
        rig.run()
        rig.claim(GUEST, {ELSEWHERE: {"PCPU": 1}})
        assert rig.audit(HEAL) == [
            ("UNALLOCATED", GUEST, "left: it holds something on other hosts, as guests do that are migrated")
        ]
        assert rig.held(GUEST) == {ELSEWHERE: {"PCPU": 1}}

    def test_two_guests_are_not_given_the_same_room(self, rig):
        for uuid in (GUEST, OTHER):
            rig.run(uuid, vcpus=2)
            rig.driver.flavor_of[uuid] = GuestFlavor(dedicated=2)
        rig.claim("33333333-0000-4000-8000-000000000009", {NODES[1]: {"PCPU": 1}})
        found = rig.audit(HEAL)
        assert found[0] == ("UNALLOCATED", GUEST, "done")
        assert found[1][2] == "not possible: there is no room for 2 PCPU (free: h_0 0, h_1 1)"

    def test_a_claim_of_another_program_meanwhile_is_kept(self, rig, monkeypatch):
        rig.run()
        real = rig.client.set_allocations

        def claimed_before(wanted):
            monkeypatch.setattr(rig.client, "set_allocations", real)
            rig.claim(GUEST, {NODES[1]: {"VCPU": 1}})
            real(wanted)

        monkeypatch.setattr(rig.client, "set_allocations", claimed_before)
        assert rig.audit(HEAL) == [("UNALLOCATED", GUEST, "not needed: it has an allocation by now")]
        assert rig.held(GUEST) == {NODES[1]: {"VCPU": 1}}


def test_a_flavor_with_an_unknown_class_stops_no_other_guest(rig):
    for uuid, resources in ((GUEST, {"NO_SUCH_CLASS": 1 << 30}), (OTHER, {})):
        rig.run(uuid)
        rig.driver.flavor_of[uuid] = GuestFlavor(resources)
    assert rig.audit(HEAL) == [
        ("UNALLOCATED", GUEST, "not possible: there is no room for 1073741824 NO_SUCH_CLASS (free: none)"),
        ("UNALLOCATED", OTHER, "done"),
    ]


def test_the_allocation_of_a_guest_that_is_lost_is_not_offered_for_deletion(rig):
    rig.claim(GUEST, {NODES[0]: {"PCPU": 1}})
    rig.driver.lost_reasons[GUEST] = "its record cannot be used"
    assert rig.audit(DELETE) == []
    rig.driver.lost_reasons.clear()
    assert rig.audit() == [("UNUSED", GUEST, "")]


class TestDeletion:
    """Allocations without a guest are deleted if the audit may do so and they are old enough."""

    @pytest.fixture
    def rig(self, rig):
        rig.claim(OTHER, {NODES[0]: {"PCPU": 1}})
        rig.report()
        return rig

    def test_allocations_are_deleted_only_if_the_audit_may_delete(self, rig):
        assert rig.audit() == [("UNUSED", OTHER, "")]
        assert rig.audit(HEAL) == [("UNUSED", OTHER, "")]
        assert rig.audit(replace(DELETE, dry_run=True)) == [("UNUSED", OTHER, "would be done")]
        assert rig.held(OTHER) == {NODES[0]: {"PCPU": 1}}
        assert rig.audit(DELETE) == [("UNUSED", OTHER, "done")]
        assert rig.held(OTHER) == {}

    def test_the_log_tells_deleted_and_created_apart(self, rig, caplog):
        rig.claim(OTHER, {NODES[0]: {"PCPU": 1}, ELSEWHERE: {"PCPU": 3}})
        rig.run()
        with caplog.at_level(logging.INFO, "compute_agent.loops.audit"):
            rig.audit(replace(DELETE, heal=True))
        told = sorted(one.getMessage() for one in caplog.records if "The audit" in one.getMessage())
        assert [one.partition("; it holds now: ")[0] for one in told] == [
            f"The audit created the allocation of consumer {GUEST}",
            f"The audit deleted the allocation of consumer {OTHER}",
        ]
        assert str(ELSEWHERE) in told[1]

    def test_a_young_allocation_is_left(self, rig):
        ((_, _, outcome),) = rig.audit(replace(DELETE, min_age=60.0))
        (seconds,) = re.findall(r"^left: it has been without a guest for (\d+) s", outcome)
        assert int(seconds) < 60  # it is as old as this test
        assert rig.held(OTHER) != {}

    def test_an_allocation_that_is_new_to_the_agent_has_no_age(self, rig):
        consumer = "22222222-0000-4000-8000-000000000003"
        rig.claim(consumer, {NODES[1]: {"PCPU": 1}})
        outcomes = {consumer: outcome for _, consumer, outcome in rig.audit(replace(DELETE, min_age=1e-9))}
        assert outcomes[OTHER] == "done"
        assert outcomes[consumer].startswith("left: it has been without a guest for 0 s")

    def test_amounts_on_other_hosts_stay(self, rig):
        rig.claim(OTHER, {NODES[0]: {"PCPU": 1}, ELSEWHERE: {"PCPU": 3}})
        assert rig.audit(DELETE) == [("UNUSED", OTHER, "done")]
        assert rig.held(OTHER) == {ELSEWHERE: {"PCPU": 3}}

    def test_a_migration_keeps_its_allocations(self, rig):
        rig.claim(OTHER, {NODES[0]: {"PCPU": 1}}, "MIGRATION")
        assert rig.audit(DELETE) == [("UNUSED", OTHER, "left: a migration holds it")]

    def test_a_guest_that_is_defined_and_does_not_run_keeps_its_allocation(self, rig):
        rig.driver.defined.add(OTHER)
        assert rig.audit(DELETE) == []

    def test_only_confirmed_allocations_are_deleted(self, rig):
        assert rig.audit(replace(DELETE, confirmed=frozenset({GUEST}))) == [
            ("UNUSED", OTHER, "left: it was not among those confirmed")
        ]
        assert rig.audit(replace(DELETE, confirmed=frozenset({OTHER}))) == [("UNUSED", OTHER, "done")]

    def test_only_allocations_of_named_consumers_are_deleted(self, rig):
        assert rig.audit(replace(DELETE, consumers=frozenset({GUEST}))) == []
        assert rig.held(OTHER) != {}

    def test_a_guest_that_comes_meanwhile_keeps_its_allocation(self, rig, monkeypatch):
        real = rig.client.get_allocations

        def allocations(consumer):
            if OTHER not in rig.driver.running:
                rig.driver.create_guest(OTHER, "o", GuestSettings(), ())
            return real(consumer)

        monkeypatch.setattr(rig.client, "get_allocations", allocations)
        assert rig.audit(DELETE) == [("UNUSED", OTHER, "not needed: its guest is here by now")]
        assert real(OTHER).resources != {}

    def test_an_allocation_that_changes_after_the_look_is_left(self, rig, monkeypatch):
        real = rig.client.set_allocations

        def changed_before(wanted):
            monkeypatch.setattr(rig.client, "set_allocations", real)
            rig.claim(OTHER, {NODES[0]: {"PCPU": 2}})
            real(wanted)

        monkeypatch.setattr(rig.client, "set_allocations", changed_before)
        assert rig.audit(DELETE) == [("UNUSED", OTHER, "left: another program changes it")]
        assert rig.held(OTHER) == {NODES[0]: {"PCPU": 2}}

    def test_conflicts_are_tried_again_and_then_reported(self, rig, monkeypatch):
        tries = []

        def refuse(wanted):
            tries.append(wanted)
            raise ConcurrentUpdateError("PUT", "/allocations", "changed", status=409)

        monkeypatch.setattr(rig.client, "set_allocations", refuse)
        ((_, _, outcome),) = rig.audit(DELETE)
        assert (len(tries), outcome) == (4, "refused: PUT /allocations: HTTP 409: changed")

    def test_allocations_are_not_deleted_while_the_driver_does_not_know_the_guests(self, rig, monkeypatch):
        def away():
            raise DriverError("libvirtd is away")

        monkeypatch.setattr(rig.driver, "guests", away)
        with pytest.raises(DriverError):
            rig.audit(DELETE)
        assert rig.held(OTHER) != {}


@pytest.mark.parametrize(("moves", "remedy"), [(False, "[isolation] emulator = move"), (True, "")])
def test_emulator_threads_that_another_program_leaves_on_dedicated_cpus_are_found(
    client, monkeypatch, moves, remedy
):
    rig = AuditedHost(client, monkeypatch, "follow")
    try:
        own, shared = frozenset({min(SETS.dedicated)}), SETS.shared
        guest = rig.run()
        rig.driver.vcpu_cpus[GUEST], rig.driver.emulator_cpus[GUEST] = {0: own}, own
        rig.driver.emulators[GUEST] = {7: own, 8: shared}
        rig.pipeline.submit(ReconcileGuests()).result(10)
        auditor = HostAuditor(rig.pipeline, rig.driver, client, lambda: None, moves_emulator=moves)
        [found] = [one for one in auditor.run_audit(HealOptions()) if one.finding.kind.name == "EMULATOR"]
        assert (found.finding.consumer, found.remedy) == (guest.uuid, remedy)
        text = f"threads that run no guest CPU may use dedicated CPUs {min(own)}: 7"
        assert found.finding.detail == text
        rig.driver.emulators[GUEST] = {7: shared, 8: shared}
        assert "EMULATOR" not in {kind for kind, _, _ in rig.audit()}
    finally:
        rig.pipeline.stop()
