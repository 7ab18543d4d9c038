"""Tests of guests that cannot be placed, which avoid the CPUs of others, and of guests with CPUs that left
the CPU sets.
"""

from dataclasses import replace

import pytest

from compute_agent.controllers.cpu import QUOTA
from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import DriverError
from compute_agent.pipeline.events import (
    AllocationsRead,
    GuestStarted,
    GuestStopped,
    HostStateChanged,
    LimitGuest,
    MoveGuest,
    ReconcileGuests,
)
from compute_agent.pipeline.worker import GuestRefusedError
from compute_agent.policy import POLICIES
from tests.compute_agent.builders import find_view
from tests.compute_agent.inventory.machines import machine
from tests.compute_agent.pipeline.fake_host import ALL, HOST_STATE, SETS, TREE, FakeHost

NOTHING = frozenset()
DEDICATED_ONLY = replace(HOST_STATE, cpu_sets=CpuSets(SETS.dedicated, NOTHING, NOTHING))
ALL_DEDICATED = replace(HOST_STATE, cpu_sets=CpuSets(ALL, NOTHING, NOTHING))
NO_SHARED_CPUS = "the host has no shared CPUs, and the guest holds no PCPU"


def starts(rig, uuid, *amounts, vcpus=1):
    """Start a guest outside of the agent on all CPUs, as domains start. Its allocation is known."""
    guest = rig.driver.create_guest(uuid, uuid, GuestSettings(vcpus), ())
    allocation = {f"node{n}": {"PCPU": pcpu, "VCPU": vcpu} for n, pcpu, vcpu in amounts}
    rig.handle(GuestStarted(guest, allocation, 1.0, started=True))
    return guest


def ends(rig, uuid):
    guest = rig.driver.running[uuid]
    rig.driver.discard(guest)
    rig.handle(GuestStopped(guest))


class TestWithSharedCpus:
    """On a host with shared CPUs, an over-allocated guest runs on these."""

    @pytest.fixture
    def rig(self):
        rig = FakeHost()
        starts(rig, "paid", (0, 2, 0), vcpus=2)
        starts(rig, "more", (0, 1, 0))
        return rig

    def test_an_over_allocated_guest_runs_on_shared_cpus_with_a_reason(self, rig, caplog):
        assert (rig.observed("paid"), rig.observed("more")) == ({1, 2}, {3, 7})
        assert (
            find_view(rig.pipeline, "more").refusal
            == "h_0 has 0 free dedicated CPUs (none), but 1 are needed"
        )
        rig.pipeline.update_gauges()
        assert rig.metric("refused_guests") == 1
        starts(rig, "another", (0, 1, 0))
        assert (
            "Guest another does not get the CPUs that it needs: h_0 has 0 free dedicated CPUs (none), but 1"
            " are needed; it runs on CPUs that no guest holds, 3,7"
        ) in caplog.text

    def test_an_over_allocated_guest_gets_its_cpus_when_another_one_leaves(self, rig):
        ends(rig, "paid")
        assert rig.observed("more") == {1}
        assert find_view(rig.pipeline, "more").refusal == ""

    @pytest.mark.parametrize("saved", [None, {}], ids=["with state", "without state"])
    def test_an_over_allocated_guest_stays_on_shared_cpus_over_a_restart(self, rig, saved):
        rig.restart(saved=saved)
        told = {"paid": {"node0": {"PCPU": 2}}, "more": {"node0": {"PCPU": 1}}}
        if saved is not None:
            rig.handle(AllocationsRead(told, 2.0))
        assert (rig.observed("paid"), rig.observed("more")) == ({1, 2}, {3, 7})
        assert "0 free dedicated CPUs" in find_view(rig.pipeline, "more").refusal

    def test_a_guest_keeps_its_cpus_when_its_new_allocation_has_no_place(self, rig):
        rig.handle(AllocationsRead({"paid": {"node0": {"PCPU": 3}}}, 2.0))
        assert rig.observed("paid") == {1, 2}
        assert "3 are needed" in find_view(rig.pipeline, "paid").refusal


class TestWithoutSharedCpus:
    """On a host without shared CPUs, such a guest runs on CPUs that no guest holds, and leaves each CPU that
    a guest gets.
    """

    @pytest.fixture
    def rig(self):
        return FakeHost(DEDICATED_ONLY)

    def test_a_guest_without_allocation_leaves_a_cpu_before_another_one_is_pinned_to_it(self, rig):
        starts(rig, "free")
        assert rig.observed("free") == ALL
        seen = []
        pin = rig.driver.apply_cpu_settings

        def watch(guest, settings):
            seen.append((guest.uuid, rig.observed("free")))
            return pin(guest, settings)

        rig.driver.apply_cpu_settings = watch
        rig.run("first", (0, 1, 0))
        assert seen == [("free", ALL), ("first", ALL - {1})]
        starts(rig, "second", (1, 2, 0), vcpus=2)
        assert seen[2:] == [("free", ALL - {1}), ("second", ALL - {1, 5, 6})]
        assert find_view(rig.pipeline, "free").refusal == NO_SHARED_CPUS
        ends(rig, "first")
        assert rig.observed("free") == ALL - {5, 6}

    def test_a_guest_without_allocation_leaves_held_cpus_after_a_restart_of_the_agent(self, rig):
        starts(rig, "free")
        rig.run("first", (0, 1, 0))
        rig.driver.affinities["free"] = dict.fromkeys(rig.driver.affinities["free"], ALL)
        rig.restart(host_state=DEDICATED_ONLY)
        assert (rig.observed("first"), rig.observed("free")) == ({1}, ALL - {1})
        assert find_view(rig.pipeline, "free").refusal == NO_SHARED_CPUS

    def test_a_guest_with_a_missed_start_leaves_held_cpus(self, rig):
        rig.run("first", (0, 1, 0))
        rig.driver.create_guest("found", "found", GuestSettings(), ())
        rig.handle(ReconcileGuests())
        assert rig.observed("found") == ALL - {1}

    def test_a_guest_with_unknown_allocation_leaves_held_cpus(self, rig):
        rig.run("first", (0, 1, 0))
        guest = rig.driver.create_guest("unknown", "unknown", GuestSettings(), ())
        rig.handle(GuestStarted(guest, None, 2.0))
        assert rig.observed("unknown") == ALL - {1}
        rig.run("second", (0, 1, 0))
        assert rig.observed("unknown") == ALL - {1, 2}
        assert (
            find_view(rig.pipeline, "unknown").allocation,
            find_view(rig.pipeline, "unknown").refusal,
        ) == (None, "")

    def test_a_guest_that_lost_its_allocation_holds_nothing_any_more(self, rig):
        rig.run("first", (0, 2, 0), vcpus=2)
        rig.handle(AllocationsRead({"first": {}}, 2.0))
        assert rig.observed("first") == ALL
        rig.run("second", (0, 2, 0), vcpus=2)
        assert (rig.observed("second"), rig.observed("first")) == ({1, 2}, ALL - {1, 2})

    def test_a_guest_without_state_and_placement_does_not_count_as_holder_of_all_its_cpus(self):
        rig = FakeHost(ALL_DEDICATED)
        starts(rig, "free", vcpus=2)
        rig.run("first", (0, 1, 0))
        rig.restart(saved={}, host_state=ALL_DEDICATED)
        rig.run("second", (0, 3, 0), vcpus=3)
        assert rig.observed("free") == {4, 5, 6, 7}

    def test_a_guest_is_left_with_a_reason_where_all_cpus_are_held(self):
        rig = FakeHost(ALL_DEDICATED)
        starts(rig, "free")
        for node in (0, 1):
            rig.run(f"g{node}", (node, 4, 0), vcpus=4)
        view = find_view(rig.pipeline, "free")
        assert view.assignment is None
        assert view.refusal == f"{NO_SHARED_CPUS}; it is left where it is, as other guests hold all CPUs"
        ends(rig, "g1")
        assert rig.observed("free") == {4, 5, 6, 7}
        assert find_view(rig.pipeline, "free").refusal == NO_SHARED_CPUS


class TestRefusedToRun:
    """A guest that cannot be placed is stopped at its start if ``[guests] unplaced = refuse`` is set."""

    HOST_STATE = replace(DEDICATED_ONLY, refuse_unplaced=True)

    @pytest.fixture
    def rig(self):
        rig = FakeHost(self.HOST_STATE)
        rig.run("paid", (0, 2, 0), vcpus=2)
        return rig

    @pytest.mark.parametrize("amounts", [(), ((0, 1, 0),)], ids=["without allocation", "over-allocated"])
    def test_a_guest_without_a_place_is_stopped_at_its_start(self, rig, amounts, caplog):
        starts(rig, "more", *amounts)
        assert rig.driver.running.keys() == {"paid"}
        assert [view.guest.uuid for view in rig.pipeline.guest_views()] == ["paid"]
        assert rig.metric("unplaced_guests_stopped_total") == 1
        assert "Guest more was stopped, because it does not get the CPUs that it needs: " in caplog.text

    def test_a_running_guest_without_a_place_is_not_stopped(self, rig):
        rig.handle(AllocationsRead({"paid": {}}, 2.0))
        rig.restart(host_state=self.HOST_STATE)
        assert rig.observed("paid") == ALL

    def test_changed_settings_are_no_start(self, rig):
        rig.handle(AllocationsRead({"paid": {}}, 2.0))
        rig.handle(
            GuestStarted(replace(rig.driver.running["paid"], settings=GuestSettings(priority=7)), None)
        )
        assert rig.driver.running.keys() == {"paid"}

    @pytest.mark.parametrize("told", [True, False], ids=["told", "seen in the next round"])
    def test_another_main_process_is_no_start(self, rig, told):
        rig.handle(AllocationsRead({"paid": {}}, 2.0))
        rig.handle(LimitGuest("paid", QUOTA, 0.5))
        heir = rig.driver.succeed("paid")
        rig.handle(GuestStarted(heir, None) if told else ReconcileGuests())
        assert rig.driver.running == {"paid": heir}
        view = find_view(rig.pipeline, "paid")
        assert (view.guest.pid, view.limits) == (heir.pid, {QUOTA: 0.5})
        assert rig.observed("paid") == ALL

    def test_a_guest_that_a_round_found_before_its_start_event_is_stopped(self, rig):
        guest = rig.driver.create_guest("more", "more", GuestSettings(), ())
        rig.handle(ReconcileGuests())
        assert rig.driver.running.keys() == {"paid", "more"}
        rig.handle(GuestStarted(guest, {"node0": {"PCPU": 1}}, 1.0, started=True))
        assert rig.driver.running.keys() == {"paid"}

    def test_a_guest_that_cannot_be_stopped_avoids_the_cpus_of_others(self, rig, monkeypatch, caplog):
        def stop(guest, timeout):
            raise DriverError("libvirtd is away")

        monkeypatch.setattr(rig.driver, "stop", stop)
        starts(rig, "more")
        assert rig.observed("more") == ALL - {1, 2}
        assert "Guest more has no CPUs and cannot be stopped: libvirtd is away" in caplog.text
        assert rig.metric("unplaced_guests_stopped_total") == 0


class TestGuestsLeftAlone:
    """A guest with an empty allocation is left as it is if ``[guests] unallocated = ignore`` is set."""

    HOST_STATE = replace(HOST_STATE, place_unallocated=False)

    @pytest.fixture
    def rig(self):
        return FakeHost(self.HOST_STATE)

    def unknown(self, rig):
        guest = rig.driver.create_guest("unknown", "unknown", GuestSettings(), ())
        rig.handle(GuestStarted(guest, None, 2.0, started=True))

    def test_a_guest_with_unknown_allocation_avoids_the_cpus_of_others(self, rig):
        rig.run("paid", (0, 2, 0), vcpus=2)
        self.unknown(rig)
        assert rig.observed("unknown") == {3, 7}
        rig.handle(AllocationsRead({"unknown": {}}, 3.0))
        assert find_view(rig.pipeline, "unknown").assignment is None

    def test_a_guest_with_unknown_allocation_leaves_a_cpu_that_another_one_gets(self, rig):
        self.unknown(rig)
        assert rig.observed("unknown") == ALL  # no guest holds a CPU
        rig.run("paid", (0, 2, 0), vcpus=2)
        assert (rig.observed("paid"), rig.observed("unknown")) == ({1, 2}, {3, 7})

    def test_a_found_guest_leaves_cpus_that_another_one_holds(self, rig):
        rig.run("paid", (0, 2, 0), vcpus=2)
        guest = rig.driver.create_guest("found", "found", GuestSettings(2), ())
        rig.driver.affinities["found"] = dict.fromkeys(rig.driver.affinities["found"], frozenset({1, 2}))
        rig.handle(ReconcileGuests())
        assert rig.observed(guest.uuid) == {3, 7}

    def test_policy_none_leaves_a_guest_with_unknown_allocation_where_it_is(self, rig):
        rig.run("paid", (0, 2, 0), vcpus=2)
        rig.handle(HostStateChanged(replace(self.HOST_STATE, policy=POLICIES["none"])))
        self.unknown(rig)
        assert rig.observed("unknown") == ALL


SWAPPED = replace(HOST_STATE, cpu_sets=CpuSets(frozenset({5, 6}), frozenset({1, 2, 3}), frozenset({1, 2, 3})))


class TestSetsThatMovedUnderAGuest:
    """A guest keeps its CPUs exclusively after they have left the CPU sets. The operator sees this and may
    move the guest.
    """

    STRAY = "CPUs 1-2 are not in [compute] cpu_dedicated_set any more"

    @pytest.fixture
    def rig(self):
        rig = FakeHost()
        rig.run("a", (0, 2, 0), vcpus=2)
        return rig

    def moved(self, rig):
        rig.handle(HostStateChanged(SWAPPED))

    def test_a_guest_on_cpus_that_left_the_sets_stays_and_is_reported_once(self, rig, caplog):
        self.moved(rig)
        rig.handle(ReconcileGuests())
        assert rig.observed("a") == {1, 2}
        assert find_view(rig.pipeline, "a").stray == self.STRAY
        assert caplog.text.count("Guest a stays where it is, and no other guest gets its CPUs") == 1
        rig.pipeline.update_gauges()
        assert rig.metric("stray_guests") == 1

    def test_no_other_guest_gets_its_cpus_although_they_are_shared_now(self, rig):
        rig.run("before")
        self.moved(rig)
        rig.run("after", (0, 0, 1))
        assert (rig.observed("before"), rig.observed("after")) == ({3}, {3})
        assert rig.run("mixed", (0, 0, 1), (1, 1, 0), vcpus=2).assignment.emulator_cpus == {3}
        ends(rig, "a")
        assert rig.observed("before") == {1, 2, 3}

    def test_a_guest_is_not_started_without_a_remaining_shared_cpu(self, rig):
        rig.handle(
            HostStateChanged(replace(HOST_STATE, cpu_sets=CpuSets(NOTHING, frozenset({1, 2}), NOTHING)))
        )
        with pytest.raises(GuestRefusedError, match="h_0 has no shared CPUs that no other guest holds"):
            rig.run("b", (0, 0, 1))

    def test_sets_that_moved_during_a_restart_are_reported(self, rig):
        rig.run("b")
        rig.restart(host_state=SWAPPED)
        assert (rig.observed("a"), rig.observed("b")) == ({1, 2}, {3})
        assert find_view(rig.pipeline, "a").stray == self.STRAY

    def test_an_offline_cpu_is_reported_too_and_its_guest_runs_on_the_others(self, rig, caplog):
        offline = machine(nodes=2, cores=4, offline=frozenset({2}))
        tree = replace(TREE, nodes=tuple(replace(n, cpus=n.cpus - {2}) for n in TREE.nodes))
        rig.handle(HostStateChanged(replace(HOST_STATE, topology=offline, tree=tree)))
        rig.handle(ReconcileGuests())
        assert find_view(rig.pipeline, "a").stray == "CPU 2 is offline"
        assert rig.observed("a") == {1}
        with caplog.at_level("INFO"):
            rig.handle(HostStateChanged(HOST_STATE))
        assert find_view(rig.pipeline, "a").stray == ""
        assert "The CPUs of guest a no longer count as outside of the current CPU sets" in caplog.text

    def test_a_guest_with_all_cpus_offline_runs_on_those_that_no_guest_holds(self, rig):
        rig.run("b", (1, 1, 0))
        offline = machine(nodes=2, cores=4, offline=frozenset({1, 2}))
        rig.handle(HostStateChanged(replace(DEDICATED_ONLY, topology=offline)))
        assert (rig.observed("a"), rig.observed("b")) == ({0, 3, 4, 6, 7}, {5})
        rig.run("c", (1, 1, 0))
        assert (rig.observed("a"), rig.observed("c")) == ({0, 3, 4, 7}, {6})

    def test_policy_none_shows_no_guest_as_holder_of_cpus(self, rig):
        self.moved(rig)
        rig.handle(HostStateChanged(replace(SWAPPED, policy=POLICIES["none"])))
        assert (
            find_view(rig.pipeline, "a").stray,
            find_view(rig.pipeline, "a").assignment,
            rig.observed("a"),
        ) == ("", None, {1, 2})

    def test_a_guest_on_cpus_that_left_the_sets_moves_for_another_allocation(self, rig):
        self.moved(rig)
        rig.handle(AllocationsRead({"a": {"node1": {"PCPU": 2}}}, 2.0))
        assert rig.observed("a") == {5, 6}

    def test_a_requested_move_leads_into_the_current_sets(self, rig):
        larger = replace(SWAPPED, cpu_sets=CpuSets(frozenset({0, 3, 5}), frozenset({1, 2}), NOTHING))
        rig.run("b")
        rig.handle(HostStateChanged(larger))
        planned = rig.handle(MoveGuest("a", dry_run=True))
        assert (planned.held_cpus, rig.observed("a"), rig.observed("b")) == ({0, 3}, {1, 2}, ALL - {1, 2})
        assert rig.handle(MoveGuest("a")).held_cpus == {0, 3}
        assert (rig.observed("a"), rig.observed("b")) == ({0, 3}, {1, 2})
        assert find_view(rig.pipeline, "a").stray == ""
        assert rig.saved["a"].assignment.held_cpus == {0, 3}
        assert rig.handle(MoveGuest("a")) is None

    def test_a_move_for_which_there_is_no_room_changes_nothing(self, rig):
        self.moved(rig)
        with pytest.raises(GuestRefusedError, match="h_0 has 0 free dedicated CPUs"):
            rig.handle(MoveGuest("a"))
        assert (rig.observed("a"), find_view(rig.pipeline, "a").refusal) == ({1, 2}, "")

    def test_rebalancing_moves_a_guest_off_cpus_that_left_the_sets(self, rig):
        larger = CpuSets(frozenset({0, 3, 5}), frozenset({1, 2}), NOTHING)
        rig.handle(HostStateChanged(replace(HOST_STATE, cpu_sets=larger, rebalance_gain=2.0)))
        assert rig.observed("a") == {1, 2}
        rig.handle(ReconcileGuests())
        assert rig.observed("a") == {0, 3}


def test_floating_guests_leave_pinned_cpus_of_the_legacy_pin_set():
    pins = frozenset({1, 2, 5})
    rig = FakeHost(replace(HOST_STATE, cpu_sets=CpuSets(pins, pins, pins)))
    rig.run("shared")
    assert rig.observed("shared") == {1, 2, 5}
    rig.run("own", (0, 2, 0), vcpus=2)
    assert (rig.observed("own"), rig.observed("shared")) == ({1, 2}, {5})


def test_policy_none_confines_no_guest():
    rig = FakeHost(replace(DEDICATED_ONLY, policy=POLICIES["none"]))
    starts(rig, "free")
    assert rig.observed("free") == ALL
    assert find_view(rig.pipeline, "free").refusal == ""


class TestOrderedDedicatedAndAllocatedShared:
    """The flavor wants dedicated CPUs, but the allocation has VCPU, from nova-scheduler's second query for
    hosts without PCPU.
    """

    def start(self, rig, allocation, dedicated=2):
        guest = replace(rig.driver.create_guest("g", "g", GuestSettings(2), ()), dedicated=dedicated)
        rig.driver.running["g"] = guest
        rig.handle(GuestStarted(guest, {"node0": allocation}, 1.0, started=True))
        return guest

    def test_a_dedicated_flavor_with_vcpu_has_no_place_also_after_a_restart(self):
        rig = FakeHost()
        self.start(rig, {"VCPU": 2})
        assert (
            "the flavor wants 2 dedicated CPUs, but the allocation has VCPU"
            in find_view(rig.pipeline, "g").refusal
        )
        assert rig.observed("g") == {3, 7}
        rig.handle(ReconcileGuests())
        assert find_view(rig.pipeline, "g").refusal
        rig.restart()
        rig.handle(ReconcileGuests())
        assert find_view(rig.pipeline, "g").refusal

    def test_a_dedicated_flavor_with_vcpu_is_stopped_at_its_start_by_option(self):
        rig = FakeHost(replace(HOST_STATE, refuse_unplaced=True))
        self.start(rig, {"VCPU": 2})
        assert rig.driver.running == {}

    def test_a_dedicated_flavor_gets_its_cpus_with_an_allocation_of_pcpu(self):
        rig = FakeHost()
        self.start(rig, {"VCPU": 2})
        rig.handle(AllocationsRead({"g": {"node0": {"PCPU": 2}}}, 2.0))
        assert (find_view(rig.pipeline, "g").refusal, rig.observed("g")) == ("", {1, 2})

    def test_its_vcpu_are_dedicated_where_vcpu_pin_set_backs_both_classes(self):
        both = frozenset({1, 2, 3})
        rig = FakeHost(replace(HOST_STATE, cpu_sets=CpuSets(both, both, both)))
        self.start(rig, {"VCPU": 2})
        assert find_view(rig.pipeline, "g").refusal == ""
        assert len(find_view(rig.pipeline, "g").assignment.dedicated) == 2
        assert rig.observed("g") == set(find_view(rig.pipeline, "g").assignment.dedicated)

    def test_a_dedicated_flavor_floats_where_vcpu_pin_set_backs_vcpu_alone(self):
        """The host offers no PCPU, and its cpu_shared_set is only for emulator threads."""
        rig = FakeHost(replace(HOST_STATE, cpu_sets=CpuSets(NOTHING, frozenset({1, 2, 3}), frozenset({7}))))
        self.start(rig, {"VCPU": 2})
        view = find_view(rig.pipeline, "g")
        assert (view.refusal, view.assignment.vcpu_cpus) == ("", (frozenset({1, 2, 3}),) * 2)
        assert view.assignment.emulator_cpus == {7}

    def test_a_shared_flavor_with_vcpu_runs_on_shared_cpus(self):
        rig = FakeHost()
        self.start(rig, {"VCPU": 2}, dedicated=0)
        assert (find_view(rig.pipeline, "g").refusal, rig.observed("g")) == ("", {3})
