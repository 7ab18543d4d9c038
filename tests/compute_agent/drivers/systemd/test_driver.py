"""Services as guests: found, followed, set, and given back."""

import json
import logging
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from compute_agent.drivers import procfs
from compute_agent.drivers.base import (
    UNLIMITED,
    ChangeKind,
    CpuLimits,
    CpuSettings,
    MemoryLimits,
)
from compute_agent.drivers.combined import CombinedDriver
from compute_agent.drivers.foreign import editor
from compute_agent.drivers.foreign.declared import made_uuid
from compute_agent.drivers.foreign.editor import HostFolders
from compute_agent.drivers.foreign.values import INFINITY, RATES, DeviceLimits
from compute_agent.drivers.peer import MAX_LOOKS
from compute_agent.drivers.systemd import driver as unit_driver
from compute_agent.drivers.systemd.manager import SystemdManager
from compute_agent.drivers.systemd.unit_state import UNIT_DEFAULTS
from compute_agent.drivers.systemd.unit_table import UnitTable
from compute_agent.model.guest_settings import SettingSource
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import BlockIo, DeviceRates
from tests.compute_agent.builders import build_guest
from tests.compute_agent.drivers.systemd.conftest import HOST
from tests.compute_agent.fakes import FakeDriver
from tests.compute_agent.limitable_disk import DISK
from tests.waits import wait_for

ALL = frozenset(os.sched_getaffinity(0))
ONE = frozenset({min(ALL)})
PINNED, FREE = CpuSettings((ONE,), ONE), CpuSettings((ALL,), ALL)
UUID = "6b0c0f5e-54e5-4f2c-8f0e-1a9d5f4f9c11"
DB = "db.service"
WITH_UUID = f"[X-ComputeAgent]\nUuid={UUID}\n"

pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="needs two CPUs to tell apart")


def next_change(driver):
    change = driver.changes.get(timeout=10)
    return change.kind, change.guest.name


def records(tmp_path):
    found = []
    for path in (tmp_path / "records").glob("*.json"):
        with suppress(FileNotFoundError):  # the driver deletes it meanwhile
            found.append(json.loads(path.read_text()))
    return found


def move_uuid(systemd, first, second):
    """An operator gives the uuid of a service to another one."""
    first.files[0].write_text("[Service]\n")
    second.files[0].write_text(WITH_UUID)
    systemd.reload()


def compare_all(driver, guest):
    """The comparisons of one round."""
    driver.misplaced_threads(guest, FREE)
    driver.memory_nodes(guest, frozenset())
    driver.cpu_limits(guest, CpuLimits())
    driver.memory_limits(guest, MemoryLimits(1 << 30))
    driver.blockio_drift(guest, None)


class TestFinding:
    """Which services are guests, and their changes."""

    def test_only_services_with_the_section_are_guests(self, systemd, open_driver):
        systemd.start(DB, "[X-ComputeAgent]\nVcpus=2\nClass=BE\nPriority=x\n")
        systemd.start("other.service", None)
        (guest,) = open_driver().guests()
        assert (guest.uuid, guest.driver, guest.name) == (made_uuid(HOST, DB), "systemd", DB)
        assert guest.pid == systemd.units[DB].processes[0].pid
        assert (guest.settings.vcpus, guest.declared) == (2, {"qos_class": "BE"})
        assert guest.declared_by is SettingSource.UNIT
        assert "Priority=x has no effect" in guest.declared_problems[0]

    def test_a_start_an_end_and_a_restart_are_reported(self, systemd, open_driver):
        driver = open_driver()
        systemd.start(DB)
        assert next_change(driver) == (ChangeKind.STARTED, DB)
        systemd.restart(DB)
        assert next_change(driver) == (ChangeKind.STOPPED, DB)
        assert next_change(driver) == (ChangeKind.STARTED, DB)
        assert driver.guests()[0].pid == systemd.units[DB].processes[0].pid
        systemd.stop(DB, "failed")
        assert next_change(driver) == (ChangeKind.STOPPED, DB)
        assert driver.guests() == []

    def test_a_restart_between_two_reads_of_a_service_is_a_new_run(self, systemd, open_driver, monkeypatch):
        driver = open_driver()
        systemd.start(DB)
        assert next_change(driver) == (ChangeKind.STARTED, DB)
        read_group, restarts = SystemdManager.read_group, [DB]

        def restart_before(self, name):
            if restarts:
                systemd.restart(restarts.pop())
            return read_group(self, name)

        monkeypatch.setattr(SystemdManager, "read_group", restart_before)
        systemd.changed(systemd.units[DB])
        assert next_change(driver) == (ChangeKind.STOPPED, DB)
        assert next_change(driver) == (ChangeKind.STARTED, DB)

    def test_a_guest_of_an_earlier_run_is_gone(self, systemd, open_driver):
        systemd.start(DB)
        driver = open_driver()
        (before,) = driver.guests()
        systemd.restart(DB)
        wait_for(lambda: [guest for guest in driver.guests() if guest.pid != before.pid])
        with pytest.raises(GuestGoneError):
            driver.apply_cpu_settings(before, PINNED)

    def test_changes_without_a_signal_are_found_by_the_next_list(self, systemd, open_driver):
        driver = open_driver(look_interval=0.1)
        systemd.changed = lambda unit: None
        systemd.start(DB)
        assert next_change(driver) == (ChangeKind.STARTED, DB)
        systemd.stop(DB)
        assert next_change(driver) == (ChangeKind.STOPPED, DB)

    def test_a_reload_applies_a_new_section_and_changed_settings(self, systemd, open_driver):
        unit = systemd.start(DB, None)
        driver = open_driver()
        assert driver.guests() == []
        unit.files[0].write_text("[X-ComputeAgent]\nVcpus=2\n")
        systemd.reload()
        assert next_change(driver)[1] == DB
        unit.files[0].write_text("[X-ComputeAgent]\nVcpus=3\n")
        systemd.reload()
        assert next_change(driver) == (ChangeKind.CHANGED, DB)
        assert driver.guests()[0].settings.vcpus == 3
        unit.files[0].write_text("[Service]\n")
        systemd.reload()
        assert next_change(driver) == (ChangeKind.STOPPED, DB)

    def test_a_flood_of_signals_of_one_service_costs_no_reads_of_other_guests(
        self, systemd, open_driver, monkeypatch
    ):
        looks = []
        monkeypatch.setattr(UnitTable, "unsteady_keys", lambda table: looks.append(1) or [])
        unit = systemd.start(DB)
        driver = open_driver()
        began = time.monotonic()
        for _ in range(50 * MAX_LOOKS):
            systemd.changed(unit)
        systemd.start("web.service")
        wait_for(lambda: len(driver.guests()) == 2)
        assert len(looks) <= 2 * MAX_LOOKS + (time.monotonic() - began) + 1

    def test_another_main_process_of_the_same_run_changes_the_guest(self, systemd, open_driver):
        unit = systemd.start(DB, processes=2)
        driver = open_driver()
        unit.main_pid = unit.processes[1].pid
        systemd.changed(unit)
        assert next_change(driver) == (ChangeKind.CHANGED, DB)
        assert driver.process_ids(driver.guests()[0]) == [process.pid for process in unit.processes[::-1]]

    def test_a_main_process_outside_of_the_group_is_not_the_guests(self, systemd, open_driver):
        unit = systemd.define(DB)
        unit.main_pid = os.getpid()
        systemd.start(DB)
        assert open_driver().guests()[0].pid == unit.processes[0].pid

    def test_another_main_process_after_the_former_one_changes_the_guest(self, systemd, open_driver):
        systemd.start(DB)
        driver = open_driver()
        (before,) = driver.guests()
        systemd.replace_main(DB)
        assert next_change(driver) == (ChangeKind.CHANGED, DB)
        (now,) = driver.guests()
        assert now.pid == systemd.units[DB].processes[0].pid != before.pid
        assert now.run == before.run == (before.pid, before.run[1])
        assert now.is_same_run(before)
        systemd.restart(DB)
        assert next_change(driver) == (ChangeKind.STOPPED, DB)
        assert next_change(driver) == (ChangeKind.STARTED, DB)
        assert not driver.guests()[0].is_same_run(before)

    def test_a_service_that_is_stopping_stays_a_guest_until_all_its_processes_end(
        self, systemd, open_driver, tmp_path
    ):
        unit = systemd.start(DB, processes=3)
        driver = open_driver()
        driver.apply_cpu_settings(driver.guests()[0], PINNED)
        systemd.begin_stop(DB)
        assert next_change(driver) == (ChangeKind.CHANGED, DB)
        (guest,) = driver.guests()
        assert driver.process_ids(guest) == [process.pid for process in unit.processes]
        assert driver.misplaced_threads(guest, PINNED) == {}
        assert records(tmp_path)
        systemd.stop(DB)
        assert next_change(driver) == (ChangeKind.STOPPED, DB)
        assert driver.guests() == []

    def test_an_end_of_the_main_process_without_a_signal_ends_no_guest(self, systemd, open_driver):
        systemd.start(DB, processes=2)
        driver = open_driver()
        guests = driver.guests()
        systemd.end_main(DB)
        assert driver.guests() == guests
        systemd.end_main(DB)
        assert driver.guests() == []

    def test_a_service_without_a_main_process_has_its_oldest_one(self, systemd, open_driver):
        unit = systemd.define(DB)
        unit.main_pid = 0
        systemd.start(DB, processes=2)
        assert open_driver().guests()[0].pid == unit.processes[0].pid

    @pytest.mark.parametrize(
        ("section", "reason"),
        [
            ("[X-ComputeAgent]\nUuid=db\n", "Uuid=db is not a uuid"),
            ("[X-ComputeAgent]\nVcpus=none\n", "Vcpus=none is not a whole number"),
            ("[X-ComputeAgent]\nGuest=perhaps\n", "Guest=perhaps is neither true nor false"),
        ],
    )
    def test_a_section_that_cannot_be_used_makes_a_lost_guest(self, systemd, open_driver, section, reason):
        unit = systemd.start(DB, section)
        driver = open_driver(look_interval=0.1)
        assert driver.guests() == []
        ((guest_uuid, text),) = driver.lost_guests().items()
        assert guest_uuid == made_uuid(HOST, DB)
        assert text.startswith(f"service {DB} cannot be a guest: {reason}")
        unit.files[0].write_text("[X-ComputeAgent]\n")
        wait_for(driver.guests)
        assert driver.lost_guests() == {}

    def test_services_are_guests_by_their_names(self, systemd, open_driver):
        pattern, template = "postgresql@*.service", "postgresql@15-main.service"
        systemd.start(template, None)
        systemd.start("postgresql.service", None)
        systemd.start("postgresql@old.service", "[X-ComputeAgent]\nGuest=false\n")
        systemd.start("postgresql@new.service", "[X-ComputeAgent]\nVcpus=2\n")
        systemd.start(DB)
        driver = open_driver(guest_names=[pattern, "Other.service"])
        found = {guest.name: guest for guest in driver.guests()}
        assert found.keys() == {template, "postgresql@new.service", DB}
        guest = found[template]
        assert (guest.uuid, guest.settings.vcpus) == (made_uuid(HOST, template), 1)
        assert (guest.declared, guest.declared_problems) == ({}, ())
        assert found["postgresql@new.service"].settings.vcpus == 2
        assert driver.lost_guests() == {}

    def test_a_service_that_is_no_guest_by_name_any_more_gets_its_values_back(
        self, systemd, open_driver, tmp_path
    ):
        systemd.start(DB, None)
        driver = open_driver(guest_names=["d?.service"])
        driver.apply_cpu_settings(driver.guests()[0], PINNED)
        driver.close()
        assert open_driver().guests() == []
        wait_for(lambda: not records(tmp_path))
        assert systemd.units[DB].values == UNIT_DEFAULTS

    def test_a_reload_applies_a_section_that_says_that_a_service_is_no_guest(self, systemd, open_driver):
        unit = systemd.start(DB, None)
        driver = open_driver(guest_names=[DB])
        assert [guest.name for guest in driver.guests()] == [DB]
        unit.files[0].write_text("[X-ComputeAgent]\nGuest=false\n")
        systemd.reload()
        assert next_change(driver) == (ChangeKind.STOPPED, DB)
        assert driver.guests() == []

    def test_a_file_that_others_can_change_makes_a_lost_guest(self, systemd, open_driver):
        unit = systemd.define(DB)
        unit.files[0].chmod(0o666)
        systemd.start(DB)
        driver = open_driver()
        assert driver.guests() == []
        assert "not trusted" in driver.lost_guests()[made_uuid(HOST, DB)]

    def test_the_second_service_with_a_uuid_is_lost(self, systemd, open_driver):
        for name in ("a.service", "b.service"):
            systemd.start(name, f"[X-ComputeAgent]\nUuid={UUID}\n")
        driver = open_driver()
        assert [(guest.uuid, guest.name) for guest in driver.guests()] == [(UUID, "a.service")]
        assert "unit a.service has the same uuid" in driver.lost_guests()[UUID]

    def test_the_service_of_the_agent_is_no_guest(self, systemd, open_driver):
        unit = systemd.start(DB)
        (systemd.folder_of(unit) / "cgroup.procs").write_text(f"{os.getpid()}\n")
        driver = open_driver()
        assert driver.guests() == []
        assert "the agent itself is in it" in driver.excluded_guests()[made_uuid(HOST, DB)]

    def test_a_host_without_unified_groups_has_no_such_guests(self, systemd, open_driver):
        (systemd.folders.groups / "cgroup.controllers").unlink()
        systemd.start(DB)
        assert "no control groups of version 2" in open_driver().lost_guests()[made_uuid(HOST, DB)]

    @pytest.mark.parametrize("group", ["kubepods.slice", "kubepods"])
    def test_a_node_of_kubernetes_is_refused_with_a_reason(self, systemd, open_driver, group):
        folder = systemd.folders.groups / group
        folder.mkdir()
        systemd.start(DB)
        driver = open_driver()
        assert driver.awaited_drivers == {"systemd"}
        reason = driver.outage_reasons()["systemd"]
        assert f"this is a node of Kubernetes (the control group {folder} exists)" in reason
        assert "remove systemd from [guests] drivers" in reason
        folder.rmdir()
        wait_for(lambda: not driver.awaited_drivers)

    def test_a_node_that_kubernetes_joins_later_is_refused(self, systemd, open_driver):
        systemd.start(DB)
        driver = open_driver(look_interval=0.1)
        assert driver.guests()
        (systemd.folders.groups / "kubepods.slice").mkdir()
        wait_for(lambda: "this is a node of Kubernetes" in driver.outage_reason)
        assert [guest.name for guest in driver.guests()] == [DB]

    def test_a_hostile_answer_about_one_service_leaves_the_others(self, systemd, open_driver, caplog):
        systemd.start(DB).group_path = "/system.slice/../../db.service"
        systemd.start("b.service")
        driver = open_driver()
        assert [guest.name for guest in driver.guests()] == ["b.service"]
        assert "ControlGroup" in driver.lost_guests()[made_uuid(HOST, DB)]


class TestSetting:
    """Properties go through systemd, with the service's own values on disk first."""

    @pytest.fixture
    def rig(self, systemd, open_driver):
        systemd.start(DB, processes=2)
        driver = open_driver()
        return driver, driver.guests()[0]

    def test_cpus_of_all_processes_are_set_and_given_back(self, systemd, rig, tmp_path):
        driver, guest = rig
        assert driver.apply_cpu_settings(guest, PINNED) == 2
        assert systemd.group_file(DB, "cpuset.cpus") == str(min(ALL))
        assert systemd.drop_ins(DB) == ["50-AllowedCPUs.conf"]
        assert records(tmp_path)[0]["values"] == {"AllowedCPUs": ""}
        assert driver.apply_cpu_settings(guest, FREE) == 1
        assert systemd.units[DB].values["AllowedCPUs"] == frozenset()
        assert (systemd.drop_ins(DB), records(tmp_path)) == ([], [])
        assert driver.misplaced_threads(guest, FREE) == {}

    def test_a_thread_may_use_fewer_cpus_itself(self, rig):
        driver, guest = rig
        os.sched_setaffinity(guest.pid, ONE)
        assert driver.misplaced_threads(guest, FREE) == {}

    def test_the_end_of_the_service_gives_everything_back(self, systemd, rig, tmp_path):
        driver, guest = rig
        driver.apply_cpu_settings(guest, PINNED)
        driver.apply_cpu_limits(guest, CpuLimits(300, 0.5))
        driver.limit_memory(guest, MemoryLimits(1 << 30, UNLIMITED, 1 << 20))
        driver.apply_blockio(guest, BlockIo(50))
        assert len(systemd.drop_ins(DB)) == 6
        systemd.stop(DB)
        wait_for(lambda: not records(tmp_path))
        assert systemd.units[DB].values == UNIT_DEFAULTS
        assert systemd.drop_ins(DB) == []

    def test_the_values_survive_while_systemd_starts_the_service_again(self, systemd, rig, tmp_path):
        driver, guest = rig
        driver.apply_cpu_settings(guest, PINNED)
        systemd.stop(DB, "activating")
        assert next_change(driver) == (ChangeKind.STOPPED, DB)
        assert records(tmp_path)
        systemd.start(DB)
        assert next_change(driver) == (ChangeKind.STARTED, DB)
        assert driver.misplaced_threads(driver.guests()[0], PINNED) == {}

    def test_a_service_that_ends_while_the_agent_is_away_gets_its_values_back(
        self, systemd, rig, open_driver, tmp_path
    ):
        driver, guest = rig
        driver.apply_cpu_limits(guest, CpuLimits(300))
        driver.close()
        systemd.stop(DB)
        open_driver()
        assert systemd.units[DB].values == UNIT_DEFAULTS
        assert records(tmp_path) == []

    def test_another_agent_knows_the_values_of_the_service(self, systemd, open_driver):
        systemd.start(DB).values["CPUQuotaPerSecUSec"] = 3_000_000
        first = open_driver()
        first.apply_cpu_limits(first.guests()[0], CpuLimits(quota=1))
        assert systemd.units[DB].values["CPUQuotaPerSecUSec"] == 1_000_000
        first.close()
        second = open_driver()
        (guest,) = second.guests()
        assert second.cpu_limits(guest, CpuLimits()) == CpuLimits(100, 1.0)
        assert second.apply_cpu_limits(guest, CpuLimits())
        assert systemd.units[DB].values["CPUQuotaPerSecUSec"] == 3_000_000

    def test_a_service_without_the_section_gets_its_values_back_while_it_runs(self, systemd, rig, tmp_path):
        driver, guest = rig
        driver.apply_cpu_settings(guest, PINNED)
        systemd.units[DB].files[0].write_text("[Service]\n")
        systemd.reload()
        wait_for(lambda: not records(tmp_path))
        assert systemd.units[DB].values == UNIT_DEFAULTS

    @pytest.fixture
    def pair(self, systemd, open_driver):
        """A service with a uuid and values of the agent, and a service that is no guest."""
        first, second = systemd.start("a.service", WITH_UUID), systemd.start("b.service", None)
        driver = open_driver()
        driver.apply_cpu_settings(driver.guests()[0], PINNED)
        return driver, first, second

    @pytest.mark.parametrize(
        "change",
        [
            lambda driver, guest: driver.apply_cpu_settings(guest, PINNED),
            lambda driver, guest: driver.limit_memory(guest, MemoryLimits(oom_score_adj=500)),
        ],
        ids=["cpus", "score"],
    )
    def test_a_uuid_that_moves_to_another_service_leaves_no_values_behind(
        self, systemd, pair, tmp_path, change
    ):
        driver, first, second = pair
        # The worker may change the new guest while the thread still reads other services.
        driver.watch_guests(
            lambda it: change(driver, it.guest) if it.kind is ChangeKind.STARTED else driver.changes.put(it)
        )
        move_uuid(systemd, first, second)
        wait_for(lambda: [record["name"] for record in records(tmp_path)] == ["b.service"])
        assert first.values == UNIT_DEFAULTS
        assert systemd.drop_ins("a.service") == []

    def test_a_moved_uuid_waits_until_the_former_service_has_its_values(self, systemd, pair, tmp_path):
        driver, first, second = pair
        systemd.refusals["AllowedCPUs"] = ("org.freedesktop.DBus.Error.AccessDenied", "no")
        move_uuid(systemd, first, second)
        wait_for(lambda: [one.name for one in driver.guests()] == ["b.service"])
        (guest,) = driver.guests()
        with pytest.raises(DriverError, match=r"former limits of a\.service, which had its uuid"):
            driver.apply_cpu_limits(guest, CpuLimits(300))
        assert second.values == UNIT_DEFAULTS
        assert [record["name"] for record in records(tmp_path)] == ["a.service"]
        systemd.refusals.clear()
        assert driver.apply_cpu_limits(guest, CpuLimits(300))
        assert first.values == UNIT_DEFAULTS
        assert [record["name"] for record in records(tmp_path)] == ["b.service"]

    def test_a_service_that_was_removed_leaves_no_record(self, systemd, rig, tmp_path):
        driver, guest = rig
        driver.apply_cpu_settings(guest, PINNED)
        unit = systemd.units[DB]
        systemd.stop(DB, "activating")
        del systemd.units[DB]
        systemd.changed(unit)
        wait_for(lambda: not records(tmp_path))
        assert systemd.drop_ins(DB) == []

    def test_a_file_of_the_operator_for_a_property_stays(self, systemd, rig):
        driver, guest = rig
        systemd.control_of(DB).mkdir()
        (systemd.control_of(DB) / "50-CPUQuota.conf").write_text("")
        driver.apply_cpu_limits(guest, CpuLimits(quota=1))
        driver.apply_cpu_limits(guest, CpuLimits())
        assert systemd.drop_ins(DB) == ["50-CPUQuota.conf"]

    def test_drift_of_a_property_and_of_a_file_is_seen_and_corrected(self, systemd, rig, monkeypatch):
        driver, guest = rig
        # Each comparison is one of a later round.
        monkeypatch.setattr(editor, "READING_SECONDS", -1.0)
        driver.apply_cpu_settings(guest, PINNED)
        driver.apply_cpu_limits(guest, CpuLimits(300, 0.5))
        systemd.units[DB].values["CPUWeight"] = INFINITY
        (systemd.folder_of(systemd.units[DB]) / "cpu.max").write_text("max 100000\n")
        assert driver.cpu_limits(guest, CpuLimits(300, 0.5)) == CpuLimits(100, 0.5)
        assert driver.apply_cpu_limits(guest, CpuLimits(300, 0.5))
        assert driver.cpu_limits(guest, CpuLimits(300, 0.5)) is None
        assert systemd.group_file(DB, "cpu.max") == "50000 100000"
        (systemd.folder_of(systemd.units[DB]) / "cpuset.cpus").write_text("0-1\n")
        assert driver.misplaced_threads(guest, PINNED) == {guest.pid: ONE}
        assert driver.apply_cpu_settings(guest, PINNED)

    def test_a_round_of_comparisons_reads_the_service_once(self, systemd, rig, monkeypatch):
        driver, guest = rig
        compare_all(driver, guest)
        monkeypatch.setattr(editor, "READING_SECONDS", -1.0)
        systemd.calls.clear()
        compare_all(driver, guest)
        # The files of the group are the same, so the properties are, too.
        assert systemd.calls == []
        monkeypatch.setattr(unit_driver, "PROPERTY_SECONDS", -1.0)
        compare_all(driver, guest)
        assert systemd.calls == ["GetAll"] * 5
        monkeypatch.undo()
        systemd.calls.clear()
        for _ in range(3):
            compare_all(driver, guest)
        # The reading before has been made in the loop or just before it.
        assert systemd.calls.count("GetAll") <= 1

    def test_a_reading_of_one_service_serves_no_other_one(self, systemd, rig):
        driver, guest = rig
        systemd.start("b.service").values["CPUWeight"] = 300
        wait_for(lambda: len(driver.guests()) == 2)
        (other,) = (one for one in driver.guests() if one.name == "b.service")
        assert driver.cpu_limits(guest, CpuLimits(quota=1)) == CpuLimits(100)
        assert driver.cpu_limits(other, CpuLimits(quota=1)) == CpuLimits(300)

    def test_a_change_is_seen_once_a_reading_is_old(self, systemd, rig, monkeypatch):
        driver, guest = rig
        assert driver.cpu_limits(guest, CpuLimits(quota=1)) == CpuLimits(100)
        systemd.units[DB].values["CPUQuotaPerSecUSec"] = 3_000_000
        monkeypatch.setattr(editor, "READING_SECONDS", -1.0)
        systemd.realize(systemd.units[DB], {"CPUQuotaPerSecUSec": 3_000_000})
        assert driver.cpu_limits(guest, CpuLimits(quota=1)) == CpuLimits(100, 3.0)
        # A property that changes no file is seen later.
        systemd.units[DB].values["CPUQuotaPerSecUSec"] = 4_000_000
        assert driver.cpu_limits(guest, CpuLimits(quota=1)) == CpuLimits(100, 3.0)
        monkeypatch.setattr(unit_driver, "PROPERTY_SECONDS", -1.0)
        assert driver.cpu_limits(guest, CpuLimits(quota=1)) == CpuLimits(100, 4.0)

    def test_a_write_notes_the_present_values_of_the_service(self, systemd, rig, tmp_path):
        driver, guest = rig
        compare_all(driver, guest)
        # The files of the group do not show this change.
        systemd.units[DB].values["CPUQuotaPerSecUSec"] = 4_000_000
        driver.apply_cpu_limits(guest, CpuLimits(quota=1))
        assert records(tmp_path)[0]["values"] == {"CPUQuotaPerSecUSec": "4000000"}

    def test_a_service_that_runs_is_not_looked_at_again(self, systemd, open_driver):
        systemd.start(DB)
        open_driver(look_interval=0.05)
        systemd.calls.clear()
        wait_for(lambda: len(systemd.calls) >= 10)
        assert set(systemd.calls) == {"ListUnitsByPatterns"}

    def test_a_value_that_the_kernel_does_not_take_is_an_error(self, systemd, rig):
        driver, guest = rig
        systemd.ignores.add("MemoryMax")
        with pytest.raises(DriverError, match=rf"{guest.uuid}.*kernel did not accept MemoryMax"):
            driver.limit_memory(guest, MemoryLimits(1 << 30))

    def test_a_value_that_systemd_refuses_is_an_error_with_its_words(self, systemd, rig):
        driver, guest = rig
        systemd.refusals["CPUWeight"] = ("org.freedesktop.DBus.Error.AccessDenied", "Access\ndenied")
        with pytest.raises(DriverError, match=r"CPUWeight=300 of guest .*: Access.denied") as caught:
            driver.apply_cpu_limits(guest, CpuLimits(300))
        assert str(caught.value).isprintable()

    def test_a_property_is_set_after_its_record_is_written(self, systemd, rig, tmp_path):
        driver, guest = rig
        (tmp_path / "records").rmdir()
        with pytest.raises(DriverError, match="record cannot be written"):
            driver.apply_cpu_settings(guest, PINNED)
        assert systemd.units[DB].values == UNIT_DEFAULTS

    def test_an_older_systemd_has_no_idle_weight(self, systemd, open_driver):
        systemd.version = "249.11"
        systemd.start(DB)
        driver = open_driver()
        (guest,) = driver.guests()
        assert driver.missing_limits(guest, CpuLimits(idle=True)) == ["cpu_idle: this needs systemd 252"]
        assert driver.cpu_limits(guest, CpuLimits(idle=True)) is None

    def test_settings_that_cannot_be_set_are_named(self, rig):
        driver, guest = rig
        assert driver.missing_limits(guest, CpuLimits(quota=1, burst=0.5))
        wanted = BlockIo(None, DeviceRates(1), 10, frozenset({"8:0"}), True)
        assert len(driver.blockio_missing(guest, wanted)) == 2
        assert driver.blockio_missing(guest, BlockIo(50)) == []
        assert driver.memory_missing(guest, MemoryLimits(1, oom_group=False, huge_pages=((2048, 0),))) == []
        (oom, pages) = driver.memory_missing(guest, MemoryLimits(oom_group=True, huge_pages=((2048, 1),)))
        assert "OOMPolicy=kill" in oom
        assert "cannot limit them" in pages
        (Path(guest.cgroup) / "memory.oom.group").write_text("1\n")
        assert driver.memory_missing(guest, MemoryLimits(oom_group=True)) == []

    def test_block_io_that_the_kernel_lacks_is_named_once_the_group_shows_it(self, rig):
        driver, guest = rig
        group, wanted = Path(guest.cgroup), BlockIo(50, latency_us=10)
        assert ["io.latency" in one for one in driver.blockio_missing(guest, wanted)] == [True]
        (group / "io.weight").unlink()
        assert len(driver.blockio_missing(guest, wanted)) == 2
        (group / "io.bfq.weight").touch()
        assert len(driver.blockio_missing(guest, wanted)) == 1
        (group / "io.max").unlink()
        assert driver.blockio_missing(guest, wanted) == []

    @pytest.mark.skipif(not DISK, reason="this machine has no block device")
    def test_rates_are_set_by_the_paths_of_the_unit_itself(self, systemd, rig, tmp_path):
        driver, guest = rig
        read, write = RATES[:2]
        unit, disk, unknown = systemd.units[DB], f"/dev/block/{DISK}", "/dev/a-device-that-is-gone"
        unit.values[write] = DeviceLimits.from_limits({disk: 500, unknown: 9})
        systemd.realize(unit, unit.values)
        before = dict(unit.values)
        wanted = BlockIo(rates=DeviceRates(300, 900), devices=frozenset({DISK}))
        assert driver.blockio_missing(guest, wanted) == []
        assert driver.apply_blockio(guest, wanted)
        assert systemd.group_file(DB, "io.max") == f"{DISK} rbps=300 wbps=500 riops=max wiops=max"
        assert unit.values[write].by_device == {disk: 500, unknown: 9}
        assert not driver.apply_blockio(guest, wanted)
        assert systemd.drop_ins(DB) == [f"50-{read}.conf"]
        systemd.stop(DB)
        wait_for(lambda: not records(tmp_path))
        assert (unit.values, systemd.drop_ins(DB)) == (before, [])

    @pytest.mark.skipif(not DISK, reason="this machine has no block device")
    def test_rates_of_a_device_on_another_disk_are_named_and_not_set(self, systemd, rig, monkeypatch):
        driver, guest = rig
        wanted = BlockIo(rates=DeviceRates(300), devices=frozenset({DISK}))
        monkeypatch.setattr(HostFolders, "limited_device", lambda folders, path: "8:99")
        (reason,) = driver.blockio_missing(guest, wanted)
        assert (DISK in reason, "8:99" in reason) == (True, True)
        assert not driver.apply_blockio(guest, wanted)

    def test_drift_of_block_io_is_told_in_words(self, rig):
        driver, guest = rig
        assert driver.blockio_drift(guest, None) == ""
        driver.apply_blockio(guest, BlockIo(50))
        assert driver.blockio_drift(guest, None) == "IOWeight is 50"
        assert driver.apply_blockio(guest, None)

    def test_a_dry_run_changes_nothing(self, systemd, open_driver, tmp_path):
        systemd.start(DB)
        driver = open_driver(look_only=True)
        (guest,) = driver.guests()
        assert driver.misplaced_threads(guest, PINNED)
        with pytest.raises(DriverError, match="dry run"):
            driver.apply_cpu_settings(guest, PINNED)
        assert not (tmp_path / "records").exists()
        assert "SetUnitProperties" not in systemd.calls

    def test_a_damaged_record_is_put_aside_and_one_of_another_boot_forgotten(
        self, systemd, rig, open_driver, tmp_path, caplog
    ):
        driver, guest = rig
        driver.apply_cpu_limits(guest, CpuLimits(300))
        driver.close()
        (path,) = (tmp_path / "records").glob("*.json")
        document = json.loads(path.read_text())
        path.write_text("{}")
        open_driver().close()
        assert "cannot be used" in caplog.text
        (aside,) = (tmp_path / "records").iterdir()
        assert ".damaged-" in aside.name
        path.write_text(json.dumps({**document, "boot_id": "another"}))
        open_driver()
        assert not path.exists()

    def test_a_stop_goes_through_systemd_and_starts_nothing(self, systemd, rig):
        driver, guest = rig
        driver.stop(guest, 5)
        driver.stop(guest, 5)
        assert [call for call in systemd.calls if call.startswith(("Start", "Restart", "Stop"))] == [
            "StopUnit"
        ]

    @pytest.mark.parametrize("is_stopping", [False, True])
    def test_processes_that_outlive_the_main_process_are_killed_by_systemd(self, systemd, rig, is_stopping):
        driver, guest = rig
        unit = systemd.units[DB]
        unit.slow_stop = True
        (_, other) = unit.processes
        if is_stopping:
            systemd.begin_stop(DB)
            systemd.begin_stop = lambda name: None
        driver.stop(guest, 0.1)
        assert procfs.identify_process(other.pid) is None
        assert "KillUnit" in systemd.calls

    def test_processes_that_systemd_leaves_alone_are_not_killed(self, systemd, rig):
        """systemd does so with KillMode=process."""
        driver, guest = rig
        unit = systemd.units[DB]
        unit.slow_stop = True

        def leave_processes(name):
            systemd.end_main(name)
            unit.active = "inactive"
            systemd.changed(unit)

        systemd.begin_stop = leave_processes
        driver.stop(guest, 60)
        assert "KillUnit" not in systemd.calls
        assert driver.guests() == []

    def test_a_service_that_does_not_stop_is_killed_through_systemd(self, systemd, rig):
        driver, guest = rig
        stop, systemd.stop = systemd.stop, lambda name, active="": active and stop(name, active)
        driver.stop(guest, 0.1)
        assert "KillUnit" in systemd.calls
        systemd.stop = stop


class TestAway:
    """systemd or the bus does not answer."""

    def test_a_bus_that_is_not_there_is_awaited(self, systemd, open_driver):
        systemd.go_away()
        driver = open_driver()
        assert driver.awaited_drivers == {"systemd"}
        assert "does not answer" in driver.outage_reasons()["systemd"]
        with pytest.raises(DriverError, match="message bus"):
            driver.guests()
        systemd.start(DB)
        systemd.listen()
        wait_for(lambda: not driver.awaited_drivers)
        assert [guest.name for guest in driver.guests()] == [DB]

    def test_guests_stay_known_while_systemd_is_away_and_changes_are_errors(self, systemd, open_driver):
        systemd.start(DB)
        driver = open_driver()
        (guest,) = driver.guests()
        systemd.go_away()
        wait_for(lambda: driver.outage_reason)
        assert driver.guests() == [guest]
        assert driver.awaited_drivers == frozenset()
        with pytest.raises(DriverError):
            driver.apply_cpu_settings(guest, PINNED)
        systemd.listen()
        wait_for(lambda: not driver.outage_reason)
        assert driver.apply_cpu_settings(guest, PINNED)

    def test_a_systemd_that_hangs_is_an_error_and_not_a_hang(self, systemd, open_driver):
        systemd.start(DB)
        driver = open_driver(seconds=2)
        (guest,) = driver.guests()
        systemd.hangs.set()
        with pytest.raises(DriverError, match=r"had no answer within 2 s"):
            driver.cpu_limits(guest, CpuLimits(300))
        wait_for(lambda: driver.outage_reason)
        # All further calls fail at once.
        started = time.monotonic()
        for _ in range(20):
            with pytest.raises(DriverError):
                driver.cpu_limits(guest, CpuLimits(300))
        assert time.monotonic() - started < 20
        systemd.hangs.clear()
        wait_for(lambda: not driver.outage_reason)
        assert driver.cpu_limits(guest, CpuLimits(300))

    def test_a_systemd_that_starts_again_is_followed(self, systemd, open_driver):
        driver = open_driver()
        systemd.execute_again()
        wait_for(lambda: systemd.calls.count("Subscribe") == 2)
        wait_for(lambda: not driver.outage_reason)
        systemd.start(DB)
        assert next_change(driver) == (ChangeKind.STARTED, DB)

    def test_a_second_agent_is_kept_off(self, systemd, open_driver, caplog):
        def locked():
            raise DriverError("another agent already manages the units of systemd")

        with caplog.at_level(logging.WARNING):
            driver = open_driver(lock=locked)
        assert "another agent" in driver.outage_reason
        assert systemd.calls == []


class TestBesideAnother:
    """Guests of two drivers."""

    def test_a_service_that_runs_a_container_of_another_driver_gets_its_values_back(
        self, systemd, open_driver, tmp_path
    ):
        systemd.start(DB)
        driver = open_driver(look_interval=0.1)
        driver.apply_cpu_settings(driver.guests()[0], PINNED)
        folder = str(systemd.folder_of(systemd.units[DB]))
        driver.leave_groups(lambda: {folder: build_guest("web", driver="podman")})
        wait_for(lambda: driver.guests() == [])
        guest_uuid = made_uuid(HOST, DB)
        assert "guest web of driver podman runs in it" in driver.excluded_guests()[guest_uuid]
        # The service runs, but has no claim of its own any more.
        assert driver.lost_guests() == {}
        assert driver.is_gone(DB, guest_uuid)
        wait_for(lambda: not records(tmp_path))
        assert systemd.units[DB].values == UNIT_DEFAULTS

    def test_a_service_with_a_container_from_before_gets_its_values_back_at_once(
        self, systemd, open_driver, tmp_path
    ):
        """Drivers list their guests at the start of the agent, before they know of each other."""
        systemd.start(DB)
        driver = open_driver(look_interval=3600)
        driver.apply_cpu_settings(driver.guests()[0], PINNED)
        folder = str(systemd.folder_of(systemd.units[DB]))
        driver.leave_groups(lambda: {f"{folder}/inner": build_guest("web", driver="podman")})
        wait_for(lambda: driver.guests() == [] and not records(tmp_path))
        assert systemd.units[DB].values == UNIT_DEFAULTS

    def test_a_container_that_starts_in_a_service_does_not_wait_for_the_next_look(
        self, systemd, open_driver, tmp_path
    ):
        """The service is a guest until its container exists, and its CPUs would be those of the container."""
        systemd.start(DB)
        driver = open_driver(look_interval=3600)
        (service,) = driver.guests()
        driver.apply_cpu_settings(service, PINNED)
        folder = str(systemd.folder_of(systemd.units[DB]))
        driver.leave_groups(lambda: {folder: build_guest("web", driver="podman")})
        driver.leave_service(replace(service, name="web", cgroup=f"{folder}/libpod-payload-1"))
        wait_for(lambda: driver.guests() == [] and not records(tmp_path))
        assert systemd.units[DB].values == UNIT_DEFAULTS

    def test_one_list_of_other_guests_serves_all_units_after_a_reload(self, systemd, open_driver):
        for number in range(5):
            systemd.start(f"db{number}.service")
        driver, lists = open_driver(look_interval=3600), []
        driver.leave_groups(lambda: lists.append(1) or {})
        lists.clear()
        systemd.calls.clear()
        systemd.reload()
        # Each unit is read by two calls.
        wait_for(lambda: systemd.calls.count("GetAll") == 10)
        assert lists == [1]
        systemd.start("web.service")
        wait_for(lambda: len(driver.guests()) == 6)
        assert len(lists) > 1

    def test_drivers_that_become_known_during_a_round_count_in_it(self, systemd, open_driver, monkeypatch):
        for name in ("db1.service", "db2.service"):
            systemd.start(name)
        driver, read_unit = open_driver(look_interval=3600), SystemdManager.read_unit
        folder = str(systemd.folder_of(systemd.units["db2.service"]))

        def read_and_meet(manager, name):
            if name == "db2.service":
                driver.leave_groups(lambda: {folder: build_guest("web", driver="podman")})
                monkeypatch.setattr(SystemdManager, "read_unit", read_unit)
            return read_unit(manager, name)

        monkeypatch.setattr(SystemdManager, "read_unit", read_and_meet)
        systemd.reload()
        wait_for(lambda: [guest.name for guest in driver.guests()] == ["db1.service"])

    def test_the_first_driver_keeps_a_uuid(self, systemd, open_driver):
        systemd.start(DB, f"[X-ComputeAgent]\nUuid={UUID}\n")
        processes = FakeDriver(ALL, "process")
        processes.create_guest(UUID, "db", open_driver().guests()[0].settings, ())
        for drivers, kept in (
            ((processes, open_driver()), "process"),
            ((open_driver(), processes), "systemd"),
        ):
            both = CombinedDriver(drivers)
            assert [guest.driver for guest in both.guests()] == [kept]
            assert "comes first in [guests] drivers" in both.lost_guests()[UUID]
