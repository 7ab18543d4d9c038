"""Tests of the worker, from events to assignments in the kernel."""

from dataclasses import replace

import pytest

from compute_agent.inventory.provider_tree import ProviderNode, ProviderTree
from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest_settings import GuestSettings, ThreadPolicy
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import ThrottleControl
from compute_agent.pipeline.events import (
    AdoptGuest,
    AllocationsRead,
    GuestStarted,
    GuestStopped,
    HostStateChanged,
    LimitGuest,
    ReconcileGuests,
    StartGuest,
)
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.state import AgentState, SavedGuest
from compute_agent.pipeline.worker import GuestRefusedError
from compute_agent.policy import POLICIES
from tests.compute_agent.inventory.machines import machine
from tests.compute_agent.pipeline.fake_host import ALL, HOST_STATE, SETS, FakeHost, Recorder


@pytest.fixture
def rig():
    return FakeHost()


def test_a_guest_is_pinned_before_it_is_released_and_saved(rig):
    view = rig.run("a", (0, 2, 0), vcpus=2)
    assert view.assignment.dedicated == (1, 2)
    assert rig.driver.released == [("a", {1, 2})]
    assert rig.saved["a"].assignment == view.assignment
    assert view.pending == ()


def test_two_guests_share_no_dedicated_cpu(rig):
    first, second = rig.run("a", (0, 1, 0)), rig.run("b", (0, 1, 0))
    assert not first.assignment.held_cpus & second.assignment.held_cpus


def test_a_guest_without_a_place_is_not_started(rig):
    rig.run("a", (0, 2, 0))
    with pytest.raises(GuestRefusedError, match="h_0 has 0 free dedicated CPUs"):
        rig.run("b", (0, 1, 0))
    assert list(rig.driver.running) == ["a"]


def test_a_guest_that_cannot_be_pinned_never_runs(rig):
    rig.driver.broken = DriverError("no")
    with pytest.raises(DriverError):
        rig.run("a", (0, 1, 0))
    assert rig.driver.running == {}
    assert rig.driver.released == []
    assert rig.pipeline.guest_views() == []
    rig.driver.broken = None
    assert rig.run("a", (0, 1, 0)).assignment.dedicated == (1,)


def test_a_guest_that_ended_gives_its_cpus_back(rig):
    guest = rig.run("a", (0, 2, 0)).guest
    rig.handle(GuestStopped(guest))
    assert rig.saved == {}
    assert rig.run("b", (0, 2, 0)).assignment.held_cpus == {1, 2}


def test_no_guest_is_moved_when_another_one_comes_or_goes(rig):
    rig.run("a", (0, 1, 0))
    second = rig.run("b", (0, 1, 0))
    rig.handle(GuestStopped(rig.pipeline.guest_views()[0].guest))
    writes = rig.driver.writes
    rig.handle(ReconcileGuests())
    assert rig.observed("b") == second.assignment.cpus
    assert rig.driver.writes == writes


def test_a_late_event_of_an_end_does_not_affect_the_next_guest_of_the_consumer(rig):
    first = rig.run("a", (0, 1, 0)).guest
    rig.driver.end(first)
    rig.handle(GuestStopped(first))
    second = rig.run("a", (0, 1, 0))
    rig.handle(GuestStopped(first))
    assert [view.guest for view in rig.pipeline.guest_views()] == [second.guest]


def test_cpus_that_one_guest_loses_go_to_another_in_the_same_round(rig):
    rig.run("b", (0, 2, 0))
    rig.run("a")
    rig.handle(AllocationsRead({"a": {"node0": {"PCPU": 2}}, "b": {}}, 2.0))
    assert rig.observed("a") == {1, 2}
    assert rig.observed("b") == {3, 7}


def test_an_adopted_process_is_pinned(rig):
    rig.handle(AdoptGuest("a", "a", GuestSettings(), 1234, {"node1": {"PCPU": 1}}, 1.0))
    assert rig.observed("a") == {5}


class TestUnallocated:
    """Guests without an allocation on this host."""

    def test_a_guest_without_allocation_goes_to_the_shared_cpus_and_is_reported(self, rig):
        rig.run("a")
        assert rig.observed("a") == {3, 7}
        rig.pipeline.update_gauges()
        assert rig.metric("unallocated_guests") == 1

    def test_a_guest_without_allocation_stays_where_it_is_by_option(self):
        rig = FakeHost(replace(HOST_STATE, place_unallocated=False))
        assert rig.run("a").assignment is None
        assert rig.observed("a") == ALL

    def test_a_guest_that_loses_its_allocation_loses_its_cpus(self, rig):
        rig.run("a", (0, 2, 0))
        rig.handle(AllocationsRead({"a": {}}, 2.0))
        assert rig.observed("a") == {3, 7}

    def test_a_guest_that_gets_an_allocation_gets_cpus(self, rig):
        rig.run("a")
        rig.handle(AllocationsRead({"a": {"node1": {"PCPU": 1}, "elsewhere": {"PCPU": 9}}}, 2.0))
        assert rig.observed("a") == {5}

    def test_allocations_read_before_the_start_of_a_guest_do_not_count(self, rig):
        rig.run("a", (0, 1, 0), as_of=5.0)
        rig.handle(AllocationsRead({"a": {}}, 4.0))
        assert rig.observed("a") == {1}


def test_a_refused_guest_stays_and_is_placed_when_another_one_leaves(rig):
    first = rig.run("a", (0, 2, 0)).guest
    rig.run("b")
    rig.handle(AllocationsRead({"b": {"node0": {"PCPU": 1}}}, 2.0))
    (_, view) = rig.pipeline.guest_views()
    assert "free dedicated CPUs" in view.refusal
    assert rig.observed("b") == {3, 7}
    rig.driver.end(first)
    rig.handle(GuestStopped(first))
    assert rig.observed("b") == {1}
    assert rig.pipeline.guest_views()[0].refusal == ""


ISOLATED = GuestSettings(2, ThreadPolicy.ISOLATE)


class TestUnclaimed:
    """Allocations without a guest keep their CPUs free, so that other guests take no more than their
    share.
    """

    @pytest.fixture
    def rig(self):
        """A host with CPUs 0-5 of 8 dedicated, in cores of two threads. The consumer "absent" holds three of
        them.
        """
        topology = machine(cores=4, threads=2)
        sets = CpuSets(frozenset(range(6)), frozenset({6, 7}), frozenset({6, 7}))
        tree = ProviderTree((ProviderNode("h", "node0", None, cpus=topology.online),))
        rig = FakeHost(HostState(topology, sets, tree, POLICIES["topology-aware"]))
        rig.handle(AllocationsRead({}, 1.0, {"absent": {"node0": {"PCPU": 3}}}))
        return rig

    def test_a_guest_takes_no_more_than_its_allocation_pays_for(self, rig):
        with pytest.raises(GuestRefusedError, match="needs 4 PCPU on cores of 2 threads"):
            rig.handle(StartGuest("new", "new", ISOLATED, ("x",), {"node0": {"PCPU": 3}}, 2.0))
        rig.run("new", (0, 3, 0), vcpus=3)
        assert len(rig.run("absent", (0, 3, 0), vcpus=3).assignment.dedicated) == 3

    def test_the_allocation_of_a_stopped_guest_stays_known(self, rig):
        guest = rig.run("absent", (0, 3, 0), vcpus=3).guest
        assert rig.pipeline.unclaimed_holdings == {}
        rig.handle(GuestStopped(guest))
        assert rig.pipeline.unclaimed_holdings.keys() == {"absent"}

    def test_the_allocation_of_a_guest_that_ended_without_the_agent_stays_known(self, rig):
        guest = rig.run("absent", (0, 3, 0), vcpus=3).guest
        del rig.driver.running["absent"], rig.driver.affinities["absent"]
        rig.restart(host_state=rig.pipeline.host_state)
        assert rig.pipeline.unclaimed_holdings.keys() == {guest.uuid}

    def test_the_age_of_an_unclaimed_allocation_is_kept_while_it_stays_the_same(self, rig):
        rig.handle(AllocationsRead({}, 5.0, {"absent": {"node0": {"PCPU": 3}}, "b": {"node0": {"PCPU": 1}}}))
        assert {name: one.since for name, one in rig.pipeline.unclaimed_holdings.items()} == {
            "absent": 1.0,
            "b": 5.0,
        }
        rig.handle(AllocationsRead({}, 7.0, {"absent": {"node0": {"PCPU": 2}}}))
        assert {name: one.since for name, one in rig.pipeline.unclaimed_holdings.items()} == {"absent": 7.0}


class TestReconcile:
    """A reconciliation writes the worker's decisions to the kernel again."""

    def test_drift_is_repaired_and_counted(self, rig):
        guest = rig.run("a", (0, 1, 0)).guest
        rig.driver.affinities["a"][guest.pid + 1000] = ALL
        rig.handle(ReconcileGuests())
        assert rig.driver.misplaced_threads(guest, _pinned(1)) == {}
        assert rig.metric("drift_repairs_total", controller="cpuset") == 1

    def test_drift_of_a_definition_is_repaired_and_counted(self, rig):
        guest = rig.run("a", (0, 1, 0)).guest
        rig.driver.definitions[guest.uuid] = "the definition has other pins"
        rig.handle(ReconcileGuests())
        assert rig.driver.definitions == {}
        assert rig.metric("drift_repairs_total", controller="cpuset") == 1
        rig.handle(ReconcileGuests())
        assert rig.metric("drift_repairs_total", controller="cpuset") == 1

    def test_settings_that_cannot_be_read_are_no_drift_and_are_compared_again(self, rig, caplog, monkeypatch):
        guest = rig.run("a", (0, 1, 0)).guest

        def fail(*arguments):
            raise DriverError("the connection ended")

        monkeypatch.setattr(rig.driver, "misplaced_threads", fail)
        for _ in range(3):
            rig.handle(ReconcileGuests())
        assert caplog.text.count(f"Guest {guest} cannot be compared with its cpuset settings") == 1
        assert "drifted" not in caplog.text
        assert rig.metric("drift_repairs_total", controller="cpuset") is None
        monkeypatch.undo()
        rig.driver.affinities["a"][guest.pid + 1000] = ALL
        rig.handle(ReconcileGuests())
        assert rig.driver.misplaced_threads(guest, _pinned(1)) == {}

    def test_without_drift_nothing_is_written(self, rig):
        rig.run("a", (0, 1, 0))
        writes = rig.driver.writes
        rig.handle(ReconcileGuests())
        assert rig.driver.writes == writes
        assert rig.metric("drift_repairs_total", controller="cpuset") is None

    def test_a_failed_change_stays_pending_and_is_tried_again(self, rig):
        rig.run("a")
        rig.driver.broken = DriverError("not now")
        rig.handle(AllocationsRead({"a": {"node0": {"PCPU": 1}}}, 2.0))
        assert rig.pipeline.guest_views()[0].pending == ("cpuset",)
        assert rig.metric("controller_failures_total", controller="cpuset") == 1
        rig.driver.broken = None
        rig.handle(ReconcileGuests())
        assert rig.pipeline.guest_views()[0].pending == ()
        assert rig.observed("a") == {1}

    @pytest.mark.parametrize(
        "error", [DriverError("not now"), RuntimeError("a defect")], ids=["driver", "other"]
    )
    def test_a_guest_that_cannot_be_pinned_is_not_left_held(self, rig, error):
        rig.driver.broken = error
        with pytest.raises(type(error)):
            rig.run("a", (0, 1, 0))
        assert rig.pipeline.guest_views() == []
        assert rig.driver.running == {}
        rig.driver.broken = None
        assert set(rig.run("a", (0, 1, 0)).assignment.dedicated) == rig.observed("a")

    def test_a_guest_with_a_missed_end_is_removed(self, rig):
        guest = rig.run("a", (0, 1, 0)).guest
        rig.driver.discard(guest)
        rig.handle(ReconcileGuests())
        assert rig.pipeline.guest_views() == []

    def test_a_full_disk_is_counted_and_saving_is_tried_again(self, rig):
        rig.full_disk = True
        rig.run("a", (0, 1, 0))
        assert rig.saved == {}
        assert rig.metric("state_write_failures_total") == 1
        rig.full_disk = False
        rig.handle(ReconcileGuests())
        assert rig.saved.keys() == {"a"}


def _pinned(*cpus):
    from compute_agent.drivers.base import CpuSettings

    return CpuSettings((frozenset(cpus),), frozenset(cpus))


class TestRestart:
    """A new agent finds the guests of the agent before."""

    def test_a_restart_moves_no_guest(self, rig):
        rig.run("a", (0, 1, 0))
        rig.run("b", (0, 1, 0))
        rig.driver.stop(rig.driver.running["a"], 0)
        before, writes = rig.observed("b"), rig.driver.writes
        rig.restart()
        assert rig.observed("b") == before == {2}
        assert rig.driver.writes == writes
        assert [view.guest.uuid for view in rig.pipeline.guest_views()] == ["b"]
        rig.handle(AllocationsRead({"b": {"node0": {"PCPU": 1, "VCPU": 0}}}, 2.0))
        assert rig.observed("b") == {2}

    @pytest.mark.parametrize(
        ("amounts", "vcpus"), [(((0, 1, 0),), 1), (((1, 2, 0),), 2), (((0, 1, 1),), 2), (((1, 0, 1),), 1)]
    )
    def test_without_a_state_file_positions_come_from_the_kernel(self, rig, amounts, vcpus):
        rig.run("first", (0, 1, 0))
        view = rig.run("a", *amounts, vcpus=vcpus)
        writes = rig.driver.writes
        rig.restart(saved={})
        rig.handle(AllocationsRead({"a": view.allocation}, 2.0))
        again = rig.pipeline.guest_views()[0]
        assert again.assignment.cpus == view.assignment.cpus
        assert set(again.assignment.dedicated) == set(view.assignment.dedicated)
        assert rig.driver.writes == writes

    def test_without_a_state_file_each_guest_cpu_stays_where_it_is(self, rig):
        rig.run("a", (0, 2, 0), vcpus=2)
        # as a policy before this one had it
        rig.driver.vcpu_cpus["a"] = {
            0: frozenset({2}),
            1: frozenset({1}),
        }
        rig.restart(saved={})
        (view,) = rig.pipeline.guest_views()
        assert view.assignment.vcpu_cpus == ({2}, {1})
        assert view.assignment.dedicated == (2, 1)

    def test_drift_during_a_restart_is_repaired(self, rig):
        guest = rig.run("a", (0, 1, 0)).guest
        rig.driver.affinities["a"][guest.pid] = ALL
        rig.restart()
        assert rig.observed("a") == {1}

    def test_a_process_that_was_never_placed_waits_for_placement(self, rig):
        rig.driver.create_guest("a", "a", GuestSettings(), ())
        rig.restart(saved={})
        assert rig.observed("a") == ALL
        rig.handle(AllocationsRead({"a": {"node0": {"PCPU": 1}}}, 2.0))
        assert rig.observed("a") == {1}

    def test_a_guest_that_is_gone_is_forgotten(self, rig):
        rig.restart(saved={"gone": SavedGuest({}, None)})
        assert rig.saved == {}

    @pytest.mark.parametrize("saved", [None, {}], ids=["with state", "without state"])
    def test_policy_none_changes_no_guest(self, rig, saved):
        guest = rig.run("a", (0, 1, 0)).guest
        rig.driver.affinities["a"][guest.pid + 1000] = ALL
        writes = rig.driver.writes
        rig.restart(saved=saved, host_state=replace(HOST_STATE, policy=POLICIES["none"]))
        rig.handle(AllocationsRead({"a": {"node0": {"PCPU": 2}}}, 2.0))
        assert rig.observed("a") == {1}
        assert rig.driver.writes == writes


class TestALostGuest:
    """A guest with an unusable record: it may be running, but the agent cannot manage it."""

    @pytest.fixture
    def lost(self, rig):
        rig.run("a", (0, 1, 0))
        guest = rig.driver.running.pop("a")
        rig.driver.lost_reasons["a"] = "the guest record a.json cannot be used"
        rig.restart()
        return guest

    def test_a_lost_guest_keeps_its_cpus_also_after_the_next_restart(self, rig, lost):
        for _ in range(2):
            assert rig.run("b", (0, 1, 0)).assignment.dedicated == (2,)
            with pytest.raises(GuestRefusedError, match="0 free dedicated CPUs"):
                rig.run("c", (0, 1, 0))
            assert rig.metric("lost_guests") == 1
            rig.handle(GuestStopped(rig.driver.running.pop("b")))
            rig.restart()

    def test_a_lost_guest_that_is_adopted_has_its_cpus_again(self, rig, lost):
        rig.run("b", (0, 1, 0))
        rig.driver.lost_reasons.clear()
        view = rig.handle(
            AdoptGuest("a", "a", GuestSettings(), lost.pid, {"node0": {"PCPU": 1, "VCPU": 0}}, 1.0)
        )
        assert view.assignment.dedicated == (1,)
        rig.restart()
        assert rig.saved.keys() == {"a", "b"}

    def test_a_restarted_guest_keeps_its_cpus_until_it_can_be_described(self, rig):
        """libvirtd starts the processes of domains: the old process has ended, and the new one cannot be
        described yet.
        """
        rig.run("a", (0, 1, 0))
        guest = rig.driver.running.pop("a")
        rig.driver.lost_reasons["a"] = "domain a cannot be described"
        rig.handle(GuestStopped(guest))
        assert rig.run("b", (0, 1, 0)).assignment.dedicated == (2,)
        again = replace(guest, pid=guest.pid + 1000)
        rig.driver.running["a"] = again
        rig.driver.affinities["a"] = {again.pid: rig.driver.cpus}
        rig.driver.lost_reasons.clear()
        rig.handle(ReconcileGuests())
        assert rig.observed("a") == {1}
        assert rig.metric("lost_guests") == 0

    def test_a_lost_guest_that_is_gone_releases_its_cpus(self, rig, lost):
        rig.driver.lost_reasons.clear()
        rig.handle(ReconcileGuests())
        assert rig.run("b", (0, 2, 0), vcpus=2).assignment.dedicated == (1, 2)
        assert rig.saved.keys() == {"b"}


class TestWorldChanges:
    """Configuration and hardware change under running guests."""

    def test_guests_stay_when_their_cpus_leave_the_sets(self, rig):
        rig.run("a", (0, 2, 0))
        smaller = CpuSets(frozenset({5, 6}), SETS.shared, SETS.emulator)
        rig.handle(HostStateChanged(replace(HOST_STATE, cpu_sets=smaller)))
        assert rig.observed("a") == {1, 2}

    def test_shared_guests_follow_the_shared_set(self, rig):
        rig.run("a")
        larger = CpuSets(SETS.dedicated, frozenset({0, 3, 7}), frozenset({0, 3, 7}))
        rig.handle(HostStateChanged(replace(HOST_STATE, cpu_sets=larger)))
        assert rig.observed("a") == {0, 3, 7}

    def test_a_cpu_that_went_offline_costs_its_guest_only_that_cpu(self, rig):
        rig.run("a", (0, 2, 0), vcpus=2)
        offline = machine(nodes=2, cores=4, offline=frozenset({2}))
        rig.handle(HostStateChanged(replace(HOST_STATE, topology=offline)))
        rig.handle(ReconcileGuests())
        assert rig.observed("a") == {1}
        assert rig.pipeline.guest_views()[0].assignment.dedicated == (1, 2)
        rig.handle(HostStateChanged(HOST_STATE))
        rig.handle(ReconcileGuests())
        assert rig.observed("a") == {1, 2}


def test_events_from_other_threads_are_answered(rig):
    rig.pipeline.start()
    event = StartGuest("a", "a", GuestSettings(), ("x",), {"node0": {"PCPU": 1}}, 1.0)
    assert rig.pipeline.submit(event).result(10).assignment.dedicated == (1,)
    event = StartGuest("b", "b", GuestSettings(), ("x",), {"node0": {"PCPU": 9}}, 1.0)
    with pytest.raises(GuestRefusedError):
        rig.pipeline.submit(event).result(10)
    rig.driver.stop(rig.driver.running["a"], 0)
    rig.pipeline.submit(ReconcileGuests()).result(10)
    assert rig.pipeline.guest_views() == []
    assert rig.metric("events_total", event="StartGuest") == 2
    assert rig.metric("pin_seconds_count") == 1
    rig.pipeline.stop()
    assert not rig.pipeline.is_alive


def test_a_guest_that_started_outside_of_the_agent_gets_the_cpus_of_its_allocation(rig):
    guest = rig.driver.create_guest("a", "a", GuestSettings(), ())
    rig.handle(GuestStarted(guest, {"node1": {"PCPU": 1}}, 1.0))
    assert rig.observed("a") == {5}


def test_a_guest_avoids_dedicated_cpus_while_its_allocation_is_unknown(rig):
    guest = rig.driver.create_guest("a", "a", GuestSettings(), ())
    rig.handle(GuestStarted(guest, None, 1.0))
    assert rig.observed("a") == {3, 7}
    assert rig.pipeline.guest_views()[0].allocation is None
    rig.handle(AllocationsRead({"a": {"node1": {"PCPU": 1}}}, 2.0))
    assert rig.observed("a") == {5}


def test_changed_settings_move_no_guest(rig):
    rig.run("a", (1, 1, 0))
    changed = replace(rig.driver.running["a"], settings=GuestSettings(priority=7))
    rig.handle(GuestStarted(changed, None))
    assert rig.observed("a") == {5}
    assert rig.pipeline.guest_views()[0].guest.settings.priority == 7


def test_guests_are_remembered_while_the_driver_does_not_know_them(rig, monkeypatch):
    rig.run("a", (1, 1, 0))
    saved = dict(rig.saved)

    def away():
        raise DriverError("libvirtd is away")

    rig.new_pipeline()
    with monkeypatch.context() as patch:
        patch.setattr(rig.driver, "guests", away)
        rig.pipeline.start(AgentState(saved))
        for event in (ReconcileGuests(), HostStateChanged(HOST_STATE), AllocationsRead({}, 1.0)):
            assert rig.pipeline.submit(event).result(10) is None
        with pytest.raises(DriverError, match="libvirtd is away"):
            rig.pipeline.submit(StartGuest("b", "b", GuestSettings(), ("x",), {}, 1.0)).result(10)
        assert rig.saved == saved
    rig.pipeline.submit(ReconcileGuests()).result(10)
    rig.pipeline.stop()
    assert rig.saved == saved
    assert [view.guest.uuid for view in rig.pipeline.guest_views()] == ["a"]


QUOTA = ThrottleControl("cpu_quota")


class TestControllers:
    """The calls of controllers for guests."""

    @pytest.fixture
    def recorder(self, rig):
        recorder = Recorder()
        rig.handle(HostStateChanged(HOST_STATE, (recorder,)))
        return recorder

    def test_every_controller_gets_the_allocation_of_a_guest(self, rig, recorder):
        rig.run("a", (0, 1, 0))
        assert recorder.applied["a"].allocation == {"node0": {"PCPU": 1, "VCPU": 0}}
        rig.handle(AllocationsRead({"a": {"node0": {"PCPU": 1, "LLC": 4}}}, 2.0))
        assert recorder.applied["a"].allocation == {"node0": {"PCPU": 1, "LLC": 4}}

    def test_controllers_are_synced_when_guests_come_and_go(self, rig, recorder):
        guest = rig.run("a", (0, 1, 0)).guest
        synced = len(recorder.synced)
        rig.handle(AllocationsRead({"a": {"node0": {"PCPU": 1, "VCPU": 0}}}, 2.0))
        assert len(recorder.synced) == synced
        rig.handle(GuestStopped(guest))
        assert recorder.synced[-1] == set()

    def test_a_failed_sync_is_repeated(self, rig, recorder):
        rig.run("a", (0, 1, 0))
        recorder.broken = OSError(16, "Device or resource busy")
        rig.handle(AllocationsRead({"a": {}}, 2.0))
        assert rig.metric("controller_failures_total", controller="recorder") == 2
        recorder.broken = None
        recorder.synced.clear()
        rig.handle(AllocationsRead({}, 3.0))
        assert recorder.synced == [{"a"}]
        assert recorder.applied["a"].allocation == {}

    def test_settings_of_others_are_compared_in_some_rounds_only(self, rig):
        always, rarely = Recorder(), Recorder()
        rarely.name, rarely.compare_rounds = "rare", 3
        rig.handle(HostStateChanged(HOST_STATE, (always, rarely)))
        rig.run("a", (0, 1, 0))
        for recorder in (always, rarely):
            recorder.synced.clear()
            recorder.compared.clear()
        for _ in range(7):
            rig.handle(ReconcileGuests())
        assert [len(one.synced) for one in (always, rarely)] == [7, 3]
        assert [len(one.compared) for one in (always, rarely)] == [7, 3]
        rig.handle(HostStateChanged(HOST_STATE, (rarely,)))
        rarely.compared.clear()
        rig.handle(ReconcileGuests())
        assert rarely.compared == ["a"]

    def test_a_failed_sync_is_repeated_before_its_round(self, rig):
        rarely = Recorder()
        rarely.compare_rounds = 3
        rig.handle(HostStateChanged(HOST_STATE, (rarely,)))
        rig.run("a", (0, 1, 0))
        rarely.broken = OSError(16, "Device or resource busy")
        rig.handle(ReconcileGuests())
        rarely.broken = None
        rarely.synced.clear()
        rig.handle(ReconcileGuests())
        assert rarely.synced

    def test_each_new_controller_is_applied_to_every_guest(self, rig, recorder):
        rig.run("a", (0, 1, 0))
        other = Recorder()
        rig.handle(HostStateChanged(HOST_STATE, (other,)))
        assert other.applied.keys() == {"a"}

    def test_a_limit_is_in_effect_when_it_is_answered(self, rig, recorder):
        rig.run("a", (0, 1, 0))
        rig.handle(LimitGuest("a", QUOTA, 0.5))
        assert recorder.applied["a"].limits == {QUOTA: 0.5}
        rig.handle(LimitGuest("a", QUOTA, None))
        assert recorder.applied["a"].limits == {}

    def test_a_limit_that_cannot_be_set_is_not_recorded(self, rig, recorder):
        rig.run("a", (0, 1, 0))
        recorder.broken = DriverError("no")
        with pytest.raises(DriverError):
            rig.handle(LimitGuest("a", QUOTA, 0.5))
        assert rig.pipeline.guest_views()[0].limits == {}

    def test_limiting_a_guest_that_is_gone_is_an_error(self, rig):
        with pytest.raises(GuestGoneError):
            rig.handle(LimitGuest("a", QUOTA, 0.5))

    def test_limits_apply_again_from_the_start_of_an_agent(self, rig):
        rig.run("a", (0, 1, 0))
        rig.new_pipeline()
        rig.pipeline.start(AgentState(rig.saved), limits={"a": {QUOTA: 0.5}})
        rig.pipeline.stop()
        assert rig.pipeline.guest_views()[0].limits == {QUOTA: 0.5}
