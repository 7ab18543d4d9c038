"""Scopes and slices as guests: which ones are guests, what belongs to them, and their ends."""

import functools
import json
import os
from dataclasses import replace

import pytest

from compute_agent.drivers import memory_limits, procfs
from compute_agent.drivers.base import ChangeKind, CpuLimits, CpuSettings, MemoryLimits
from compute_agent.drivers.combined import CombinedDriver
from compute_agent.drivers.foreign.declared import made_uuid
from compute_agent.drivers.systemd.unit_state import UNIT_DEFAULTS
from compute_agent.model.messages import GuestGoneError
from tests.compute_agent.builders import build_guest
from tests.compute_agent.drivers.systemd.conftest import HOST
from tests.compute_agent.fakes import FakeDriver
from tests.waits import wait_for

ALL = frozenset(os.sched_getaffinity(0))
ONE = frozenset({min(ALL)})
PINNED, FREE = CpuSettings((ONE,), ONE), CpuSettings((ALL,), ALL)
SECTION = "[X-ComputeAgent]\n"
SCOPE, SLICE, DB, WEB = "job.scope", "app.slice", "db.service", "web.service"
UUID = "6b0c0f5e-54e5-4f2c-8f0e-1a9d5f4f9c11"

pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="needs two CPUs to tell apart")


def next_change(driver):
    change = driver.changes.get(timeout=10)
    return change.kind, change.guest.name


def names(driver):
    return {guest.name for guest in driver.guests()}


def records(tmp_path):
    return [json.loads(path.read_text())["name"] for path in (tmp_path / "records").glob("*.json")]


class TestScopes:
    """A scope has processes of another program, and no unit file."""

    @pytest.fixture
    def scope(self, systemd):
        return systemd.start(SCOPE, None, [f"{SECTION}Vcpus=2\nClass=BE\n"], processes=2)

    def test_a_drop_in_makes_a_scope_a_guest(self, systemd, scope, open_driver):
        systemd.start("session-1.scope", None)
        (guest,) = open_driver().guests()
        assert (guest.name, guest.uuid) == (SCOPE, made_uuid(HOST, SCOPE))
        assert guest.pid == scope.processes[0].pid
        assert (guest.settings.vcpus, guest.declared) == (2, {"qos_class": "BE"})

    def test_a_name_makes_a_scope_a_guest(self, systemd, open_driver):
        systemd.start("session-1.scope", None)
        systemd.start("session-2.scope", None, [f"{SECTION}Guest=false\n"])
        driver = open_driver(guest_names=["session-*.scope"])
        assert names(driver) == {"session-1.scope"}
        assert driver.lost_guests() == {}

    def test_another_oldest_process_stands_for_the_main_process(self, systemd, scope, open_driver):
        driver = open_driver(look_interval=0.1)
        (before,) = driver.guests()
        systemd.end_main(SCOPE)
        assert names(driver) == {SCOPE}
        assert next_change(driver) == (ChangeKind.CHANGED, SCOPE)
        (now,) = driver.guests()
        assert now.pid == scope.processes[0].pid != before.pid
        assert now.is_same_run(before)
        assert driver.apply_cpu_settings(now, PINNED) == 1

    def test_limits_reach_a_scope_before_the_end_of_its_oldest_process_is_noticed(
        self, systemd, scope, open_driver
    ):
        driver = open_driver()
        (guest,) = driver.guests()
        systemd.end_main(SCOPE)
        assert driver.guests() == [guest]
        assert driver.apply_cpu_limits(guest, CpuLimits(300, 0.5))
        assert driver.apply_cpu_settings(guest, PINNED) == 1
        assert driver.observed_cpus(guest) == ONE
        assert driver.thread_ids(guest) == {scope.processes[0].pid}
        assert driver.limit_memory(guest, MemoryLimits(1 << 30, oom_score_adj=300))
        assert memory_limits.oom_score_adj(scope.processes[0].pid) == 300
        # The next signal of any unit is enough to find the next oldest process.
        systemd.start(DB, None)
        assert next_change(driver) == (ChangeKind.CHANGED, SCOPE)
        assert driver.guests()[0].pid == scope.processes[0].pid
        systemd.end_main(SCOPE)
        with pytest.raises(GuestGoneError):
            driver.apply_cpu_limits(guest, CpuLimits(100))

    def test_a_scope_ends_with_its_last_process(self, systemd, scope, open_driver):
        driver = open_driver()
        (guest,) = driver.guests()
        systemd.stop(SCOPE)
        assert next_change(driver) == (ChangeKind.STOPPED, SCOPE)
        assert driver.is_gone(SCOPE, guest.uuid)
        systemd.start(SCOPE, None)
        assert next_change(driver) == (ChangeKind.STARTED, SCOPE)
        assert not driver.guests()[0].is_same_run(guest)

    def test_values_of_a_scope_are_set_and_given_back(self, systemd, scope, open_driver, tmp_path):
        driver = open_driver()
        (guest,) = driver.guests()
        assert driver.apply_cpu_settings(guest, PINNED) == 2
        assert driver.apply_cpu_limits(guest, CpuLimits(300, 0.5))
        assert systemd.group_file(SCOPE, "cpuset.cpus") == str(min(ALL))
        assert len(systemd.drop_ins(SCOPE)) == 3
        assert driver.apply_cpu_settings(guest, FREE)
        assert driver.apply_cpu_limits(guest, CpuLimits(100))
        assert scope.values == UNIT_DEFAULTS
        assert (systemd.drop_ins(SCOPE), records(tmp_path)) == ([], [])

    def test_a_scope_that_is_gone_leaves_no_record(self, systemd, scope, open_driver, tmp_path):
        driver = open_driver()
        driver.apply_cpu_settings(driver.guests()[0], PINNED)
        systemd.stop(SCOPE)
        del systemd.units[SCOPE]
        systemd.changed(scope)
        wait_for(lambda: not records(tmp_path))
        assert systemd.drop_ins(SCOPE) == []

    def test_a_score_that_a_process_of_a_scope_has_itself_stays(self, systemd, scope, open_driver):
        driver = open_driver()
        (guest,) = driver.guests()
        first, second = (process.pid for process in scope.processes)
        with open(f"/proc/{second}/oom_score_adj", "w") as file:
            file.write("700")
        driver.limit_memory(guest, MemoryLimits(oom_score_adj=300))
        assert [memory_limits.oom_score_adj(pid) for pid in (first, second)] == [300, 700]
        assert driver.memory_limits(guest, MemoryLimits(oom_score_adj=300)) is None

    def test_a_stop_of_a_scope_goes_through_systemd(self, systemd, scope, open_driver):
        driver = open_driver()
        (guest,) = driver.guests()
        driver.stop(guest, 5)
        assert "StopUnit" in systemd.calls
        assert driver.guests() == []


class TestSlices:
    """All processes of the units in a slice belong to one guest."""

    @pytest.fixture
    def slice(self, systemd):
        unit = systemd.start(SLICE, f"{SECTION}Uuid={UUID}\n", processes=0)
        systemd.start(DB, slice=SLICE)
        systemd.start(WEB, None, slice="app-web.slice", processes=2)
        return unit

    def test_all_processes_below_a_slice_belong_to_one_guest(self, systemd, slice, open_driver):
        driver = open_driver()
        (guest,) = driver.guests()
        pids = [process.pid for name in (DB, WEB) for process in systemd.units[name].processes]
        assert (guest.uuid, guest.name, guest.pid) == (UUID, SLICE, pids[0])
        assert sorted(driver.process_ids(guest)) == sorted(pids)
        assert driver.apply_cpu_settings(guest, PINNED) == 3
        assert {frozenset(os.sched_getaffinity(pid)) for pid in pids} == {ONE}
        assert systemd.units[DB].values == UNIT_DEFAULTS
        assert driver.apply_cpu_settings(guest, FREE)
        assert (slice.values, systemd.drop_ins(SLICE)) == (UNIT_DEFAULTS, [])

    def test_units_below_a_slice_that_is_a_guest_are_excluded_guests(self, slice, open_driver):
        driver = open_driver(guest_names=["*.service"])
        assert names(driver) == {SLICE}
        excluded = driver.excluded_guests()
        assert excluded.keys() == {made_uuid(HOST, DB), made_uuid(HOST, WEB)}
        assert excluded[made_uuid(HOST, DB)].startswith(
            f"service {DB} cannot be a guest: it belongs to slice {SLICE}, which is a guest"
        )
        assert driver.lost_guests() == {}

    def test_a_slice_below_another_one_is_an_excluded_guest(self, systemd, slice, open_driver):
        systemd.start("app-web.slice", processes=0)
        driver = open_driver()
        assert names(driver) == {SLICE}
        assert f"it belongs to slice {SLICE}" in driver.excluded_guests()[made_uuid(HOST, "app-web.slice")]

    def test_a_running_slice_becomes_a_guest_and_its_units_get_their_values_back(
        self, systemd, open_driver, tmp_path
    ):
        unit = systemd.start(SLICE, None, processes=0)
        systemd.start(DB, slice=SLICE)
        driver = open_driver()
        driver.apply_cpu_settings(driver.guests()[0], PINNED)
        unit.files[0].write_text(SECTION)
        systemd.reload()
        assert {next_change(driver) for _ in range(2)} == {
            (ChangeKind.STOPPED, DB),
            (ChangeKind.STARTED, SLICE),
        }
        assert names(driver) == {SLICE}
        wait_for(lambda: not records(tmp_path))
        assert systemd.units[DB].values == UNIT_DEFAULTS
        unit.files[0].write_text("")
        systemd.reload()
        wait_for(lambda: names(driver) == {DB})
        assert driver.excluded_guests() == {}

    def test_a_slice_that_gets_its_uuid_late_replaces_the_units_below_it(self, systemd, open_driver):
        systemd.start("a.service", f"{SECTION}Uuid={UUID}\n")
        driver = open_driver(look_interval=0.1)
        systemd.start(SLICE, f"{SECTION}Uuid={UUID}\n", processes=0)
        systemd.start(DB, slice=SLICE)
        wait_for(lambda: names(driver) == {"a.service", DB})
        assert "unit a.service has the same uuid" in driver.lost_guests()[UUID]
        systemd.stop("a.service")
        wait_for(lambda: names(driver) == {SLICE})
        assert driver.lost_guests() == {}
        assert driver.excluded_guests().keys() == {made_uuid(HOST, DB)}

    def test_a_slice_is_a_guest_while_it_has_processes(self, systemd, open_driver):
        systemd.start(SLICE, processes=0)
        driver = open_driver()
        uuid = made_uuid(HOST, SLICE)
        assert driver.guests() == []
        systemd.start(DB, None, slice=SLICE)
        assert next_change(driver) == (ChangeKind.STARTED, SLICE)
        systemd.start(WEB, slice=SLICE)
        wait_for(driver.excluded_guests)
        systemd.stop(DB)
        assert next_change(driver) == (ChangeKind.CHANGED, SLICE)
        systemd.stop(WEB)
        assert next_change(driver) == (ChangeKind.STOPPED, SLICE)
        # The slice keeps its claim and its values until it is stopped.
        assert not driver.is_gone(SLICE, uuid)
        systemd.start(DB, slice=SLICE)
        assert next_change(driver) == (ChangeKind.STARTED, SLICE)
        systemd.stop_slice(SLICE)
        assert next_change(driver) == (ChangeKind.STOPPED, SLICE)
        assert driver.is_gone(SLICE, uuid)

    def test_an_end_of_all_units_without_a_signal_is_found_by_the_next_list(
        self, systemd, slice, open_driver
    ):
        driver = open_driver(look_interval=0.1)
        systemd.changed = lambda unit: None
        for name in (DB, WEB):
            systemd.stop(name)
        assert driver.guests() == []
        changes = [next_change(driver)]
        while changes[-1][0] is not ChangeKind.STOPPED:
            changes.append(next_change(driver))
        systemd.start(DB, slice=SLICE)
        assert next_change(driver) == (ChangeKind.STARTED, SLICE)

    def test_a_stop_of_a_slice_stops_its_units(self, systemd, slice, open_driver):
        driver = open_driver()
        (guest,) = driver.guests()
        pids = driver.process_ids(guest)
        driver.stop(guest, 5)
        assert systemd.calls.count("StopUnit") == 1
        assert [procfs.identify_process(pid) for pid in pids] == [None] * 3
        assert driver.guests() == []

    def test_a_slice_that_does_not_stop_is_killed_through_systemd(self, systemd, slice, open_driver):
        driver = open_driver()
        (guest,) = driver.guests()
        pids = driver.process_ids(guest)
        systemd.stop_slice = lambda name: None
        driver.stop(guest, 0.1)
        assert "KillUnit" in systemd.calls
        assert [procfs.identify_process(pid) for pid in pids] == [None] * 3
        with pytest.raises(GuestGoneError):
            driver.apply_cpu_settings(guest, PINNED)

    @pytest.mark.parametrize("name", ["system.slice", "user.slice", "machine.slice", "-.slice", "init.scope"])
    def test_units_of_the_host_are_excluded_guests(self, systemd, open_driver, name):
        systemd.start(name, processes=0)
        systemd.start(DB)
        driver = open_driver()
        assert names(driver) == {DB}
        assert f"{name} cannot be a guest: it contains" in driver.excluded_guests()[made_uuid(HOST, name)]

    def test_the_slice_of_the_agent_is_an_excluded_guest(self, systemd, slice, open_driver):
        (systemd.folder_of(systemd.units[DB]) / "cgroup.procs").write_text(f"{os.getpid()}\n")
        driver = open_driver()
        assert "the agent itself is in it" in driver.excluded_guests()[UUID]
        assert SLICE not in names(driver)

    def test_a_slice_with_a_guest_of_another_driver_is_no_guest(self, systemd, slice, open_driver):
        driver = open_driver(look_interval=0.1)
        folder = str(systemd.folder_of(slice))
        driver.leave_groups(lambda: {folder: build_guest("web", driver="podman")})
        wait_for(lambda: names(driver) == {DB})
        assert "guest web of driver podman runs in it" in driver.excluded_guests()[UUID]

    @pytest.mark.parametrize("has_group", [True, False])
    def test_a_slice_that_another_guest_enters_gets_its_values_back(
        self, systemd, slice, open_driver, tmp_path, monkeypatch, has_group
    ):
        driver, others = open_driver(look_interval=0.1), FakeDriver(ALL, "process")
        both = CombinedDriver([others, driver], systemd.folders.groups)
        driver.leave_groups(functools.partial(both.overruling_guests, "systemd"))
        driver.apply_cpu_settings(driver.guests()[0], PINNED)
        inner = others.create_guest("p", "p", driver.guests()[0].settings, ())
        monkeypatch.setattr(procfs, "cgroup_path", lambda pid: "/app.slice/p" if pid == inner.pid else "/")
        others.running["p"] = replace(inner, cgroup=f"{systemd.folder_of(slice)}/p" if has_group else "")
        wait_for(lambda: not records(tmp_path))
        assert slice.values == UNIT_DEFAULTS
        wait_for(lambda: {guest.name for guest in both.guests()} == {DB, "p"})
        assert "guest p of driver process runs in it" in both.excluded_guests()[UUID]
        others.end(others.running["p"])
        wait_for(lambda: names(driver) == {SLICE})
