"""Tests of several drivers combined into one: lists are joined, and an order goes to the guest's driver."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from compute_agent.drivers import procfs
from compute_agent.drivers.base import ChangeKind, CpuSettings, GuestChange, OomKill
from compute_agent.drivers.combined import CombinedDriver
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import DriverError
from tests.compute_agent.builders import build_guest
from tests.compute_agent.fakes import FakeDriver

CPUS = frozenset(range(4))
ONE = CpuSettings((frozenset({1}),), frozenset({1}))


@pytest.fixture
def first():
    driver = FakeDriver(CPUS, "first")
    driver.starting_guests = False
    return driver


@pytest.fixture
def second():
    return FakeDriver(CPUS, "second")


@pytest.fixture
def both(first, second):
    return CombinedDriver([first, second])


def run(driver, uuid):
    return driver.create_guest(uuid, uuid, GuestSettings(), ())


def test_the_guests_of_all_drivers_are_listed_and_each_has_its_driver(both, first, second):
    guests = [run(first, "a"), run(second, "b")]
    assert both.guests() == both.listed_guests() == guests
    assert [guest.driver for guest in both.guests()] == ["first", "second"]
    assert both.name == "first,second"


def test_an_order_goes_to_the_driver_of_the_guest(both, first, second):
    guest, other = run(second, "b"), run(first, "a")
    assert both.apply_cpu_settings(guest, ONE)
    assert second.observed_cpus(guest) == {1}
    assert first.observed_cpus(other) == CPUS
    both.stop(guest, timeout=0)
    assert both.guests() == [other]


def test_a_guest_of_a_driver_that_is_not_used_is_refused(both):
    with pytest.raises(DriverError, match="of driver 'third', which is not used here"):
        both.thread_ids(build_guest("a", driver="third"))


def test_the_changes_of_all_drivers_are_reported(both, first, second):
    changes = []
    both.watch_guests(changes.append)
    for driver, uuid in ((second, "b"), (first, "a")):
        driver.end(run(driver, uuid))
    assert [(change.kind, change.guest.uuid) for change in changes] == [
        (ChangeKind.STOPPED, "b"),
        (ChangeKind.STOPPED, "a"),
    ]


def test_the_agent_starts_guests_with_the_driver_that_can(both, second):
    assert both.starting_driver is second


def test_kills_of_all_drivers_are_joined(both, first, second):
    first.kills, second.kills = ([OomKill(build_guest(uuid), 1, True)] for uuid in "ab")
    assert [kill.guest.uuid for kill in both.oom_kills()] == ["a", "b"]


class TestOneProcessTwice:
    """A process guest without a group of its own runs in the group of another driver's guest."""

    @pytest.fixture(autouse=True)
    def groups(self, monkeypatch):
        paths = {100: "/system.slice/db.service/workers", 101: "/system.slice/db.service-2"}
        monkeypatch.setattr(procfs, "cgroup_path", lambda pid: paths.get(pid, ""))

    @pytest.mark.parametrize("is_first", [True, False])
    def test_the_guest_of_the_first_driver_is_managed(self, both, first, second, is_first):
        service, process = (first, second) if is_first else (second, first)
        run(process, "p"), run(process, "beside")
        guest = run(service, "s")
        service.running["s"] = replace(guest, cgroup="/sys/fs/cgroup/system.slice/db.service")
        kept, lost = ("s", "p") if is_first else ("p", "s")
        assert {guest.uuid for guest in both.guests()} == {kept, "beside"}
        assert list(both.lost_guests()) == [lost]
        assert "has processes of guest" in both.lost_guests()[lost]

    def test_groups_are_those_of_the_configured_host(self, first, second):
        both = CombinedDriver([first, second], Path("/host/sys/fs/cgroup"))
        first.running["s"] = replace(run(first, "s"), cgroup="/host/sys/fs/cgroup/system.slice/db.service")
        run(second, "p")
        assert [guest.uuid for guest in both.guests()] == ["s"]
        assert list(both.lost_guests()) == ["p"]

    def test_its_changes_are_not_reported_apart_from_its_end(self, both, first, second):
        changes = []
        both.watch_guests(changes.append)
        first.running["s"] = replace(run(first, "s"), cgroup="/sys/fs/cgroup/system.slice/db.service")
        guest = run(second, "p")
        second.report(GuestChange(ChangeKind.STARTED, guest))
        assert changes == []
        second.end(guest)
        assert [change.kind for change in changes] == [ChangeKind.STOPPED]


def test_guests_with_groups_and_guests_of_earlier_drivers_overrule_others(both, first, second, monkeypatch):
    monkeypatch.setattr(procfs, "cgroup_path", lambda pid: "/app.slice/job.scope")
    grouped, plain = (replace(run(first, "a"), cgroup="/sys/fs/cgroup/root/guest-a"), run(first, "b"))
    first.running["a"] = grouped
    assert both.overruling_guests("second") == {
        "/sys/fs/cgroup/root": grouped,
        "/sys/fs/cgroup/app.slice/job.scope": plain,
    }
    later, _ = (replace(run(second, "c"), cgroup="/sys/fs/cgroup/root/guest-c"), run(second, "d"))
    second.running["c"] = later
    assert both.overruling_guests("first") == {"/sys/fs/cgroup/root": later}


class TestFlavors:
    """One driver knows the flavors of its guests, the other one does not."""

    def test_without_such_a_driver_there_are_none(self, both):
        assert both.flavor_source is None

    def test_the_driver_with_flavors_is_the_source(self, both, second):
        second.flavor_source = second
        assert both.flavor_source is second


class TestOneUuidTwice:
    """Two drivers report guests with one uuid: that of the first driver is managed."""

    def test_the_first_driver_keeps_it_and_the_other_guest_is_lost_with_a_reason(self, both, first, second):
        run(second, "b")
        kept, _ = run(first, "a"), run(second, "a")
        assert [(guest.uuid, guest.driver) for guest in both.guests()] == [("a", "first"), ("b", "second")]
        (reason,) = both.lost_guests().values()
        assert "of driver second" in reason
        assert f"(pid {kept.pid}), which comes first in [guests] drivers" in reason
        assert reason.endswith("stop one of the two")

    def test_a_uuid_of_two_guests_is_logged_once_until_one_of_them_ends(self, both, first, second, caplog):
        run(first, "a"), run(second, "a")
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                both.guests()
        assert len(caplog.records) == 1
        second.end(second.running["a"])
        assert [guest.driver for guest in both.guests()] == ["first"]
        assert both.lost_guests() == {}

    def test_reasons_of_drivers_are_kept_beside_it(self, both, first, second):
        run(first, "a"), run(second, "a")
        both.guests()
        second.lost_reasons = {"a": "no record", "c": "gone"}
        lost = both.lost_guests()
        assert lost["a"].endswith("stop one of the two; no record")
        assert lost["c"] == "gone"

    def test_excluded_guests_are_those_of_all_drivers(self, both, first, second):
        first.excluded_reasons, second.excluded_reasons = {"a": "of the host"}, {"b": "below a slice"}
        assert both.excluded_guests() == {"a": "of the host", "b": "below a slice"}

    @pytest.mark.parametrize(
        ("kind", "uuid", "is_told"),
        [
            (ChangeKind.STARTED, "a", False),
            (ChangeKind.CHANGED, "a", False),
            (ChangeKind.STOPPED, "a", True),
            (ChangeKind.STARTED, "b", True),
        ],
    )
    def test_a_change_of_the_other_guest_is_not_taken_for_one_of_the_managed(
        self, both, first, second, kind, uuid, is_told
    ):
        changes = []
        both.watch_guests(changes.append)
        run(first, "a")
        change = GuestChange(kind, run(second, uuid))
        second.report(change)
        assert changes == ([change] if is_told else [])


class TestAwaited:
    """One driver has not listed its guests yet."""

    @pytest.fixture(autouse=True)
    def away(self, first):
        first.awaited, first.outage_reason = True, "libvirtd is away"

    def test_the_guests_are_not_known_unless_a_caller_wants_those_of_the_others(self, both, second):
        guest = run(second, "b")
        with pytest.raises(DriverError, match="libvirtd is away"):
            both.guests()
        assert both.listed_guests() == [guest]
        assert both.awaited_drivers == {"first"}

    def test_the_reason_names_the_driver_and_those_that_are_there(self, both):
        assert both.outage_reason == (
            "driver first: libvirtd is away. Guests of driver second are managed, and changes of others wait:"
            " start the service of driver first again"
        )
        assert both.outage_reasons() == {"first": "libvirtd is away"}

    def test_changes_of_the_others_are_reported(self, both, second):
        changes = []
        both.watch_guests(changes.append)
        second.report(GuestChange(ChangeKind.STARTED, run(second, "b")))
        assert len(changes) == 1

    def test_if_all_are_awaited_no_guest_is_known(self, both, second):
        second.awaited, second.outage_reason = True, "also"
        with pytest.raises(DriverError, match="driver first: libvirtd is away; driver second: also"):
            both.listed_guests()


def test_all_drivers_are_closed_though_one_fails(both, first, second):
    closed = []
    second.close = lambda: closed.append("second")

    def fail():
        closed.append("first")
        raise OSError("no")

    first.close = fail
    with pytest.raises(OSError, match="no"):
        both.close()
    assert sorted(closed) == ["first", "second"]
