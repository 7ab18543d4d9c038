"""Units of a real systemd as guests: set, kept through reloads and restarts, and given back.

Runs in the virtual machine only: `test_systemd.py` starts it there.
"""

import contextlib
import os
import queue
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from compute_agent.drivers.base import UNLIMITED, ChangeKind, CpuLimits, CpuSettings, MemoryLimits
from compute_agent.drivers.foreign.records import ValueRecords
from compute_agent.drivers.systemd.driver import SystemdDriver
from compute_agent.model.messages import DriverError
from compute_agent.model.resource import BlockIo, DeviceRates
from tests.waits import wait_for

BUS = Path("/run/dbus/system_bus_socket")
FOLDER = Path("/run/systemd/system")
DB, SCOPE, SLICE = "db.service", "job.scope", "app.slice"
SERVICE = """
[Service]
ExecStart=/bin/sh -c 'sleep 1000 & exec sleep 1000'
Restart=on-failure
RestartSec=1s
"""
SECTION = "\n[X-ComputeAgent]\nVcpus=2\nClass=BE\n"
ALL = frozenset(os.sched_getaffinity(0))
ONE = CpuSettings((frozenset({1}),), frozenset({1}))
FREE = CpuSettings((ALL,), ALL)
NAMES = ("AllowedCPUs", "AllowedMemoryNodes", "CPUWeight", "CPUQuotaPerSecUSec", "MemoryMax", "MemoryHigh")
NAMES += ("MemoryLow", "MemoryMin", "IOWeight")
NAMES += ("IOReadBandwidthMax", "IOWriteBandwidthMax", "IOReadIOPSMax", "IOWriteIOPSMax")
DISK = Path("/sys/block/vda/dev").read_text().strip()
"""The number of the machine's disk."""


def systemctl(*words):
    return subprocess.run(["systemctl", *words], check=True, capture_output=True, text=True).stdout.strip()


def show(name=DB):
    """The properties of a service as systemd has them."""
    text = systemctl("show", *(word for one in NAMES for word in ("-p", one)), name)
    return dict(line.split("=", 1) for line in text.splitlines())


def left_files(name=DB):
    folders = (Path("/run/systemd", folder, f"{name}.d") for folder in ("system.control", "transient"))
    return [path for folder in folders for path in folder.glob("*")]


def is_without_error(call, *arguments):
    try:
        call(*arguments)
    except DriverError:
        return False
    return True


@pytest.fixture(autouse=True, scope="module")
def bus():
    """The machine has started its command and nothing else."""
    systemctl("start", "dbus.socket", "dbus.service")
    wait_for(BUS.exists)


@pytest.fixture
def service():
    """Write the unit file of a service and start it."""
    names = []

    def service(more="", name=DB):
        (FOLDER / name).write_text(SERVICE + more + SECTION)
        systemctl("daemon-reload")
        systemctl("start", name)
        names.append(name)

    yield service
    for name in names:
        subprocess.run(["systemctl", "stop", name], check=False)
        subprocess.run(["systemctl", "reset-failed", name], check=False, capture_output=True)
        # A test that has failed leaves the values that it has set.
        shutil.rmtree(f"/run/systemd/system.control/{name}.d", ignore_errors=True)
        (FOLDER / name).unlink(missing_ok=True)
    systemctl("daemon-reload")


@pytest.fixture
def scope():
    """Make a scope with two processes and a drop-in."""
    folder, processes = FOLDER / f"{SCOPE}.d", []

    def scope():
        folder.mkdir(exist_ok=True)
        (folder / "guest.conf").write_text(SECTION)
        # systemd finds new folders of drop-ins at a reload only.
        systemctl("daemon-reload")
        command = ["systemd-run", "--scope", "--unit", SCOPE, "sh", "-c", "sleep 1000 & sleep 1000 & wait"]
        processes.append(subprocess.Popen(command))
        wait_for(lambda: systemctl("show", "--value", "-p", "ActiveState", SCOPE) == "active")

    yield scope
    subprocess.run(["systemctl", "stop", SCOPE], check=False, capture_output=True)
    for process in processes:
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def slice():
    """Write the file of a slice with the section."""
    (FOLDER / SLICE).write_text(f"[Slice]\n{SECTION}")
    yield
    subprocess.run(["systemctl", "stop", SLICE], check=False)
    shutil.rmtree(f"/run/systemd/system.control/{SLICE}.d", ignore_errors=True)
    (FOLDER / SLICE).unlink()
    systemctl("daemon-reload")


@pytest.fixture
def open_driver(tmp_path):
    opened = []

    def open_driver():
        driver: Any = SystemdDriver(BUS, "host", ValueRecords(tmp_path / "records", "unit"))
        driver.changes = queue.Queue()
        driver.watch_guests(driver.changes.put)
        opened.append(driver)
        return driver

    yield open_driver
    for driver in opened:
        driver.close()


def test_services_are_found_and_their_starts_and_ends_reported(service, open_driver):
    driver = open_driver()
    assert driver.outage_reason == ""
    service()
    assert driver.changes.get(timeout=60).kind is ChangeKind.STARTED
    (guest,) = driver.guests()
    assert str(guest.pid) == systemctl("show", "--value", "-p", "MainPID", DB)
    assert (guest.settings.vcpus, guest.declared) == (2, {"qos_class": "BE"})
    assert len(wait_for(lambda: len(driver.process_ids(guest)) == 2 and driver.process_ids(guest))) == 2
    systemctl("restart", DB)
    kinds = [driver.changes.get(timeout=60).kind for _ in range(2)]
    assert kinds == [ChangeKind.STOPPED, ChangeKind.STARTED]
    systemctl("stop", DB)
    assert driver.changes.get(timeout=60).kind is ChangeKind.STOPPED
    assert driver.guests() == []


def test_all_properties_are_set_kept_and_given_back(service, open_driver, tmp_path):
    service()
    before, driver = show(), open_driver()
    (guest,) = driver.guests()
    wait_for(lambda: len(driver.process_ids(guest)) == 2)
    memory = MemoryLimits(1 << 30, 1 << 29, 1 << 20, minimum=1 << 20, oom_score_adj=100)

    def check(guest):
        assert driver.misplaced_threads(guest, ONE) == {}
        assert driver.memory_nodes(guest, frozenset({0})) is None
        assert driver.cpu_limits(guest, CpuLimits(300, 0.5)) is None
        assert driver.memory_limits(guest, MemoryLimits(1 << 30, 1 << 29, 1 << 20, minimum=1 << 20)) is None
        assert driver.blockio_drift(guest, BlockIo(50)) == ""
        assert {os.sched_getaffinity(pid) == {1} for pid in driver.process_ids(guest)} == {True}

    assert driver.apply_cpu_settings(guest, ONE) == 2
    # The machine has one NUMA node, so there is nothing to bind.
    assert not driver.bind_memory(guest, frozenset({0}))
    assert driver.apply_cpu_limits(guest, CpuLimits(300, 0.5))
    assert driver.limit_memory(guest, memory)
    assert driver.apply_blockio(guest, BlockIo(50))
    check(guest)
    group = Path(guest.cgroup)
    assert (group / "cpu.max").read_text() == "50000 100000\n"
    assert (group / "memory.max").read_text() == f"{1 << 30}\n"
    assert (group / "cpuset.cpus").read_text() == "1\n"
    # systemd answers nothing for some seconds after either command, which the driver reports as an error.
    for command in ("daemon-reload", "daemon-reexec"):
        systemctl(command)
        wait_for(lambda: is_without_error(check, guest))
    systemctl("restart", DB)
    (guest,) = wait_for(lambda: [one for one in driver.guests() if one.pid != guest.pid])
    # A restart ends the service for a moment, so that its values may have been given back.
    driver.apply_cpu_settings(guest, ONE)
    driver.apply_cpu_limits(guest, CpuLimits(300, 0.5))
    driver.limit_memory(guest, memory)
    driver.apply_blockio(guest, BlockIo(50))
    check(guest)
    # By a release, while the service runs
    assert driver.apply_cpu_settings(guest, FREE)
    assert driver.apply_cpu_limits(guest, CpuLimits(100))
    assert driver.limit_memory(guest, MemoryLimits(UNLIMITED, UNLIMITED, 0, 0, (), 0, False))
    assert driver.apply_blockio(guest, None)
    assert (show(), left_files(), [*(tmp_path / "records").iterdir()]) == (before, [], [])
    assert {frozenset(os.sched_getaffinity(pid)) for pid in driver.process_ids(guest)} == {ALL}
    # By the end of the service
    driver.apply_cpu_settings(guest, ONE)
    driver.apply_cpu_limits(guest, CpuLimits(idle=True))
    assert (Path(guest.cgroup) / "cpu.idle").read_text() == "1\n"
    systemctl("stop", DB)
    wait_for(lambda: not [*(tmp_path / "records").iterdir()])
    assert (show(), left_files()) == (before, [])


@pytest.mark.parametrize("path", ["/dev/vda", "/run/disk", ""], ids=["node", "link", "none"])
def test_rates_of_a_disk_are_set_kept_and_given_back(service, open_driver, tmp_path, path):
    with contextlib.suppress(FileExistsError):
        Path("/run/disk").symlink_to("/dev/vda")
    service(f"IOWriteBandwidthMax={path} 1M\n" if path else "")
    before, driver = show(), open_driver()
    (guest,) = driver.guests()
    file = Path(guest.cgroup) / "io.max"
    wanted = BlockIo(rates=DeviceRates(3000, 5_000_000, 40), latency_us=20_000, devices=frozenset({DISK}))
    wbps = 1_000_000 if path else 5_000_000
    goal = [DISK, "rbps=3000", f"wbps={wbps}", "riops=40", "wiops=max"]

    def is_kept():
        return driver.blockio_drift(guest, wanted) == "" and file.read_text().split() == goal

    assert driver.apply_blockio(guest, wanted)
    assert is_kept()
    assert not driver.apply_blockio(guest, wanted)
    # Debian's kernels have no io.latency.
    assert ["io.latency" in one for one in driver.blockio_missing(guest, wanted)] == [True]
    file.write_text(f"{DISK} rbps=max wbps=max\n")
    wait_for(lambda: driver.blockio_drift(guest, wanted))
    assert driver.apply_blockio(guest, wanted)
    assert is_kept()
    # Some time after daemon-reexec, systemd itself writes the file again.
    for command in ("daemon-reload", "daemon-reexec"):
        systemctl(command)
        wait_for(lambda: is_without_error(is_kept) and is_kept())
    # The agent needs a moment until it is connected to the new systemd.
    wait_for(lambda: is_without_error(lambda: driver.apply_blockio(guest, None)))
    own = [DISK, "rbps=max", f"wbps={wbps}", "riops=max", "wiops=max"]
    wait_for(lambda: file.read_text().split() == (own if path else []))
    assert (show(), left_files(), [*(tmp_path / "records").iterdir()]) == (before, [], [])
    assert driver.apply_blockio(guest, wanted)
    systemctl("stop", DB)
    wait_for(lambda: not [*(tmp_path / "records").iterdir()])
    assert (show(), left_files()) == (before, [])


def test_values_of_the_unit_file_stay_or_come_back(service, open_driver):
    service("CPUQuota=150%\nCPUWeight=50\nMemoryMax=512M\nAllowedCPUs=0-2\n")
    before, driver = show(), open_driver()
    (guest,) = driver.guests()
    assert driver.cpu_limits(guest, CpuLimits(300)) is None
    assert driver.memory_limits(guest, MemoryLimits(1 << 30)) is None
    assert driver.apply_cpu_limits(guest, CpuLimits(300, 1.0))
    assert (Path(guest.cgroup) / "cpu.max").read_text() == "100000 100000\n"
    driver.apply_cpu_settings(guest, ONE)
    driver.apply_cpu_limits(guest, CpuLimits(300))
    driver.apply_cpu_settings(guest, FREE)
    assert show() == before
    assert os.sched_getaffinity(guest.pid) == {0, 1, 2}
    assert left_files() == []


def test_drift_by_other_programs_is_corrected(service, open_driver):
    service()
    driver = open_driver()
    (guest,) = driver.guests()
    driver.apply_cpu_settings(guest, ONE)
    driver.apply_cpu_limits(guest, CpuLimits(300))
    systemctl("set-property", "--runtime", DB, "CPUWeight=77")
    # A comparison may use values that were read in the last second.
    wait_for(lambda: driver.cpu_limits(guest, CpuLimits(300)) == CpuLimits(77))
    (Path(guest.cgroup) / "cpuset.cpus").write_text("0-1\n")
    assert driver.misplaced_threads(guest, ONE)
    assert driver.apply_cpu_settings(guest, ONE)
    assert driver.apply_cpu_limits(guest, CpuLimits(300))
    assert show()["CPUWeight"] == "300"
    assert os.sched_getaffinity(guest.pid) == {1}


def test_a_service_that_systemd_restarts_keeps_its_values(service, open_driver):
    service()
    driver = open_driver()
    (guest,) = driver.guests()
    driver.apply_cpu_settings(guest, ONE)
    systemctl("kill", "--signal=SIGKILL", DB)
    (again,) = wait_for(lambda: [one for one in driver.guests() if one.pid != guest.pid])
    assert driver.misplaced_threads(again, ONE) == {}
    assert show()["AllowedCPUs"] == "1"


def test_a_service_that_ended_while_the_agent_was_away_gets_its_values_back(service, open_driver, tmp_path):
    service()
    before, driver = show(), open_driver()
    (guest,) = driver.guests()
    driver.apply_cpu_settings(guest, ONE)
    driver.close()
    systemctl("stop", DB)
    open_driver()
    wait_for(lambda: not [*(tmp_path / "records").iterdir()])
    assert (show(), left_files()) == (before, [])


def test_a_stop_by_the_agent_is_not_undone_by_systemd(service, open_driver):
    service()
    driver = open_driver()
    (guest,) = driver.guests()
    driver.stop(guest, 30)
    wait_for(lambda: systemctl("show", "--value", "-p", "ActiveState", DB) in ("inactive", "failed"))
    assert driver.guests() == []


def test_a_scope_is_a_guest_until_its_last_process_ends(scope, open_driver, tmp_path):
    driver = open_driver()
    scope()
    assert driver.changes.get(timeout=60).kind is ChangeKind.STARTED
    (guest,) = driver.guests()
    assert (guest.name, guest.declared) == (SCOPE, {"qos_class": "BE"})
    before = show(SCOPE)
    wait_for(lambda: len(driver.process_ids(guest)) == 3)
    assert driver.apply_cpu_settings(guest, ONE) == 3
    assert driver.apply_cpu_limits(guest, CpuLimits(300, 0.5))
    assert {os.sched_getaffinity(pid) == {1} for pid in driver.process_ids(guest)} == {True}
    assert len(left_files(SCOPE)) == 3
    for command in ("daemon-reload", "daemon-reexec"):
        systemctl(command)
        wait_for(lambda: is_without_error(driver.apply_cpu_limits, guest, CpuLimits(300, 0.5)))
        assert driver.misplaced_threads(guest, ONE) == {}
        assert (Path(guest.cgroup) / "cpuset.cpus").read_text() == "1\n"
    assert driver.apply_cpu_settings(guest, FREE)
    assert driver.apply_cpu_limits(guest, CpuLimits(100))
    assert (show(SCOPE), left_files(SCOPE), [*(tmp_path / "records").iterdir()]) == (before, [], [])
    driver.apply_cpu_settings(guest, ONE)
    os.kill(guest.pid, 9)
    # The other processes go on as the same guest.
    (now,) = wait_for(lambda: [one for one in driver.guests() if one.pid != guest.pid])
    assert now.is_same_run(guest)
    driver.stop(now, 30)
    wait_for(lambda: not [*(tmp_path / "records").iterdir()])
    assert (driver.guests(), left_files(SCOPE)) == ([], [])
    assert driver.is_gone(SCOPE, guest.uuid)


def test_a_slice_is_a_guest_with_all_its_units(slice, service, open_driver, tmp_path):
    service(f"Slice={SLICE}\n")
    service("Slice=app-web.slice\nCPUWeight=50\n", "web.service")
    before, driver = show(SLICE), open_driver()
    (guest,) = driver.guests()
    assert guest.name == SLICE
    assert len(driver.excluded_guests()) == 2
    wait_for(lambda: len(driver.process_ids(guest)) == 4)
    assert driver.apply_cpu_settings(guest, ONE) == 4
    assert driver.apply_cpu_limits(guest, CpuLimits(300, 0.5))
    assert driver.limit_memory(guest, MemoryLimits(1 << 30))
    assert driver.apply_blockio(guest, BlockIo(50))
    assert {os.sched_getaffinity(pid) == {1} for pid in driver.process_ids(guest)} == {True}
    systemctl("restart", DB)
    (guest,) = wait_for(lambda: [one for one in driver.guests() if one.is_same_run(guest)])
    systemctl("daemon-reload")
    wait_for(lambda: is_without_error(driver.apply_cpu_settings, driver.guests()[0], ONE))
    assert os.sched_getaffinity(int(systemctl("show", "--value", "-p", "MainPID", DB))) == {1}
    systemctl("stop", DB, "web.service")
    wait_for(lambda: not driver.guests())
    assert not driver.is_gone(SLICE, guest.uuid)
    assert show(SLICE)["AllowedCPUs"] == "1"
    systemctl("start", DB, "web.service")
    (guest,) = wait_for(driver.guests)
    driver.stop(guest, 30)
    states = [systemctl("show", "--value", "-p", "ActiveState", one) for one in (DB, "web.service", SLICE)]
    assert states == ["inactive"] * 3
    wait_for(lambda: not [*(tmp_path / "records").iterdir()])
    assert (show(SLICE), left_files(SLICE)) == (before, [])


def test_units_of_the_host_are_excluded_guests(service, tmp_path):
    service()
    names = ["-.slice", "system.slice", "init.scope"]
    driver = SystemdDriver(BUS, "host", ValueRecords(tmp_path / "records", "unit"), guest_names=names)
    with contextlib.closing(driver):
        assert [guest.name for guest in driver.guests()] == [DB]
        assert len(driver.excluded_guests()) == 3
