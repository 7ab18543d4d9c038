"""Tests of guests that Nova moves, on the real service: Nova's requests, and the CPUs of the guest meanwhile.

Nova's conductor moves the guest's allocation to the consumer of the migration in one request, and then claims
the destination for the guest. Its requests have microversion 1.36, so they contain no consumer types.
"""

import logging
import time
from dataclasses import replace

import pytest

from compute_agent.agent.documents import guest_document
from compute_agent.drivers.base import ChangeKind, GuestChange, GuestFlavor
from compute_agent.inventory.provider_tree import ProviderInventory, ProviderTree
from compute_agent.loops import audit as audit_module
from compute_agent.loops.arrivals import GuestEvents
from compute_agent.loops.audit import HostAuditor, locate_consumers
from compute_agent.loops.reports import ReportLoop
from compute_agent.model.guest import GuestMigration
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.pipeline.events import HostStateChanged, ReconcileGuests, StartGuest
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.state import StateFile
from compute_agent.policy import POLICIES
from compute_agent.report.audit import FindingKind, HealOptions
from compute_agent.report.capacity import CpuLocation
from compute_agent.report.reporter import HostReporter
from tests.compute_agent.builders import find_view, make_pipeline, read_metric
from tests.compute_agent.fakes import FakeDriver
from tests.compute_agent.loops.configurations import configuration, reporting
from tests.compute_agent.loops.two_nodes import ELSEWHERE, NODES, ROOT, SETS, TOPOLOGY, TREE
from tests.placement.builders import claim_body

GUEST, OTHER, NEXT = (f"22222222-0000-4000-8000-00000000000{n}" for n in (1, 2, 3))
MIGRATION, ANOTHER = "44444444-0000-4000-8000-000000000001", "44444444-0000-4000-8000-000000000002"
HOST_STATE = HostState(TOPOLOGY, SETS, TREE, POLICIES["topology-aware"])
NOVA = "1.36"
SECONDS = 20


class DefinedDriver(FakeDriver):
    """A driver of guests that another program defines."""

    @property
    def flavor_source(self):
        return self

    def read_flavor(self, guest):
        return GuestFlavor()

    def inactive_guests(self):
        return frozenset()


class MigrationCloud:
    """A host with an agent that reports when the test says so, and a fake conductor of Nova."""

    def __init__(self, client, folder):
        self.client = client
        self.folder = folder
        self.driver = DefinedDriver(TOPOLOGY.online)
        self.start()
        client.create_provider(ELSEWHERE, "elsewhere", None)
        client.set_inventories(ELSEWHERE, {"PCPU": {"total": 8}, "VCPU": {"total": 8}}, 0)
        self.report()

    def start(self, host_state=HOST_STATE):
        self.state = StateFile(self.folder / "state.json")
        self.metrics = AgentMetrics()
        self.pipeline = make_pipeline(host_state, self.driver, self.metrics, self.state.keep_guests)
        saved = self.state.state
        self.pipeline.start(saved)
        self.locate = dict
        reporter = HostReporter(self.client, saved.owned, self.state.keep_owned)
        self.loop = ReportLoop(
            reporting(self.client), reporter, self.pipeline, self.metrics, lambda: self.locate()
        )

    def restart(self, host_state=HOST_STATE):
        """Kill the agent, and start it again."""
        self.pipeline.stop()
        self.start(host_state)

    def settle(self):
        self.pipeline.submit(ReconcileGuests()).result(SECONDS)

    def report(self):
        assert self.loop.report_now()
        self.settle()

    def post(self, **consumers):
        """POST /allocations as Nova does, with the amounts by provider of each consumer."""
        body = {}
        for name, held in consumers.items():
            consumer = name.replace("_", "-")
            body[consumer] = claim_body(held, self.client.get_allocations(consumer).generation)
            del body[consumer]["consumer_type"]
        self.client.send_request("POST", "/allocations", body, NOVA)

    def boot(self, uuid=GUEST, held=None, vcpus=2):
        held = {NODES[0]: {"PCPU": 2}} if held is None else held
        if held:
            self.post(**{uuid: held})
        event = StartGuest(uuid, uuid, GuestSettings(vcpus), ("x",), held, time.monotonic())
        return self.pipeline.submit(event).result(SECONDS).guest

    def give_to(self, migration, uuid=GUEST):
        """Move the guest's allocations to the migration, the first step of Nova's conductor."""
        held = self.client.get_allocations(uuid).resources
        self.post(**{uuid: {}, migration: held})

    def claim(self, uuid=GUEST, held=None):
        self.post(**{uuid: held or {ELSEWHERE: {"PCPU": 2}}})

    def give_back(self, migration, uuid=GUEST):
        """Move the allocations back to the guest, as the conductor does when a migration is cancelled or
        reverted.
        """
        self.post(**{migration: {}, uuid: self.client.get_allocations(migration).resources})

    def arrive(self, kind, guest):
        """Report the start of a guest as the driver does."""
        conf = configuration(client=self.client)
        arrivals = GuestEvents(conf, self.pipeline, lambda: None)
        arrivals.report_change(GuestChange(kind, guest))
        arrivals.hand_over_changes()
        self.settle()

    def view(self, uuid=GUEST):
        return find_view(self.pipeline, uuid)

    def cpus(self, uuid=GUEST):
        """The CPUs of the guest in the kernel."""
        return set(self.driver.observed_cpus(self.driver.running[uuid]))

    def metric(self, name):
        return read_metric(self.metrics, name)


@pytest.fixture
def cloud(client, tmp_path):
    cloud = MigrationCloud(client, tmp_path)
    yield cloud
    if cloud.pipeline.is_alive:
        cloud.pipeline.stop()


@pytest.mark.parametrize("claimed", [False, True])
def test_a_guest_keeps_its_cpus_while_its_migration_holds_them(cloud, claimed):
    cloud.boot()
    assert cloud.cpus() == {1, 2}
    cloud.give_to(MIGRATION)
    if claimed:
        cloud.claim()
    cloud.report()
    assert cloud.cpus() == {1, 2}
    assert cloud.view().assignment.dedicated == (1, 2)


def test_a_guest_is_shown_as_migrating_while_its_migration_holds_its_allocation(cloud, caplog):
    cloud.boot()
    cloud.give_to(MIGRATION)
    cloud.claim()
    with caplog.at_level(logging.INFO, "compute_agent"):
        cloud.report()
    document = guest_document(cloud.view(), cloud.pipeline.host_state.policy)
    assert document["migration"] == MIGRATION
    assert document["allocation"] == {NODES[0]: {"PCPU": 2}}
    assert document["reason"] == f"migrating: its allocation on this host belongs to consumer {MIGRATION}"
    assert cloud.metric("migrating_guests") == 1
    assert cloud.metric("unallocated_guests") == 0
    assert (
        f"is migrating: its allocation on this host belongs to consumer {MIGRATION}; its CPUs" in caplog.text
    )


def test_no_other_guest_gets_the_cpus_of_a_migrating_guest(cloud):
    cloud.boot()
    cloud.give_to(MIGRATION)
    cloud.report()
    cloud.boot(OTHER, {NODES[1]: {"PCPU": 2}})
    cloud.boot(NEXT, {NODES[0]: {"VCPU": 1}}, vcpus=1)
    assert cloud.cpus(OTHER) == {5, 6}
    assert cloud.cpus(NEXT) == {3}
    assert cloud.cpus() == {1, 2}


def test_a_guest_on_shared_cpus_is_migrating_as_well(cloud):
    cloud.boot(held={NODES[0]: {"VCPU": 2}})
    cloud.give_to(MIGRATION)
    cloud.claim(held={ELSEWHERE: {"VCPU": 2}})
    cloud.report()
    assert (cloud.cpus(), cloud.view().migration) == ({3}, GuestMigration(MIGRATION))


def test_unallocated_guests_are_ignored_and_migrating_ones_are_none(cloud):
    cloud.restart(replace(HOST_STATE, place_unallocated=False))
    cloud.boot()
    cloud.give_to(MIGRATION)
    cloud.claim()
    cloud.report()
    assert cloud.view().assignment.dedicated == (1, 2)
    cloud.boot(OTHER, {NODES[1]: {"PCPU": 2}})
    assert cloud.cpus() == {1, 2}


def test_a_guest_with_a_deleted_allocation_is_not_migrating(cloud):
    cloud.boot()
    cloud.post(**{GUEST: {}})
    cloud.report()
    assert cloud.view().migration is None
    assert cloud.cpus() == {3, 7}


def test_an_earlier_claim_is_no_migration(cloud):
    cloud.boot()
    cloud.post(**{OTHER: {NODES[1]: {"PCPU": 2}}})
    cloud.report()
    cloud.post(**{GUEST: {NODES[1]: {"VCPU": 1}}})
    cloud.report()
    assert cloud.view().migration is None


@pytest.mark.parametrize("owner", [{"project_id": "q"}, {"user_id": "v"}, {"consumer_type": "INSTANCE"}])
def test_a_claim_of_another_owner_is_no_migration(cloud, owner):
    cloud.boot()
    record = cloud.client.get_allocations(GUEST)
    cloud.post(**{GUEST: {}})
    cloud.claim()
    other = {"project_id": "p", "user_id": "u", "consumer_type": "MIGRATION"} | owner
    cloud.client.set_allocations(replace(record, consumer=OTHER, generation=None, **other))
    cloud.report()
    assert cloud.view().migration is None


class TestTheEnd:
    """A migration is completed or cancelled, or the guest has left this host."""

    @pytest.fixture
    def cloud(self, cloud):
        cloud.boot()
        cloud.give_to(MIGRATION)
        cloud.claim()
        cloud.report()
        return cloud

    def test_a_guest_of_a_cancelled_migration_has_its_own_allocation_again(self, cloud):
        cloud.give_back(MIGRATION)
        cloud.report()
        assert cloud.view().migration is None
        assert cloud.view().assignment.dedicated == (1, 2)
        assert cloud.metric("migrating_guests") == 0

    def test_a_guest_that_left_gives_its_cpus_to_others(self, cloud):
        cloud.driver.end(cloud.driver.running[GUEST])
        cloud.post(**{MIGRATION: {}})
        cloud.report()
        assert cloud.pipeline.guest_views() == []
        assert cloud.pipeline.guest_migrations == {}
        cloud.boot(OTHER)
        assert cloud.cpus(OTHER) == {1, 2}

    def test_a_guest_that_stays_after_its_migration_holds_nothing(self, cloud):
        cloud.post(**{MIGRATION: {}})
        cloud.report()
        assert (cloud.view().migration, cloud.view().allocation) == (None, {})
        assert cloud.cpus() == {3, 7}

    def test_no_request_is_sent_without_changes(self, cloud, live_placement):
        live_placement.requests.clear()
        cloud.report()
        assert [request for request in live_placement.requests if "/allocations/" in request[1]] == []
        assert cloud.metric("migrating_guests") == 1

    def test_a_guest_that_starts_again_here_has_the_allocation_of_its_migration(self, cloud):
        guest = cloud.driver.running[GUEST]
        cloud.driver.end(guest)
        cloud.settle()
        again = cloud.driver.create_guest(GUEST, GUEST, guest.settings, ())
        cloud.arrive(ChangeKind.STARTED, again)
        assert (cloud.cpus(), cloud.view().migration) == ({1, 2}, GuestMigration(MIGRATION))
        cloud.report()
        assert (cloud.cpus(), cloud.view().migration) == ({1, 2}, GuestMigration(MIGRATION))


class TestACrash:
    """The agent ends at any time during a migration, and starts again."""

    @pytest.fixture
    def cloud(self, cloud):
        cloud.boot()
        cloud.report()
        return cloud

    def test_an_agent_that_crashed_before_it_knew_of_the_migration_finds_it(self, cloud):
        cloud.pipeline.stop()
        cloud.give_to(MIGRATION)
        cloud.claim()
        cloud.start()
        cloud.report()
        assert (cloud.cpus(), cloud.view().migration) == ({1, 2}, GuestMigration(MIGRATION))

    def test_an_agent_that_crashed_during_a_migration_finds_it_again(self, cloud):
        cloud.give_to(MIGRATION)
        cloud.report()
        cloud.restart()
        assert cloud.view().migration == GuestMigration(MIGRATION)
        cloud.claim()
        cloud.report()
        assert (cloud.cpus(), cloud.view().migration) == ({1, 2}, GuestMigration(MIGRATION))

    def test_a_migration_cancelled_during_a_crash_is_over_after_it(self, cloud):
        cloud.give_to(MIGRATION)
        cloud.report()
        cloud.pipeline.stop()
        cloud.give_back(MIGRATION)
        cloud.start()
        cloud.report()
        assert (cloud.cpus(), cloud.view().migration) == ({1, 2}, None)

    def test_a_migration_is_found_after_a_crash_without_the_state(self, cloud):
        cloud.give_to(MIGRATION)
        cloud.claim()
        cloud.pipeline.stop()
        (cloud.folder / "state.json").unlink()
        cloud.start()
        cloud.report()
        assert (cloud.cpus(), cloud.view().migration) == ({1, 2}, GuestMigration(MIGRATION))

    @pytest.mark.parametrize("known", [False, True])
    def test_a_migration_is_found_when_the_driver_reports_the_guest_before_a_report_is_made(
        self, cloud, known
    ):
        cloud.give_to(MIGRATION)
        if known:
            cloud.report()
        cloud.restart()
        cloud.arrive(ChangeKind.FOUND, cloud.driver.running[GUEST])
        assert cloud.cpus() == {1, 2}
        cloud.report()
        assert (cloud.cpus(), cloud.view().migration) == ({1, 2}, GuestMigration(MIGRATION))


class TestResizeOnTheSameHost:
    """The guest holds the new amounts on this host, and its migration the old amounts."""

    @pytest.fixture
    def cloud(self, cloud):
        cloud.boot(held={NODES[0]: {"PCPU": 1}}, vcpus=1)
        cloud.give_to(MIGRATION)
        cloud.claim(held={NODES[1]: {"PCPU": 2}})
        cloud.report()
        return cloud

    def test_a_resized_guest_keeps_its_cpus_until_it_starts_again(self, cloud):
        assert (cloud.cpus(), cloud.view().migration) == ({1}, GuestMigration(MIGRATION))
        cloud.driver.end(cloud.driver.running[GUEST])
        cloud.settle()
        again = cloud.driver.create_guest(GUEST, GUEST, GuestSettings(2), ())
        cloud.arrive(ChangeKind.STARTED, again)
        assert (cloud.cpus(), cloud.view().migration) == ({5, 6}, None)
        cloud.report()
        assert (cloud.cpus(), cloud.view().migration) == ({5, 6}, None)

    def test_a_reverted_resize_restores_the_old_amounts(self, cloud):
        cloud.give_back(MIGRATION)
        cloud.report()
        assert (cloud.cpus(), cloud.view().migration) == ({1}, None)


def test_guests_that_move_together_keep_their_cpus_with_either_migration(cloud, caplog):
    cloud.boot(GUEST, {NODES[0]: {"PCPU": 1}}, vcpus=1)
    cloud.boot(OTHER, {NODES[0]: {"PCPU": 1}}, vcpus=1)
    cloud.give_to(MIGRATION, GUEST)
    cloud.give_to(ANOTHER, OTHER)
    with caplog.at_level(logging.INFO, "compute_agent"):
        cloud.report()
    assert cloud.view(GUEST).migration == GuestMigration(ANOTHER, (MIGRATION,))
    assert f"belongs to consumer {ANOTHER}, or to {MIGRATION} with the same amounts" in caplog.text
    cloud.driver.end(cloud.driver.running[OTHER])
    cloud.post(**{ANOTHER: {}})
    cloud.report()
    assert (cloud.cpus(), cloud.view().migration) == ({1}, GuestMigration(MIGRATION))
    cloud.give_back(MIGRATION)
    cloud.report()
    assert (cloud.cpus(), cloud.view().migration) == ({1}, None)


def test_an_allocation_that_moves_while_it_is_listed_is_found(cloud, monkeypatch):
    """The agent reads the host's providers one after the other. Between two of these reads, the conductor
    moves all allocations.
    """
    monkeypatch.setattr(cloud.client, "has_trees", lambda: False)  # which show all at one time
    held = {NODES[0]: {"PCPU": 1}, NODES[1]: {"PCPU": 1}}
    cloud.boot(held=held)
    ask = cloud.client.provider_allocations

    def listing(uuid):
        found = ask(uuid)
        if uuid == NODES[0] and cloud.client.get_allocations(GUEST).resources:
            cloud.give_to(MIGRATION)
        return found

    monkeypatch.setattr(cloud.client, "provider_allocations", listing)
    cloud.report()
    assert (cloud.cpus(), cloud.view().migration) == ({1, 5}, GuestMigration(MIGRATION))


class TestArrivingHere:
    """This host is the destination of the migration."""

    def test_a_guest_gets_its_cpus_when_it_arrives_after_its_claim(self, cloud):
        cloud.post(**{MIGRATION: {ELSEWHERE: {"PCPU": 2}}})
        cloud.claim(held={NODES[1]: {"PCPU": 2}})
        cloud.report()
        guest = cloud.driver.create_guest(GUEST, GUEST, GuestSettings(2), ())
        cloud.arrive(ChangeKind.STARTED, guest)
        assert (cloud.cpus(), cloud.view().migration) == ({5, 6}, None)

    def test_a_guest_that_arrives_before_its_claim_gets_its_cpus_with_it(self, cloud):
        cloud.post(**{GUEST: {ELSEWHERE: {"PCPU": 2}}})
        guest = cloud.driver.create_guest(GUEST, GUEST, GuestSettings(2), ())
        cloud.arrive(ChangeKind.STARTED, guest)
        assert cloud.cpus() == {3, 7}
        cloud.give_to(MIGRATION)
        cloud.claim(held={NODES[1]: {"PCPU": 2}})
        cloud.report()
        assert (cloud.cpus(), cloud.view().migration) == ({5, 6}, None)


class TestAudit:
    """An audit recognises a guest and its migration as a pair."""

    def audit(self, cloud, options=None):
        found = HostAuditor(cloud.pipeline, cloud.driver, cloud.client, lambda: None).run_audit(
            options or HealOptions()
        )
        return [(it.finding.kind, it.finding.consumer, it.finding.detail, it.outcome) for it in found]

    @pytest.fixture(autouse=True)
    def locations(self, cloud, monkeypatch):
        location = CpuLocation(frozenset({1, 2}), frozenset(), 2)
        monkeypatch.setattr(audit_module, "locate_guests", lambda *_: {GUEST: location})

    @pytest.mark.parametrize("reported", [False, True])
    def test_an_audit_finds_the_migration_of_a_running_guest(self, cloud, reported):
        cloud.boot()
        cloud.give_to(MIGRATION)
        cloud.claim()
        if reported:
            cloud.report()
        pair = (FindingKind.MIGRATING, GUEST, f"held by consumer {MIGRATION}", "")
        assert self.audit(cloud) == [pair]
        assert self.audit(cloud, HealOptions(heal=True, delete=True, min_age=0.0)) == [pair]
        assert cloud.client.get_allocations(MIGRATION).resources == {NODES[0]: {"PCPU": 2}}

    def test_an_audit_finds_the_migration_of_a_stopped_guest(self, cloud):
        cloud.boot()
        cloud.give_to(MIGRATION)
        cloud.claim()
        cloud.report()
        cloud.driver.end(cloud.driver.running[GUEST])
        cloud.restart()
        assert self.audit(cloud, HealOptions(delete=True, min_age=0.0)) == [
            (FindingKind.MIGRATING, GUEST, f"held by consumer {MIGRATION}", "")
        ]
        assert cloud.client.get_allocations(MIGRATION).resources == {NODES[0]: {"PCPU": 2}}


def test_a_reshape_moves_the_allocation_of_the_migration_to_the_guests_node(cloud, monkeypatch):
    cloud.boot(held={NODES[0]: {"PCPU": 1}, NODES[1]: {"PCPU": 1}})
    cloud.give_to(MIGRATION)
    cloud.claim()
    cloud.report()
    location = CpuLocation(frozenset({1, 5}), frozenset(), 2)
    monkeypatch.setattr(audit_module, "locate_guests", lambda *_: {GUEST: location})
    cloud.locate = lambda: locate_consumers(cloud.driver, cloud.pipeline)
    flat = ProviderTree((replace(TREE.root, inventories={"PCPU": ProviderInventory(4, max_unit=4)}),))
    former = tuple(replace(node, inventories={}) for node in TREE.nodes[1:])
    cloud.pipeline.submit(HostStateChanged(replace(HOST_STATE, tree=flat, former=former))).result(SECONDS)
    planned = cloud.loop.reshape(dry_run=False)
    assert {move.consumer for move in planned.moves} == {MIGRATION}
    cloud.settle()
    assert cloud.client.get_allocations(MIGRATION).resources == {ROOT: {"PCPU": 2}}
    assert cloud.client.get_allocations(GUEST).resources == {ELSEWHERE: {"PCPU": 2}}
    cloud.report()
    assert (cloud.cpus(), cloud.view().migration) == ({1, 5}, GuestMigration(MIGRATION))
    cloud.pipeline.submit(HostStateChanged(HOST_STATE)).result(SECONDS)
    planned = cloud.loop.reshape(dry_run=False)
    assert cloud.client.get_allocations(MIGRATION).resources == {NODES[0]: {"PCPU": 1}, NODES[1]: {"PCPU": 1}}
    cloud.report()
    assert (cloud.cpus(), cloud.view().migration) == ({1, 5}, GuestMigration(MIGRATION))
