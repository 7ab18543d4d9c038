"""Containers as guests: settings, drift, what is given back, and an engine that is away."""

import errno
import json
import logging
import os
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from compute_agent.drivers import peer
from compute_agent.drivers.base import (
    UNLIMITED,
    ChangeKind,
    CpuLimits,
    CpuSettings,
    MemoryLimits,
    QuotaError,
)
from compute_agent.drivers.cgroup import GuestCgroup
from compute_agent.drivers.combined import CombinedDriver
from compute_agent.drivers.containers import driver as driver_module
from compute_agent.drivers.containers import engine as engine_module
from compute_agent.drivers.containers import table
from compute_agent.drivers.foreign import editor
from compute_agent.drivers.foreign.declared import made_uuid
from compute_agent.drivers.foreign.kernel_values import FILES, IDLE_FILE
from compute_agent.drivers.foreign.values import FILE_NAMES, LATENCY
from compute_agent.drivers.memory_limits import oom_score_adj
from compute_agent.model.guest_settings import SettingSource
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import BlockIo, DeviceRates
from tests.compute_agent.drivers.containers.conftest import HOST
from tests.compute_agent.drivers.containers.fake_engine import GUEST, IMAGE
from tests.compute_agent.fakes import FakeDriver
from tests.waits import wait_for

ALL = frozenset(os.sched_getaffinity(0))
ONE = frozenset({min(ALL)})
PINNED, FREE = CpuSettings((ONE,), ONE), CpuSettings((ALL,), ALL)
NO_DISK = frozenset({"0:9999"})
"""The number of a disk that the host does not have."""
UUID = "6b0c0f5e-54e5-4f2c-8f0e-1a9d5f4f9c11"
DB = "db"
DB_UUID = made_uuid(HOST, "podman", DB)

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


class TestFinding:
    """Which containers are guests, apart from what the tests of all engines show."""

    def test_the_settings_of_a_guest_are_those_of_its_labels(self, engine, open_driver):
        labels = {
            **GUEST,
            "compute-agent.vcpus": "2",
            "compute-agent.class": "BE",
            "compute-agent.priority": "x",
        }
        container = engine.start(DB, labels)
        (guest,) = open_driver(engine).guests()
        assert (guest.uuid, guest.driver, guest.name) == (DB_UUID, "podman", DB)
        assert guest.pid == container.processes[0].pid
        assert guest.cgroup == str(engine.folder_of(container))
        assert (guest.settings.vcpus, guest.declared) == (2, {"qos_class": "BE"})
        assert guest.declared_by is SettingSource.LABEL
        assert "compute-agent.priority=x has no effect" in guest.declared_problems[0]

    def test_changes_without_an_event_are_found_by_the_next_list(self, engine, open_driver):
        driver = open_driver(engine, look_interval=0.1)
        engine.emit = lambda container, action: None
        engine.start(DB)
        assert next_change(driver) == (ChangeKind.STARTED, DB)
        engine.stop(DB)
        assert next_change(driver) == (ChangeKind.STOPPED, DB)

    def test_a_guest_that_runs_is_not_looked_at_again(self, engine, open_driver):
        engine.start(DB)
        open_driver(engine, look_interval=0.05)
        engine.calls.clear()
        wait_for(lambda: len(engine.calls) >= 10)
        assert set(engine.calls) == {"GET /containers/json"}

    def test_a_flood_of_events_of_one_container_is_read_seldom(self, engine, open_driver):
        noisy = engine.start(DB)
        driver = open_driver(engine)
        wait_for(engine.stream_count)
        path = f"GET /libpod/containers/{noisy.key}/json"
        before, began = engine.calls.count(path), time.monotonic()
        for number in range(500):
            engine.emit(noisy, "rename")
            if number == 250:
                engine.start("other")
            time.sleep(0.002)
        wait_for(lambda: {guest.name for guest in driver.guests()} == {DB, "other"})
        reads = engine.calls.count(path) - before
        assert reads <= peer.MAX_LOOKS + (time.monotonic() - began) + 1
        # The last change is not lost.
        noisy.name = "later"
        engine.emit(noisy, "rename")
        wait_for(lambda: {guest.name for guest in driver.guests()} == {"later", "other"})

    def test_another_name_changes_the_guest(self, engine, open_driver):
        container = engine.start(DB, {**GUEST, "compute-agent.uuid": UUID})
        driver = open_driver(engine)
        container.name = "db2"
        engine.emit(container, "rename")
        assert next_change(driver) == (ChangeKind.CHANGED, "db2")

    def test_labels_of_the_image_decide_nothing(self, engine, open_driver):
        engine.images[IMAGE] = {"compute-agent.class": "LSR", "compute-agent.uuid": UUID}
        engine.start(DB, {**engine.images[IMAGE], **GUEST, "compute-agent.vcpus": "2"})
        (guest,) = open_driver(engine).guests()
        assert (guest.uuid, guest.declared, guest.settings.vcpus) == (DB_UUID, {}, 2)
        assert any("compute-agent.uuid has no effect" in problem for problem in guest.declared_problems)

    def test_an_image_makes_no_guest(self, engine, open_driver):
        engine.images[IMAGE] = GUEST
        engine.start(DB)
        driver = open_driver(engine)
        assert driver.guests() == []
        assert "is a label of its image" in driver.lost_guests()[DB_UUID]

    def test_the_label_of_an_image_cannot_undo_a_choice_by_name(self, engine, open_driver):
        engine.images[IMAGE] = {"compute-agent.guest": "false", "compute-agent.class": "LSR"}
        engine.start(DB, engine.images[IMAGE])
        (guest,) = open_driver(engine, guest_names=[DB]).guests()
        assert guest.declared == {}

    def test_a_container_that_is_no_guest_by_name_any_more_gets_its_values_back(
        self, engine, open_driver, tmp_path
    ):
        engine.start(DB, {})
        driver = open_driver(engine, guest_names=["d?"])
        driver.apply_cpu_settings(driver.guests()[0], PINNED)
        driver.close()
        assert open_driver(engine).guests() == []
        wait_for(lambda: records(tmp_path) == [])
        assert engine.group_file(DB, "cpuset.cpus") == engine_cpus(engine)

    def test_a_container_without_an_image_that_is_gone_is_lost(self, engine, open_driver):
        engine.images.clear()
        engine.start(DB)
        engine.start("rootfs", image="")
        driver = open_driver(engine)
        assert [guest.name for guest in driver.guests()] == ["rootfs"]
        assert list(driver.lost_guests()) == [DB_UUID]

    @pytest.mark.parametrize(
        ("label", "text", "reason"),
        [
            ("guest", "perhaps", "compute-agent.guest=perhaps is neither true nor false"),
            ("uuid", "db", "compute-agent.uuid=db is not a uuid"),
            ("vcpus", "-1", "compute-agent.vcpus=-1 is not a whole number"),
            ("x", "y" * 2000, "label compute-agent.x is longer than 1000 characters"),
        ],
    )
    def test_a_label_that_cannot_be_used_makes_a_lost_guest(self, engine, open_driver, label, text, reason):
        engine.start(DB, {**GUEST, f"compute-agent.{label}": text})
        driver = open_driver(engine)
        assert driver.guests() == []
        assert driver.lost_guests()[DB_UUID].startswith(f"container {DB} cannot be a guest: {reason}")

    def test_the_second_container_with_a_uuid_is_lost(self, engine, open_driver):
        for name in ("a", "b"):
            engine.start(name, {**GUEST, "compute-agent.uuid": UUID})
        driver = open_driver(engine)
        (kept,) = driver.guests()
        assert f"container {kept.name} has the same uuid" in driver.lost_guests()[UUID]

    def test_a_group_that_is_not_the_containers_makes_a_lost_guest(self, engine, open_driver):
        engine.start(DB).group = "/system.slice/db.service"
        engine.start("up").group = "/../up"
        driver = open_driver(engine)
        assert driver.guests() == []
        assert (
            "no control group of its own (its process is in /system.slice/db.service)"
            in (driver.lost_guests()[DB_UUID])
        )

    def test_the_group_is_the_one_with_the_id_of_the_container(self, engine, open_driver):
        container = engine.start(DB)
        upper = engine.folder_of(container)
        container.group += "/container/init.scope"
        (guest,) = open_driver(engine).guests()
        assert guest.cgroup == str(upper)

    def test_the_container_of_the_agent_is_no_guest(self, engine, open_driver):
        container = engine.start(DB)
        engine.groups.members[os.getpid()] = engine.folder_of(container)
        assert "the agent itself is in it" in open_driver(engine).excluded_guests()[DB_UUID]

    def test_a_host_without_unified_groups_has_no_such_guests(self, engine, open_driver):
        (engine.folders.groups / "cgroup.controllers").unlink()
        engine.start(DB)
        assert "no control groups of version 2" in open_driver(engine).lost_guests()[DB_UUID]

    def test_a_node_of_kubernetes_is_refused_with_a_reason(self, engine, open_driver):
        engine.start(DB)
        engine.start("pod", {"io.kubernetes.pod.uid": UUID})
        driver = open_driver(engine)
        assert driver.awaited_drivers == {"podman"}
        assert "this is a node of Kubernetes" in driver.outage_reasons()["podman"]
        engine.stop("pod")
        wait_for(lambda: not driver.awaited_drivers)

    @pytest.mark.parametrize("group", ["kubepods.slice", "kubepods"])
    def test_a_group_of_the_kubelet_refuses_the_engine(self, engine, open_driver, group):
        folder = engine.folders.groups / group
        folder.mkdir()
        engine.start(DB)
        driver = open_driver(engine)
        assert driver.awaited_drivers == {"podman"}
        reason = driver.outage_reasons()["podman"]
        assert f"this is a node of Kubernetes (the control group {folder} exists)" in reason
        assert "remove podman from [guests] drivers" in reason
        folder.rmdir()
        wait_for(lambda: not driver.awaited_drivers)

    def test_a_container_with_the_name_of_a_group_of_kubernetes_makes_no_node(self, engine, open_driver):
        engine.start("kubepods")
        (engine.folders.groups / "machine.slice/kubepods.slice").mkdir(parents=True)
        (engine.folders.groups / "kubepods.scope").mkdir()
        assert [guest.name for guest in open_driver(engine).guests()] == ["kubepods"]

    def test_a_refusal_for_the_image_of_a_pod_of_kubernetes_is_no_outage(self, engine, open_driver):
        engine.start(DB)
        engine.start("k8s", {"io.kubernetes.pod.uid": "1"}, image="sha256:" + "2" * 64)
        engine.answers["/images/sha256:" + "2" * 64 + "/json"] = 500, {"message": "layer not known"}
        driver = open_driver(engine)
        assert driver.outage_reason == ""
        assert [guest.name for guest in driver.guests()] == [DB]

    def test_an_image_makes_no_node_of_kubernetes(self, engine, open_driver):
        engine.images[IMAGE] = {"io.kubernetes.pod.uid": UUID}
        engine.start("pod", {**GUEST, "io.kubernetes.pod.uid": UUID})
        assert [guest.name for guest in open_driver(engine).guests()] == ["pod"]


class TestSetting:
    """Values go to the group, with the container's own values on disk first."""

    @pytest.fixture
    def rig(self, engine, open_driver):
        engine.start(DB, processes=2)
        driver = open_driver(engine)
        return driver, driver.guests()[0]

    def test_cpus_of_all_processes_are_set_and_given_back(self, engine, rig, tmp_path):
        driver, guest = rig
        assert driver.apply_cpu_settings(guest, PINNED) == 2
        assert engine.group_file(DB, "cpuset.cpus") == str(min(ALL))
        assert records(tmp_path)[0]["values"] == {"AllowedCPUs": ""}
        assert driver.misplaced_threads(guest, PINNED) == {}
        assert driver.apply_cpu_settings(guest, FREE) == 1
        # The kernel refuses an empty set for a group with processes.
        assert engine.group_file(DB, "cpuset.cpus") == engine_cpus(engine)
        assert records(tmp_path) == []
        assert driver.misplaced_threads(guest, FREE) == {}

    def test_all_values_are_given_back_to_a_container_that_runs(self, engine, rig, tmp_path):
        driver, guest = rig
        folder = engine.folder_of(engine.named(DB))
        (folder / "cpu.max").write_text("150000 50000\n")
        apply_everything(driver, guest)
        assert engine.group_file(DB, "cpu.max") == "25000 50000"
        assert engine.group_file(DB, "cpu.weight") == "300"
        assert engine.group_file(DB, "memory.max") == str(1 << 30)
        assert len(records(tmp_path)[0]["values"]) == 5
        driver.apply_cpu_limits(guest, CpuLimits(100))
        driver.limit_memory(guest, MemoryLimits(UNLIMITED, UNLIMITED, 0))
        driver.apply_blockio(guest, None)
        assert engine.group_file(DB, "cpu.max") == "150000 50000"
        assert engine.group_file(DB, "cpu.weight") == "100"
        assert engine.group_file(DB, "memory.max") == "max"
        assert engine.group_file(DB, "io.weight") == "default 100"
        assert records(tmp_path) == []

    def test_rates_of_a_device_are_set_and_those_of_the_container_given_back(self, engine, rig, tmp_path):
        driver, guest = rig
        disk = min(os.listdir("/sys/dev/block"), default="")
        if not disk:
            pytest.skip("this machine has no block device")
        file, gone = (
            engine.folder_of(engine.named(DB)) / "io.max",
            BlockIo(rates=DeviceRates(3), devices=NO_DISK),
        )
        own = f"{disk} rbps=max wbps=500 riops=max wiops=max"
        file.write_text(f"{own}\n")
        wanted = BlockIo(rates=DeviceRates(300, 900), devices=frozenset({disk}))
        assert driver.blockio_missing(guest, wanted) == []
        assert driver.blockio_drift(guest, gone) == ""
        assert driver.blockio_drift(guest, None) == ""
        assert driver.blockio_drift(guest, wanted) == "IOReadBandwidthMax is "
        assert driver.apply_blockio(guest, wanted)
        assert engine.group_file(DB, "io.max") == f"{disk} rbps=300 wbps=500 riops=max wiops=max"
        assert not driver.apply_blockio(guest, wanted)
        assert records(tmp_path)[0]["values"] == {"IOReadBandwidthMax": ""}
        assert driver.apply_blockio(guest, None)
        assert engine.group_file(DB, "io.max") == own
        assert records(tmp_path) == []

    def test_values_of_the_container_stay(self, engine, rig):
        driver, guest = rig
        folder = engine.folder_of(engine.named(DB))
        for file, text in {"cpu.weight": "50", "memory.max": str(1 << 29)}.items():
            (folder / file).write_text(f"{text}\n")
        assert driver.cpu_limits(guest, CpuLimits(300)) is None
        assert driver.memory_limits(guest, MemoryLimits(1 << 30)) is None

    @pytest.mark.parametrize(
        ("limit", "memory"), [("max", 0), (str(3 << 20), 3), (str(1 << 60), (1 << 31) - 1)]
    )
    def test_the_memory_to_claim_is_an_amount_that_placement_can_have(self, engine, rig, limit, memory):
        driver, guest = rig
        (engine.folder_of(engine.named(DB)) / "memory.max").write_text(f"{limit}\n")
        assert driver.wanted_memory(guest) == memory

    def test_a_round_of_comparisons_reads_the_files_once(self, engine, rig, monkeypatch):
        driver, guest = rig
        readings, read_file = [], GuestCgroup.read_file
        monkeypatch.setattr(
            GuestCgroup, "read_file", lambda group, file: readings.append(file) or read_file(group, file)
        )

        def compare_everything():
            driver.misplaced_threads(guest, PINNED)
            driver.cpu_limits(guest, CpuLimits())
            driver.memory_nodes(guest, frozenset())
            driver.memory_limits(guest, MemoryLimits())
            driver.blockio_drift(guest, None)

        compare_everything()
        monkeypatch.setattr(editor, "READING_SECONDS", -1.0)
        readings.clear()
        compare_everything()
        # Each setting has files of its own.
        assert sorted(readings) == sorted({*FILES.values(), IDLE_FILE} - FILE_NAMES - {FILES[LATENCY]})
        monkeypatch.setattr(editor, "READING_SECONDS", 60.0)
        compare_everything()
        readings.clear()
        compare_everything()
        assert readings == []

    def test_comparisons_of_a_round_share_what_they_read_of_the_host(self, rig, monkeypatch):
        driver, guest = rig
        readings = []
        monkeypatch.setattr(editor, "read_online", lambda root: readings.append(root) or ALL)
        for seconds, wanted in ((60.0, 1), (-1.0, 6)):
            monkeypatch.setattr(editor, "SETS_SECONDS", seconds)
            readings.clear()
            for _ in range(2):
                driver.misplaced_threads(guest, PINNED)
                driver.memory_nodes(guest, frozenset({0}))
            assert len(readings) == wanted

    def test_drift_of_a_file_is_seen_and_corrected(self, engine, rig, monkeypatch):
        driver, guest = rig
        # Each comparison is one of a later round.
        monkeypatch.setattr(editor, "READING_SECONDS", -1.0)
        driver.apply_cpu_settings(guest, PINNED)
        driver.apply_cpu_limits(guest, CpuLimits(300, 0.5))
        (engine.folder_of(engine.named(DB)) / "cpu.max").write_text("max 100000\n")
        assert driver.cpu_limits(guest, CpuLimits(300, 0.5)) == CpuLimits(300)
        assert driver.apply_cpu_limits(guest, CpuLimits(300, 0.5))
        assert driver.cpu_limits(guest, CpuLimits(300, 0.5)) is None
        (engine.folder_of(engine.named(DB)) / "cpuset.cpus").write_text("0-1\n")
        assert driver.misplaced_threads(guest, PINNED) == {guest.pid: ONE}
        assert driver.apply_cpu_settings(guest, PINNED)

    def test_an_idle_guest_has_no_weight_and_gets_one_afterwards(self, engine, rig):
        driver, guest = rig
        driver.apply_cpu_limits(guest, CpuLimits(idle=True))
        assert engine.group_file(DB, "cpu.idle") == "1"
        assert driver.cpu_limits(guest, CpuLimits(idle=True)) is None
        assert driver.apply_cpu_limits(guest, CpuLimits(200))
        assert (engine.group_file(DB, "cpu.idle"), engine.group_file(DB, "cpu.weight")) == ("0", "200")

    def test_a_value_that_the_kernel_refuses_is_an_error(self, engine, rig, monkeypatch):
        driver, guest = rig
        write = GuestCgroup.write_file

        def refuse(group, name, line):
            if name == "memory.max":
                raise OSError(22, "Invalid argument")
            write(group, name, line)

        monkeypatch.setattr(GuestCgroup, "write_file", refuse)
        with pytest.raises(DriverError, match=rf"{guest.uuid}.*cannot have '1073741824' in memory\.max"):
            driver.limit_memory(guest, MemoryLimits(1 << 30))

    def test_a_value_that_the_kernel_does_not_take_is_an_error(self, engine, rig, monkeypatch):
        driver, guest = rig
        monkeypatch.setattr(GuestCgroup, "write_file", lambda *arguments: None)
        with pytest.raises(DriverError, match="kernel did not accept MemoryMax"):
            driver.limit_memory(guest, MemoryLimits(1 << 30))

    def test_a_value_is_written_after_its_record(self, engine, rig, tmp_path, monkeypatch):
        driver, guest = rig
        (tmp_path / "records").rmdir()
        with pytest.raises(DriverError, match=f"container {DB} keeps its limits, because its record"):
            driver.apply_cpu_limits(guest, CpuLimits(300))
        assert engine.group_file(DB, "cpu.weight") == "100"

    def test_an_agent_that_is_killed_between_record_and_write_gives_nothing_wrong_back(
        self, engine, rig, open_driver, tmp_path, monkeypatch
    ):
        driver, guest = rig

        def die(group, name, line):
            raise SystemExit

        with monkeypatch.context() as patch:
            patch.setattr(GuestCgroup, "write_file", die)
            with pytest.raises(SystemExit):
                driver.apply_cpu_limits(guest, CpuLimits(300))
        driver.close()
        second = open_driver(engine)
        assert records(tmp_path)
        assert second.apply_cpu_limits(second.guests()[0], CpuLimits(300))
        assert second.apply_cpu_limits(second.guests()[0], CpuLimits(100))
        assert engine.group_file(DB, "cpu.weight") == "100"
        assert records(tmp_path) == []

    def test_another_agent_knows_the_values_of_the_container(self, engine, rig, open_driver):
        driver, guest = rig
        (engine.folder_of(engine.named(DB)) / "cpu.max").write_text("300000 100000\n")
        driver.apply_cpu_limits(guest, CpuLimits(quota=1))
        driver.close()
        second = open_driver(engine)
        assert second.apply_cpu_limits(second.guests()[0], CpuLimits())
        assert engine.group_file(DB, "cpu.max") == "300000 100000"

    def test_a_container_with_another_name_keeps_the_record_of_its_values(
        self, engine, open_driver, tmp_path
    ):
        container = engine.start(DB, {**GUEST, "compute-agent.uuid": UUID})
        driver = open_driver(engine)
        driver.apply_cpu_settings(driver.guests()[0], PINNED)
        container.name = "db2"
        engine.emit(container, "rename")
        assert next_change(driver) == (ChangeKind.CHANGED, "db2")
        (guest,) = driver.guests()
        assert driver.misplaced_threads(guest, PINNED) == {}
        driver.apply_cpu_settings(guest, FREE)
        assert engine.group_file("db2", "cpuset.cpus") == engine_cpus(engine)
        assert records(tmp_path) == []

    def test_a_container_with_another_name_keeps_its_uuid_until_its_run_ends(
        self, engine, open_driver, tmp_path
    ):
        container = engine.start(DB)
        driver = open_driver(engine)
        driver.apply_cpu_settings(driver.guests()[0], PINNED)
        container.name = "db2"
        engine.emit(container, "rename")
        assert next_change(driver) == (ChangeKind.CHANGED, "db2")
        driver.close()
        # Another agent finds the container by its new name.
        second = open_driver(engine)
        (guest,) = second.guests()
        assert (guest.uuid, guest.name) == (DB_UUID, "db2")
        second.apply_cpu_settings(guest, FREE)
        assert engine.group_file("db2", "cpuset.cpus") == engine_cpus(engine)
        assert records(tmp_path) == []
        engine.restart("db2")
        wait_for(lambda: [one for one in second.guests() if one.uuid == made_uuid(HOST, "podman", "db2")])

    def test_the_end_of_a_run_leaves_no_record(self, engine, rig, tmp_path):
        driver, guest = rig
        apply_everything(driver, guest)
        engine.stop(DB)
        wait_for(lambda: not records(tmp_path))

    def test_the_next_run_has_values_of_its_own(self, engine, rig, tmp_path):
        driver, guest = rig
        apply_everything(driver, guest)
        engine.restart(DB)
        wait_for(lambda: [one for one in driver.guests() if one.pid != guest.pid])
        wait_for(lambda: not records(tmp_path))
        with pytest.raises(GuestGoneError):
            driver.cpu_limits(guest, CpuLimits())
        assert engine.group_file(DB, "cpu.weight") == "100"

    def test_a_container_that_ends_while_the_agent_is_away_leaves_no_record(
        self, engine, rig, open_driver, tmp_path
    ):
        driver, guest = rig
        apply_everything(driver, guest)
        driver.close()
        engine.stop(DB)
        open_driver(engine)
        assert records(tmp_path) == []

    def test_a_container_that_is_no_guest_any_more_gets_its_values_back(
        self, engine, rig, open_driver, tmp_path
    ):
        driver, guest = rig
        apply_everything(driver, guest)
        driver.close()
        # Only an image with the same labels can do this to a container that runs.
        engine.images[IMAGE] = GUEST
        open_driver(engine)
        assert engine.group_file(DB, "cpu.weight") == "100"
        assert engine.group_file(DB, "memory.max") == "max"
        assert records(tmp_path) == []

    @pytest.mark.parametrize("state", ["paused", "stopping"])
    def test_a_container_that_is_paused_or_stopping_keeps_its_values(
        self, engine, rig, open_driver, tmp_path, state
    ):
        driver, guest = rig
        apply_everything(driver, guest)
        engine.named(DB).status = state
        engine.emit(engine.named(DB), "rename")
        engine.start("other")
        wait_for(lambda: len(driver.guests()) == 2)
        driver.close()
        # Another agent starts meanwhile.
        assert {one.name for one in open_driver(engine).guests()} == {DB, "other"}
        assert engine.group_file(DB, "cpu.weight") == "300"
        assert records(tmp_path)

    def test_rates_are_given_back_also_after_one_of_the_devices_has_gone(
        self, engine, rig, open_driver, monkeypatch, tmp_path
    ):
        driver, guest = rig
        file, there = engine.folder_of(engine.named(DB)) / "io.max", {"8:16", "8:32"}
        own = "rbps=1000 wbps=max riops=max wiops=max"
        file.write_text("".join(f"{device} {own}\n" for device in sorted(there)))
        monkeypatch.setattr(editor.HostFolders, "block_devices", there)
        driver.apply_blockio(guest, BlockIo(rates=DeviceRates(300), devices=frozenset(there)))
        assert engine.group_file(DB, "io.max").count("rbps=300") == 2
        driver.close()
        there.remove("8:16")
        file.write_text(f"8:32 {own}\n".replace("1000", "300"))
        write = GuestCgroup.write_file

        def refuse(group, name, line):
            if line.startswith("8:16"):
                raise OSError(errno.ENODEV, "No such device")
            write(group, name, line)

        monkeypatch.setattr(GuestCgroup, "write_file", refuse)
        engine.images[IMAGE] = GUEST
        open_driver(engine)
        assert engine.group_file(DB, "io.max") == f"8:32 {own}"
        assert records(tmp_path) == []

    def test_a_refused_value_of_a_group_that_goes_on_is_given_back_later(
        self, engine, rig, open_driver, monkeypatch, tmp_path, caplog
    ):
        driver, guest = rig
        driver.limit_memory(guest, MemoryLimits(1 << 30))
        driver.close()
        engine.images[IMAGE] = GUEST

        def refuse(group, name, line):
            raise OSError(errno.ENODEV, "No such device")

        with monkeypatch.context() as patch:
            patch.setattr(GuestCgroup, "write_file", refuse)
            open_driver(engine).close()
        assert "cannot be restored" in caplog.text
        assert records(tmp_path)
        open_driver(engine)
        assert engine.group_file(DB, "memory.max") == "max"
        assert records(tmp_path) == []

    def test_a_damaged_record_is_put_aside(self, engine, rig, open_driver, tmp_path, caplog):
        driver, guest = rig
        driver.apply_cpu_limits(guest, CpuLimits(300))
        driver.close()
        (path,) = (tmp_path / "records").glob("*.json")
        path.write_text("{}")
        open_driver(engine)
        assert "of a container cannot be used" in caplog.text

    def test_a_dry_run_changes_nothing(self, engine, open_driver, tmp_path):
        engine.start(DB)
        driver = open_driver(engine, look_only=True)
        (guest,) = driver.guests()
        assert driver.misplaced_threads(guest, PINNED)
        with pytest.raises(DriverError, match="dry run"):
            driver.apply_cpu_settings(guest, PINNED)
        assert not (tmp_path / "records").exists()

    def test_settings_without_a_controller_are_named(self, engine, rig):
        driver, guest = rig
        folder = engine.folder_of(engine.named(DB))
        for file in (
            *("cpuset.cpus", "cpu.max", "cpu.weight", "cpu.idle", "cpu.max.burst", "io.weight", "io.max"),
            *("hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"),
        ):
            (folder / file).unlink()
        with pytest.raises(DriverError, match="does not have the controller cpuset"):
            driver.apply_cpu_settings(guest, PINNED)
        with pytest.raises(QuotaError, match="does not have the controller cpu"):
            driver.cpu_limits(guest, CpuLimits(quota=1))
        assert driver.cpu_limits(guest, CpuLimits(300)) is None
        assert len(driver.missing_limits(guest, CpuLimits(idle=True, quota=1, burst=0.5))) == 2
        wanted = BlockIo(50, DeviceRates(1), 10, frozenset({"8:0"}), True)
        assert len(driver.blockio_missing(guest, wanted)) == 4
        memory = MemoryLimits(oom_group=True, huge_pages=((64, 0), (2048, 1)))
        assert len(driver.memory_missing(guest, memory)) == 2
        assert driver.memory_missing(guest, MemoryLimits(1, huge_pages=((2048, 0),))) == []
        with pytest.raises(DriverError, match="does not have the controller io"):
            driver.apply_blockio(guest, wanted)
        assert not driver.apply_blockio(guest, None)

    def test_a_group_with_nonsense_is_an_error(self, engine, rig):
        driver, guest = rig
        (engine.folder_of(engine.named(DB)) / "cpu.max").write_text("fast\n")
        with pytest.raises(DriverError, match="control group of guest"):
            driver.cpu_limits(guest, CpuLimits(300))

    def test_a_container_that_does_not_stop_is_killed_through_the_engine(self, engine, rig, monkeypatch):
        driver, guest = rig
        monkeypatch.setattr(driver_module, "KILL_SECONDS", 0.2)
        engine.stops = False
        driver.stop(guest, 0.1)
        driver.stop(guest, 0.1)
        key = engine.named(DB).key
        posts = [call for call in engine.calls if call.startswith("POST")]
        assert posts == [f"POST /containers/{key}/stop", f"POST /containers/{key}/kill"]


def apply_everything(driver, guest):
    driver.apply_cpu_limits(guest, CpuLimits(300, 0.5))
    driver.limit_memory(guest, MemoryLimits(1 << 30, UNLIMITED, 1 << 20))
    driver.apply_blockio(guest, BlockIo(50))


def engine_cpus(engine):
    cpus = sorted(engine.folders.online_cpus)
    return f"{cpus[0]}-{cpus[-1]}"


def write_score(pid, score):
    Path(f"/proc/{pid}/oom_score_adj").write_text(str(score))


class TestPods:
    """Pods as one guest, apart from what the tests of all engines show."""

    @pytest.fixture
    def rig(self, engine, open_driver):
        engine.start_pod("web", {**GUEST, "compute-agent.vcpus": "2"})
        driver = open_driver(engine, whole_pods=True)
        return driver, driver.guests()[0]

    def test_a_pod_is_a_guest_with_its_own_name_labels_and_group(self, engine, rig):
        driver, guest = rig
        assert (guest.name, guest.uuid) == ("web", made_uuid(HOST, "podman", "web"))
        assert guest.settings.vcpus == 2
        assert guest.cgroup.endswith(f"/machine.slice/machine-libpod_pod_{engine.pod_key('web')}.slice")
        assert driver.subject_key(guest) == engine.named(f"{engine.pod_key('web')[:12]}-infra").key

    def test_values_are_set_in_the_group_of_the_pod_and_given_back(self, engine, rig, tmp_path):
        driver, guest = rig
        apply_everything(driver, guest)
        driver.apply_cpu_settings(guest, PINNED)
        assert engine.pod_file("web", "memory.max") == str(1 << 30)
        assert engine.pod_file("web", "cpuset.cpus") == str(min(ALL))
        assert engine.group_file("web-1", "memory.max") == "max"
        assert {os.sched_getaffinity(pid) == ONE for pid in engine.pids("web-1")} == {True}
        engine.stop_pod("web")
        wait_for(lambda: records(tmp_path) == [])
        assert engine.pod_file("web", "memory.max") == "max"
        assert engine.pod_file("web", "cpuset.cpus") == ""

    def test_a_stopped_pod_without_a_controller_gets_its_other_values_back(self, engine, rig, tmp_path):
        driver, guest = rig
        apply_everything(driver, guest)
        driver.apply_cpu_settings(guest, PINNED)
        Path(guest.cgroup, "cpuset.cpus").unlink()
        engine.stop_pod("web")
        wait_for(lambda: records(tmp_path) == [])
        assert engine.pod_file("web", "memory.max") == "max"
        assert not Path(guest.cgroup, "cpuset.cpus").exists()

    def test_a_group_that_ends_while_values_are_given_back_is_no_error(
        self, engine, rig, tmp_path, monkeypatch
    ):
        driver, guest = rig
        driver.limit_memory(guest, MemoryLimits(1 << 30))

        def write(group, *arguments):
            shutil.rmtree(group.folder)
            raise OSError(errno.ENODEV, "No such device")

        monkeypatch.setattr(GuestCgroup, "write_file", write)
        engine.stop_pod("web")
        wait_for(lambda: records(tmp_path) == [])

    def test_a_container_outside_of_the_group_of_its_pod_is_a_guest_by_its_own_labels(
        self, engine, open_driver, caplog
    ):
        key = engine.start_pod("web")
        driver = open_driver(engine, whole_pods=True, look_interval=0.1)
        # A quadlet with `Pod=web.pod` runs its container in the group of its service.
        engine.group_format = "/system.slice/app.service/libpod-payload-{}"
        engine.start("app", pod=key)
        engine.start("side", {}, pod=key)

        def guests():
            return {guest.name: guest for guest in driver.guests()}

        wait_for(lambda: "app, side" in "".join(guests()["web"].declared_problems))
        assert "set CgroupsMode=no-conmon" in guests()["web"].declared_problems[0]
        assert "Container side is not in the control group of its pod web" in caplog.text
        wait_for(lambda: guests().keys() == {"web", "app"})
        assert driver.process_ids(guests()["app"]) == engine.pids("app")
        app = guests()["app"]
        engine.stop("app")
        wait_for(lambda: app.name not in guests())
        assert not driver.is_gone(engine.named("app").key, app.uuid)
        engine.stop("side")
        wait_for(lambda: guests()["web"].declared_problems == ())

    def test_a_container_that_the_engine_still_counts_as_running_may_return(self, engine, open_driver):
        key = engine.start_pod("web")
        driver = open_driver(engine, whole_pods=True, look_interval=0.1)
        engine.group_format = "/system.slice/app.service/libpod-payload-{}"
        engine.start("app", pod=key)
        wait_for(lambda: {guest.name for guest in driver.guests()} == {"web", "app"})
        (app,) = (guest for guest in driver.guests() if guest.name == "app")
        for process in engine.named("app").processes:
            process.kill()
            process.wait()
        engine.emit(engine.named("app"), "die")
        wait_for(lambda: "app" not in {guest.name for guest in driver.guests()})
        assert not driver.is_gone(engine.named("app").key, app.uuid)

    def test_a_container_in_the_group_of_a_foreign_pod_is_lost(self, engine, rig):
        driver, guest = rig
        engine.group_format = f"{engine.pods[engine.pod_key('web')][2]}/libpod-{{}}.scope"
        engine.start("foreign")
        wait_for(driver.lost_guests)
        (reason,) = driver.lost_guests().values()
        assert "its control group and that of guest web contain the same processes" in reason
        assert list(driver.guests()) == [guest]

    def test_a_score_that_a_container_of_a_pod_has_of_its_own_stays(self, engine, rig, open_driver, tmp_path):
        driver, guest = rig

        def scores():
            return [oom_score_adj(pid) for pid in (*engine.pids("web-1"), *engine.pids("web-2"))]

        driver.limit_memory(guest, MemoryLimits(oom_score_adj=300))
        assert records(tmp_path)[0]["score"] == 300
        engine.join_pod("web", "web-2", {})
        write_score(engine.pids("web-2")[0], 700)
        assert driver.memory_limits(guest, MemoryLimits(oom_score_adj=300)) is None
        driver.limit_memory(guest, MemoryLimits(oom_score_adj=400))
        assert scores() == [400, 700]
        driver.close()
        # A record of an older agent has no score.
        (path,) = (tmp_path / "records").glob("*.json")
        path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "score"}))
        second = open_driver(engine, whole_pods=True)
        second.limit_memory(guest, MemoryLimits(oom_score_adj=500))
        assert scores() == [500, 700]
        assert records(tmp_path)[0]["score"] == 500

    def test_a_restart_of_a_pod_keeps_the_record_of_its_own_values(self, engine, rig, open_driver, tmp_path):
        driver, guest = rig
        driver.limit_memory(guest, MemoryLimits(1 << 30))
        driver.close()
        # No agent sees the end of the first run.
        engine.stop_pod("web")
        engine.start_pod("web")
        second = open_driver(engine, whole_pods=True)
        (guest,) = second.guests()
        assert second.memory_limits(guest, MemoryLimits(1 << 30)) is None
        second.limit_memory(guest, MemoryLimits(UNLIMITED))
        assert engine.pod_file("web", "memory.max") == "max"
        assert records(tmp_path) == []

    @pytest.mark.parametrize("state", ["paused", "stopping"])
    def test_a_pod_that_is_paused_or_stopping_keeps_its_values(
        self, engine, rig, open_driver, tmp_path, state
    ):
        driver, guest = rig
        driver.limit_memory(guest, MemoryLimits(1 << 30))
        driver.close()
        for container in engine.containers.values():
            container.status = state
        # Another agent starts meanwhile.
        second = open_driver(engine, whole_pods=True)
        assert second.guests() == [guest]
        assert engine.pod_file("web", "memory.max") == str(1 << 30)
        assert records(tmp_path)
        engine.stop_pod("web")
        wait_for(lambda: second.guests() == [] and records(tmp_path) == [])
        assert engine.pod_file("web", "memory.max") == "max"

    @pytest.mark.parametrize("answer", [(500, {"message": "broken"}), (200, {"Name": "../web"})])
    def test_a_pod_of_a_record_that_cannot_be_read_is_no_outage(
        self, engine, rig, open_driver, tmp_path, answer
    ):
        driver, guest = rig
        driver.limit_memory(guest, MemoryLimits(1 << 30))
        driver.close()
        engine.stop_pod("web")
        engine.answers[f"/libpod/pods/{engine.pod_key('web')}/json"] = answer
        engine.start(DB)
        second = open_driver(engine, whole_pods=True)
        assert [guest.name for guest in second.guests()] == [DB]
        assert second.outage_reason == ""

    def test_a_pod_that_is_no_guest_any_more_gets_its_values_back(self, engine, rig, open_driver, tmp_path):
        driver, guest = rig
        driver.limit_memory(guest, MemoryLimits(1 << 30))
        driver.close()
        assert open_driver(engine).guests() == []
        wait_for(lambda: records(tmp_path) == [])
        assert engine.pod_file("web", "memory.max") == "max"

    def test_a_container_that_joins_runs_on_the_cpus_of_the_pod_and_one_that_leaves_ends_nothing(
        self, engine, rig
    ):
        driver, guest = rig
        driver.apply_cpu_settings(guest, PINNED)
        # A container that a file for `podman kube play` describes has the labels of the pod, too.
        engine.join_pod("web", "web-2")
        (pid,) = engine.pids("web-2")
        assert pid in driver.process_ids(guest)
        assert os.sched_getaffinity(pid) == ONE
        assert driver.misplaced_threads(guest, PINNED) == {}
        engine.stop("web-2")
        assert pid not in driver.process_ids(guest)
        assert list(driver.guests()) == [guest]
        assert driver.lost_guests() == {}

    def test_a_paused_pod_stays_a_guest_and_can_be_stopped(self, engine, rig, tmp_path):
        driver, guest = rig
        driver.apply_cpu_settings(guest, PINNED)
        names = [one.name for one in engine.containers.values()]
        for name in names:
            engine.pause(name)
            engine.emit(engine.named(name), "rename")
        engine.start(DB)
        wait_for(lambda: len(driver.guests()) == 2)
        assert guest in driver.guests()
        assert records(tmp_path)
        driver.stop(guest, 5)
        assert [name for name in names if engine.is_running(name)] == []

    @pytest.mark.parametrize("has_ended", [False, True])
    def test_a_pod_is_stopped_also_if_one_of_its_containers_has_ended(self, engine, rig, has_ended):
        driver, guest = rig
        engine.join_pod("web", "web-2")
        if has_ended:
            engine.stop("web-2")
        driver.stop(guest, 5)
        assert not engine.is_running("web-1")
        stopped = [call.split("/")[-2] for call in engine.calls if call.startswith("POST /containers")]
        keys = [engine.named("web-1").key, driver.subject_key(guest)]
        assert stopped == (keys if has_ended else [])

    def test_a_pod_that_does_not_stop_is_killed_through_the_engine(self, engine, rig, monkeypatch):
        driver, guest = rig
        monkeypatch.setattr(driver_module, "KILL_SECONDS", 0.2)
        engine.stops = False
        driver.stop(guest, 0.1)
        path = f"POST /libpod/pods/{engine.pod_key('web')}"
        assert [call for call in engine.calls if call.startswith("POST")] == [f"{path}/stop", f"{path}/kill"]

    def test_a_pod_with_a_label_that_cannot_be_used_is_lost_with_its_containers(self, engine, open_driver):
        engine.start_pod("web", {**GUEST, "compute-agent.vcpus": "x"})
        engine.join_pod("web", "web-2")
        driver = open_driver(engine, whole_pods=True)
        assert driver.guests() == []
        (reason,) = driver.lost_guests().values()
        assert reason.startswith("pod web cannot be a guest: compute-agent.vcpus=x")

    def test_a_pod_without_a_group_of_its_own_is_lost(self, engine, open_driver):
        engine.start_pod("web", group_format="/machine.slice")
        (reason,) = open_driver(engine, whole_pods=True).lost_guests().values()
        assert reason.startswith("pod web cannot be a guest: it has no control group of its own")

    def test_pods_are_guests_by_their_names(self, engine, open_driver):
        for name in ("web", "db"):
            engine.start_pod(name, {})
        driver = open_driver(engine, whole_pods=True, guest_names=["web*"])
        assert [guest.name for guest in driver.guests()] == ["web"]

    def test_containers_of_a_pod_that_is_no_guest_are_guests_by_themselves(self, engine, open_driver):
        engine.start_pod("web", {})
        engine.join_pod("web", "web-2")
        assert [guest.name for guest in open_driver(engine, whole_pods=True).guests()] == ["web-2"]

    def test_an_infra_container_alone_is_no_guest(self, engine, open_driver, caplog):
        caplog.set_level(logging.INFO)
        engine.start_pod("web")
        driver = open_driver(engine, guest_names=["*"])
        assert [guest.name for guest in driver.guests()] == ["web-1"]
        assert "-infra is no guest: it is the infra container of a pod with the label" in caplog.text

    def test_a_pod_that_is_gone_does_not_come_back(self, engine, rig):
        driver, guest = rig
        key = driver.subject_key(guest)
        engine.stop_pod("web")
        wait_for(lambda: driver.guests() == [])
        assert not driver.is_gone(key, guest.uuid)
        for name in ("web-1", f"{engine.pod_key('web')[:12]}-infra"):
            engine.remove(name)
        assert driver.is_gone(key, guest.uuid)

    def test_a_hostile_answer_about_a_pod_makes_no_guest(self, engine, open_driver):
        key = engine.start_pod("web")
        engine.answers[f"/libpod/pods/{key}/json"] = 200, {"Id": key, "Name": "../web"}
        driver = open_driver(engine, whole_pods=True)
        assert driver.guests() == []

    def test_the_socket_of_docker_is_refused(self, engine, open_driver):
        engine.version = {"ApiVersion": "1.41", "Components": [{"Name": "Engine"}]}
        assert "is not the socket of Podman" in open_driver(engine).outage_reason


class TestAway:
    """The engine does not answer, or answers nonsense."""

    def test_an_engine_that_is_not_there_is_awaited(self, engine, open_driver):
        engine.go_away()
        driver = open_driver(engine)
        assert driver.awaited_drivers == {"podman"}
        assert "Podman at" in driver.outage_reasons()["podman"]
        with pytest.raises(DriverError, match="does not answer"):
            driver.guests()
        engine.start(DB)
        engine.listen()
        wait_for(lambda: not driver.awaited_drivers)
        assert [guest.name for guest in driver.guests()] == [DB]

    def test_guests_stay_managed_while_the_engine_is_away(self, engine, open_driver):
        engine.start(DB)
        driver = open_driver(engine)
        (guest,) = driver.guests()
        engine.go_away()
        wait_for(lambda: driver.outage_reason)
        assert driver.guests() == [guest]
        assert driver.apply_cpu_limits(guest, CpuLimits(300))
        engine.start("other")
        engine.listen()
        wait_for(lambda: {one.name for one in driver.guests()} == {DB, "other"})
        assert driver.outage_reason == ""

    def test_an_engine_that_hangs_is_found_by_the_next_list(self, engine, open_driver):
        driver = open_driver(engine, look_interval=0.1, seconds=0.3)
        engine.hangs.set()
        wait_for(lambda: "not complete after 0.3 seconds" in driver.outage_reason)
        engine.hangs.clear()
        wait_for(lambda: not driver.outage_reason)

    def test_a_first_list_that_is_too_long_is_an_outage_and_gives_nothing_back(
        self, engine, open_driver, monkeypatch, tmp_path, caplog
    ):
        engine.start(DB)
        first = open_driver(engine)
        first.apply_cpu_settings(first.guests()[0], PINNED)
        first.close()
        engine.start("long", {"compute-agent.guest": "false", "a": "x" * 100_000})
        monkeypatch.setattr(engine_module, "_MAX_ANSWER", 1 << 16)
        driver = open_driver(engine)
        reason = "the list of containers of Podman is longer than 0.0625 MiB, because it has the labels"
        assert driver.outage_reason.startswith(reason)
        assert f"Guests cannot be read, and the agent tries again: {reason}" in caplog.text
        assert driver.awaited_drivers == {"podman"}
        assert records(tmp_path)
        engine.stop("long")
        wait_for(lambda: not driver.awaited_drivers)
        assert driver.misplaced_threads(driver.guests()[0], PINNED) == {}

    def test_a_first_list_that_is_not_complete_is_an_outage_with_this_reason(
        self, engine, open_driver, monkeypatch
    ):
        engine.stuck.add("/containers/json")
        monkeypatch.setattr(peer, "_FIRST_LOOK", 0.0)
        driver = open_driver(engine, seconds=0.3)
        assert driver.outage_reason == "Podman has not listed its guests yet"
        reason = "Podman answers, but gives no list of containers: the answer was not complete after 0.3"
        wait_for(lambda: driver.outage_reason.startswith(reason))
        engine.stuck.clear()

    def test_a_container_without_an_answer_is_read_again_while_there_is_no_list(
        self, engine, open_driver, monkeypatch
    ):
        engine.start("first")
        driver = open_driver(engine, look_interval=0.1, seconds=0.3)
        engine.stuck.add("/containers/json")
        calls = len(engine.calls)
        broken = engine.start(DB)
        path = f"/libpod/containers/{broken.key}/json"
        engine.answers[path] = 500, {"message": "broken"}
        engine.emit(broken, "rename")
        wait_for(lambda: engine.calls[calls:].count(f"GET {path}") > 1)
        engine.answers.clear()
        wait_for(lambda: {guest.name for guest in driver.guests()} == {"first", DB})
        assert driver.outage_reason == ""
        engine.stuck.clear()

    def test_an_engine_that_hangs_is_asked_only_once_about_guests_that_do_not_run(self, engine, open_driver):
        driver = open_driver(engine, seconds=0.3)
        engine.hangs.set()
        started = time.monotonic()
        for number in range(100):
            with pytest.raises(DriverError):
                driver.is_gone(f"{number:064}", UUID)
        assert time.monotonic() - started < 5
        engine.hangs.clear()

    def test_a_stop_of_an_engine_that_hangs_ends(self, engine, open_driver):
        engine.start(DB)
        driver = open_driver(engine, seconds=0.3)
        engine.hangs.set()
        started = time.monotonic()
        with pytest.raises(DriverError, match="not complete"):
            driver.stop(driver.guests()[0], 0.1)
        assert time.monotonic() - started < 5
        engine.hangs.clear()

    def test_events_that_end_are_followed_again_with_a_new_list(self, engine, open_driver):
        driver = open_driver(engine)
        wait_for(engine.stream_count)
        engine.emit, emit = lambda container, action: None, engine.emit
        engine.start(DB)
        engine.emit = emit
        engine.drop_streams()
        assert next_change(driver)[1] == DB
        wait_for(engine.stream_count)
        engine.stop(DB)
        assert next_change(driver) == (ChangeKind.STOPPED, DB)

    @pytest.mark.parametrize(
        ("path", "status", "content"),
        [
            ("/version", 200, {"ApiVersion": "1.41/../x"}),
            ("/version", 200, []),
            ("/version", 500, {"message": "broken"}),
            ("/containers/json", 200, {}),
            ("/containers/json", 200, [{"Id": "x"}]),
            ("/containers/json", 200, b"[" * 100_000),
            ("/containers/json", 403, b"no\nthing"),
            ("/events", 500, b"{}"),
        ],
    )
    def test_an_answer_that_cannot_be_used_is_an_outage(self, engine, open_driver, path, status, content):
        engine.answers[path] = status, content
        driver = open_driver(engine)
        wait_for(lambda: driver.outage_reason)
        assert driver.outage_reason.isprintable()
        engine.answers.clear()
        wait_for(lambda: not driver.outage_reason)

    def test_a_hostile_answer_about_one_container_is_not_a_guest(self, engine, open_driver):
        container = engine.start(DB)
        engine.start("other")
        engine.answers[f"/libpod/containers/{container.key}/json"] = (
            200,
            {
                **engine.document(container),
                "Name": "/../x",
            },
        )
        driver = open_driver(engine)
        wait_for(lambda: driver.guests())
        assert [guest.name for guest in driver.guests()] == ["other"]

    @pytest.mark.parametrize("kind", ["containers", "pods"])
    def test_a_refusal_for_one_guest_leaves_the_guest_and_the_driver(self, engine, open_driver, caplog, kind):
        pod = engine.start_pod("web")
        infra = engine.named(f"{pod[:12]}-infra")
        driver = open_driver(engine, whole_pods=True, look_interval=0.1)
        guests = driver.guests()
        path = f"/libpod/{kind}/{pod if kind == 'pods' else infra.key}/json"
        engine.answers[path] = 500, {"message": "no such container in the database"}
        engine.emit(infra, "start")
        calls = len(engine.calls)
        wait_for(lambda: engine.calls[calls:].count(f"GET {path}") > 2)
        assert driver.guests() == guests
        assert driver.outage_reason == ""
        assert caplog.text.count("cannot be read, and the agent tries again") == 1
        engine.start(DB)
        wait_for(lambda: len(driver.guests()) == 2)
        engine.answers.clear()
        engine.stop_pod("web")
        wait_for(lambda: [guest.name for guest in driver.guests()] == [DB])

    @pytest.mark.parametrize("answer", ["none", "garbage", "huge"])
    def test_a_container_without_an_answer_costs_no_other_guest(
        self, engine, open_driver, monkeypatch, caplog, answer
    ):
        """An engine may wait for the lock of one container, such as during a slow stop of it."""
        monkeypatch.setattr(engine_module, "_MAX_ANSWER", 100_000)
        engine.start(DB)
        broken = engine.start("broken", {**GUEST, "compute-agent.uuid": UUID})
        path = f"/libpod/containers/{broken.key}/json"
        if answer == "none":
            engine.stuck.add(path)
        else:
            engine.answers[path] = 200, b"{" if answer == "garbage" else b" " * 200_000
        driver = open_driver(engine, look_interval=0.1, seconds=0.3)
        wait_for(lambda: [guest.name for guest in driver.guests()] == [DB])
        for name in ("a", "b", "c"):
            engine.start(name)
        wait_for(lambda: {guest.name for guest in driver.guests()} == {DB, "a", "b", "c"})
        assert driver.outage_reason == ""
        assert caplog.text.count("cannot be read, and the agent tries again") == 1
        if answer != "garbage":
            # The agent does not wait for the same container in each round.
            assert engine.calls.count(f"GET {path}") == 1
        engine.stuck.clear()
        engine.answers.clear()
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + table.STUCK_SECONDS)
        monkeypatch.setattr(table, "time", later)
        wait_for(lambda: any(guest.uuid == UUID for guest in driver.guests()))

    def test_a_guest_without_an_answer_stays_managed(self, engine, open_driver):
        container = engine.start(DB)
        driver = open_driver(engine, look_interval=0.1, seconds=0.3)
        (guest,) = driver.guests()
        path = f"/libpod/containers/{container.key}/json"
        engine.stuck.add(path)
        calls = engine.calls.count(f"GET {path}")
        engine.emit(container, "rename")
        wait_for(lambda: engine.calls.count(f"GET {path}") > calls)
        engine.start("other")
        wait_for(lambda: len(driver.guests()) == 2)
        assert driver.outage_reason == ""
        assert guest in driver.guests()
        driver.apply_cpu_settings(guest, PINNED)
        engine.stop(DB)
        wait_for(lambda: [one.name for one in driver.guests()] == ["other"])
        engine.stuck.clear()

    def test_an_engine_of_another_user_is_refused(self, engine, open_driver, monkeypatch):
        monkeypatch.setattr("struct.unpack", lambda form, data: (1, 1000, 1000))
        assert "user 1000 runs it" in open_driver(engine).outage_reason

    def test_a_second_agent_is_kept_off(self, engine, open_driver, caplog):
        def locked():
            raise DriverError("another agent already manages the containers of podman")

        with caplog.at_level(logging.WARNING):
            driver = open_driver(engine, lock=locked)
        assert "another agent" in driver.outage_reason
        assert engine.calls == []


class TestBesideAnother:
    """Guests of two drivers."""

    def test_the_start_of_a_container_is_announced(self, engine, open_driver):
        driver, announced = open_driver(engine), []
        driver.announce_start = announced.append
        engine.start(DB)
        wait_for(lambda: announced)
        assert announced == driver.guests()

    @pytest.mark.parametrize("is_first", [True, False])
    def test_a_container_that_a_service_runs_is_the_containers(self, engine, open_driver, is_first):
        engine.group_format = "/system.slice/db.service/libpod-payload-{}"
        engine.start(DB)
        containers, services = open_driver(engine), FakeDriver(ALL, "systemd")
        (guest,) = containers.guests()
        service = services.create_guest(UUID, "db.service", guest.settings, ())
        folder = f"{engine.folders.groups}/system.slice/db.service"
        services.running[UUID] = replace(service, cgroup=folder)
        drivers = (containers, services) if is_first else (services, containers)
        both = CombinedDriver(drivers, engine.folders.groups)
        assert list(both.guests()) == [guest]
        assert "runs guest db" in both.lost_guests()[UUID]
        assert both.overruling_guests("systemd") == {folder: guest}
