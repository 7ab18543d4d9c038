"""Tests of process guests in cgroup v2 groups.

The same cases run on a folder that behaves like a group and, if CGROUP_ROOT names a group, on the kernel's
file system. The module needs nothing but pytest, so that it can run in a virtual machine.
"""

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from compute_agent.drivers import memory_limits, procfs
from compute_agent.drivers.base import UNLIMITED, ChangeKind, CpuLimits, CpuSettings, MemoryLimits
from compute_agent.drivers.cgroup import CgroupRoot, GuestCgroup
from compute_agent.drivers.processes.driver import ProcessDriver
from compute_agent.host.block_devices import read_block_devices
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import BlockIo, DeviceRates
from tests.compute_agent import cgroups
from tests.waits import wait_for

ALL = frozenset(os.sched_getaffinity(0))
ONE = frozenset({min(ALL)})
PINNED = CpuSettings((ONE,), ONE)
NODES = procfs.nodes_with_memory()
SECONDS = 60
MIB = 1 << 20
DISKS = [one.number for one in read_block_devices(Path("/")).match_devices("vd*")]
DISK = DISKS[0] if DISKS else "254:0"
BURN = (sys.executable, "-c", "while True: pass")

on_kernel = pytest.mark.skipif(cgroups.ROOT is None, reason="CGROUP_ROOT names no group of cgroup v2")


@pytest.fixture
def uid():
    """The uuid of a consumer. This module has its own fixture, because the virtual machine has no
    conftest.
    """
    return str(uuid.uuid4())


@pytest.fixture
def tree(tmp_path, monkeypatch):
    if cgroups.ROOT is None:
        yield cgroups.FakeCgroups(tmp_path / "cgroup", monkeypatch)
        return
    tree = cgroups.KernelCgroups()
    yield tree
    tree.close()


@pytest.fixture
def make_driver(tree, tmp_path):
    """A function that makes drivers on one folder, as agents do that start one after the other."""
    made = []
    root = tree.folder / "guests"

    def make():
        root.mkdir(exist_ok=True)
        if not (root / "cgroup.procs").exists():
            tree.make_files(root)
        driver = ProcessDriver(tmp_path / "records", CgroupRoot.open(root))
        made.append(driver)
        return driver

    yield make
    for driver in made:
        driver.close()
    last = make()
    for guest in last.guests():
        last.stop(guest, 0)
    last.close()


@pytest.fixture
def driver(make_driver):
    return make_driver()


def start(driver, *command, vcpus=1):
    guest_uuid = str(uuid.uuid4())
    guest = driver.create_guest(
        guest_uuid, guest_uuid, GuestSettings(vcpus=vcpus), command or ("sleep", "600")
    )
    driver.release(guest)
    return guest


def group_of(guest):
    return GuestCgroup(Path(guest.cgroup))


@pytest.fixture
def started():
    """A function that starts processes that the agent does not manage."""
    children = []

    def begin(*command):
        children.append(subprocess.Popen(command or ("sleep", "600"), start_new_session=True))
        return children[-1]

    yield begin
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        child.wait()


@pytest.fixture
def work(tree, started):
    """A foreign cgroup with two processes, one of them in a group below."""
    outer, inner = GuestCgroup(tree.make("work.service")), GuestCgroup(tree.make("work.service/inner"))
    first = started()
    time.sleep(2 / os.sysconf("SC_CLK_TCK"))  # start times are in ticks
    second = started()
    outer.add(first.pid)
    inner.add(second.pid)
    return outer, [first, second]


def test_a_guest_does_not_start_in_a_group_with_other_processes(driver, tree, uid, started, tmp_path):
    stranger = started()
    name = f"guest-{uid}"
    root = group_of(start(driver)).folder.parent
    (root / name).mkdir()
    if cgroups.ROOT is None:
        tree.make_files(root / name)
    GuestCgroup(root / name).add(stranger.pid)
    with pytest.raises(DriverError, match=f"processes in its group {name} already"):
        driver.create_guest(uid, uid, GuestSettings(), ("touch", str(tmp_path / "ran")))
    assert stranger.poll() is None
    assert GuestCgroup(root / name).process_ids() == [stranger.pid]
    assert not (tmp_path / "ran").exists()


class TestLimits:
    """The files cpu.weight, cpu.max, cpuset.cpus and cpuset.mems of a guest's group."""

    def test_a_guest_has_a_group_of_its_own_with_all_its_processes(self, driver):
        guest = start(driver, "sh", "-c", "sleep 600 & exec sleep 601")
        assert guest.pid in group_of(guest).process_ids()
        if cgroups.ROOT is not None:
            assert len(wait_for(lambda: len(group_of(guest).process_ids()) == 2 and [1, 2])) == 2
            assert Path(f"/proc/{guest.pid}/cgroup").read_text().strip().endswith(f"guest-{guest.uuid}")

    def test_weight_and_quota_are_set_once_changed_and_taken_away(self, driver):
        guest = start(driver)
        weight, maximum = (group_of(guest).folder / name for name in ("cpu.weight", "cpu.max"))
        for wanted, text in (
            (CpuLimits(300), "max 100000"),
            (CpuLimits(300, 0.5), "50000 100000"),
            (CpuLimits(1, 0.001), "1000 100000"),
            (CpuLimits(10_000, 64.0), "6400000 100000"),
            (CpuLimits(100), "max 100000"),
        ):
            assert driver.apply_cpu_limits(guest, wanted)
            assert (int(weight.read_text()), maximum.read_text().strip()) == (wanted.weight, text)
            assert driver.cpu_limits(guest, wanted) is None
            assert not driver.apply_cpu_limits(guest, wanted)

    def test_limits_that_another_program_changed_are_seen_and_corrected(self, driver):
        guest = start(driver)
        driver.apply_cpu_limits(guest, CpuLimits(200))
        (group_of(guest).folder / "cpu.max").write_text("20000 50000\n")
        (group_of(guest).folder / "cpu.weight").write_text("7\n")
        assert driver.cpu_limits(guest, CpuLimits(200)) == CpuLimits(7, 0.4)
        assert driver.apply_cpu_limits(guest, CpuLimits(200))
        assert driver.cpu_limits(guest, CpuLimits(200)) is None

    def test_a_weight_that_the_kernel_refuses_is_an_error_that_names_the_guest(self, driver):
        guest = start(driver)
        with pytest.raises(DriverError, match=re.escape(f"limits of guest {guest} cannot be set")):
            driver.apply_cpu_limits(guest, CpuLimits(10_001))

    def test_memory_is_bound_bound_elsewhere_and_let_go(self, driver):
        guest = start(driver)
        assert driver.memory_nodes(guest, frozenset()) is None
        assert not driver.bind_memory(guest, frozenset())
        for nodes in [*(frozenset({node}) for node in sorted(NODES)), frozenset()]:
            differs = bool(nodes) or len(NODES) > 1  # the only node is every node
            assert (driver.memory_nodes(guest, nodes) is not None) == differs
            assert driver.bind_memory(guest, nodes) == differs
            assert driver.memory_nodes(guest, nodes) is None
            assert not driver.bind_memory(guest, nodes)
            if cgroups.ROOT is not None:
                assert procfs.memory_nodes(guest.pid) == (nodes or NODES)

    def test_a_node_that_is_not_there_is_an_error_that_names_it(self, driver):
        guest = start(driver)
        with pytest.raises(
            DriverError, match=re.escape(f"memory of guest {guest} cannot be bound to NUMA nodes 63")
        ):
            driver.bind_memory(guest, frozenset({63}))

    @on_kernel
    @pytest.mark.skipif(len(NODES) < 2, reason="needs two NUMA nodes")
    def test_memory_that_is_there_already_moves_along(self, driver):
        code = "import time; x = bytearray(64 << 20); print('up', flush=True); time.sleep(600)"
        guest = start(driver, sys.executable, "-c", code)
        wait_for(lambda: Path(guest.details["log"]).read_text())
        for node in (*sorted(NODES), *sorted(NODES)):
            driver.bind_memory(guest, frozenset({node}))
            wait_for(lambda: large(pages(guest.pid)) == {node})  # noqa: B023 # called at once

    @pytest.mark.skipif(len(ALL) < 2, reason="needs two CPUs to tell apart")
    def test_threads_and_group_are_pinned(self, driver):
        guest = start(driver)
        driver.apply_cpu_settings(guest, PINNED)
        assert driver.observed_cpus(guest) == ONE
        assert (group_of(guest).folder / "cpuset.cpus").read_text().strip() == str(min(ONE))
        driver.apply_cpu_settings(guest, CpuSettings((ALL,), ALL))
        assert driver.observed_cpus(guest) == ALL

    def test_a_guest_that_was_moved_out_of_its_group_is_put_back(self, driver, tree):
        guest = start(driver)
        driver.apply_cpu_settings(guest, PINNED)
        GuestCgroup(tree.make("elsewhere")).add(guest.pid)
        assert guest.pid in driver.misplaced_threads(guest, PINNED)
        driver.apply_cpu_settings(guest, PINNED)
        assert group_of(guest).process_ids() == [guest.pid]
        assert driver.misplaced_threads(guest, PINNED) == {}

    def test_a_guest_that_ended_has_no_limits_and_no_group(self, driver):
        guest = start(driver)
        os.kill(guest.pid, signal.SIGKILL)
        wait_for(lambda: not driver.guests())
        for ask in (
            lambda: driver.cpu_limits(guest, CpuLimits(1)),
            lambda: driver.apply_cpu_limits(guest, CpuLimits(1, 0.5)),
            lambda: driver.memory_nodes(guest, frozenset({0})),
            lambda: driver.bind_memory(guest, frozenset({0})),
        ):
            with pytest.raises(GuestGoneError):
                ask()


class TestMemoryLimits:
    """The files memory.max, memory.high and memory.low of a guest's group, and oom_score_adj of its
    processes.
    """

    def test_limits_are_set_once_changed_and_taken_away(self, driver):
        guest = start(driver)
        for wanted, text in (
            (MemoryLimits(96 * MIB, 64 * MIB, 32 * MIB, 300), ["100663296", "67108864", "33554432"]),
            (MemoryLimits(97 * MIB + 1, UNLIMITED, 0, 400), ["101711872", "max", "0"]),
            (MemoryLimits(UNLIMITED, UNLIMITED, 0, 0), ["max", "max", "0"]),
        ):
            assert driver.memory_limits(guest, wanted) is not None
            assert driver.limit_memory(guest, wanted)
            assert [limit_of(guest, name) for name in ("max", "high", "low")] == text
            assert score_of(guest.pid) == wanted.oom_score_adj
            assert driver.memory_limits(guest, wanted) is None
            assert not driver.limit_memory(guest, wanted)

    def test_changes_of_memory_limits_that_the_agent_wrote_are_drift_also_for_the_next_agent(
        self, driver, make_driver
    ):
        guest, wanted = start(driver), MemoryLimits(96 * MIB, 64 * MIB, 0, 300)
        driver.limit_memory(guest, wanted)
        for one in (driver, make_driver()):
            (group_of(guest).folder / "memory.max").write_text("max\n")
            Path(f"/proc/{guest.pid}/oom_score_adj").write_text("7")
            assert one.memory_limits(guest, wanted) == MemoryLimits(UNLIMITED, 64 * MIB, 0, 7)
            assert one.limit_memory(guest, wanted)
            assert (limit_of(guest, "max"), score_of(guest.pid)) == ("100663296", 300)

    def test_foreign_memory_limits_stay(self, driver, started, uid):
        theirs = started()
        Path(f"/proc/{theirs.pid}/oom_score_adj").write_text("123")
        guest = driver.adopt_guest(uid, "theirs", GuestSettings(), theirs.pid)
        (group_of(guest).folder / "memory.high").write_text("83886080\n")
        wanted = MemoryLimits(96 * MIB, 64 * MIB, 0, 300)
        assert driver.limit_memory(guest, wanted)
        assert [limit_of(guest, name) for name in ("max", "high")] == ["100663296", "83886080"]
        assert score_of(guest.pid) == 123
        assert driver.memory_limits(guest, wanted) is None

    def test_huge_pages_are_limited_and_the_limit_is_taken_away(self, driver, make_driver):
        guest = start(driver)
        limits = [group_of(guest).folder / f"hugetlb.2MB.{name}" for name in ("max", "rsvd.max")]
        assert driver.huge_page_use(guest).get(2048) == 0
        for amount in (4 * MIB, 0):
            wanted = MemoryLimits(huge_pages=((64, 0), (2048, amount)))
            assert driver.limit_memory(guest, wanted)
            assert [file.read_text().strip() for file in limits] == [str(amount)] * 2
            assert not driver.limit_memory(guest, wanted)
        limits[0].write_text("max\n")
        assert driver.memory_limits(guest, wanted).huge_pages == ((2048, UNLIMITED),)
        assert driver.limit_memory(guest, wanted)
        after = make_driver()
        assert after.limit_memory(guest, MemoryLimits(huge_pages=()))
        assert [file.read_text().strip() for file in limits] == ["max", "max"]

    def test_files_are_left_alone_without_wanted_limits(self, driver):
        guest = start(driver)
        (group_of(guest).folder / "memory.max").write_text("100663296\n")
        assert driver.memory_limits(guest, MemoryLimits()) is None
        assert not driver.limit_memory(guest, MemoryLimits())
        assert limit_of(guest, "max") == "100663296"

    def test_the_root_protects_as_much_as_its_guests_may_have_protected(self, driver):
        guests = [start(driver), start(driver)]
        for guest, low in zip(guests, (16 * MIB, 8 * MIB), strict=True):
            driver.limit_memory(guest, MemoryLimits(low=low))
        root = group_of(guests[0]).folder.parent
        assert (root / "memory.low").read_text().strip() == str(24 * MIB)

    def test_a_score_that_the_kernel_refuses_is_logged_once_and_left(self, driver, monkeypatch, caplog):
        guest = start(driver)

        def refuse(path, *mode, **how):
            raise PermissionError(13, "Permission denied", path)

        monkeypatch.setattr(memory_limits, "open", refuse, raising=False)
        wanted = MemoryLimits(96 * MIB, oom_score_adj=-500)
        assert driver.limit_memory(guest, wanted)
        assert limit_of(guest, "max") == "100663296"
        assert not driver.limit_memory(guest, wanted)
        (record,) = [one for one in caplog.records if "oom_score_adj" in one.getMessage()]
        assert "CAP_SYS_RESOURCE" in record.getMessage()

    @on_kernel
    def test_an_oom_kill_of_a_guest_is_reported_although_it_ended(self, driver):
        driver.watch_guests(lambda change: None)  # without a watch no thread sees the end of a guest
        code = "import time; time.sleep(2); x = bytearray(256 << 20); time.sleep(600)"
        guest = start(driver, sys.executable, "-c", code)
        driver.limit_memory(guest, MemoryLimits(64 * MIB))
        kill = wait_for(lambda: list(driver.oom_kills()))[0]
        assert (kill.guest.uuid, kill.kills, kill.at_own_limit) == (guest.uuid, 1, True)
        wait_for(lambda: not driver.guests())
        assert driver.oom_kills() == []


@pytest.mark.skipif(cgroups.ROOT is not None and not DISKS, reason="there is no disk")
class TestBlockIo:
    """The files io.weight and io.max of a guest's group."""

    def test_weight_and_rates_are_set_once_changed_and_taken_away(self, driver):
        guest = start(driver)
        first, devices = DeviceRates(1 << 20, 2 << 20, 100, 200), frozenset({DISK})
        for wanted, weight, text in (
            (BlockIo(400), "400", ""),
            (
                BlockIo(400, first, None, devices),
                "400",
                f"{DISK} rbps=1048576 wbps=2097152 riops=100 wiops=200",
            ),
            (
                BlockIo(10_000, DeviceRates(None, 5), None, devices),
                "10000",
                f"{DISK} rbps=max wbps=5 riops=max wiops=max",
            ),
            (None, "100", ""),
        ):
            assert driver.blockio_drift(guest, wanted)
            assert driver.apply_blockio(guest, wanted)
            assert (io_of(guest, "weight"), io_of(guest, "max")) == (f"default {weight}", text)
            assert driver.blockio_drift(guest, wanted) == ""
            assert not driver.apply_blockio(guest, wanted)

    def test_changes_of_block_io_that_the_agent_wrote_are_drift_also_for_the_next_agent(
        self, driver, make_driver
    ):
        guest = start(driver)
        wanted = BlockIo(50, DeviceRates(1 << 20), None, frozenset({DISK}))
        driver.apply_blockio(guest, wanted)
        for one in (driver, make_driver()):
            (group_of(guest).folder / "io.weight").write_text("default 7\n")
            GuestCgroup(group_of(guest).folder).write_file("io.max", f"{DISK} rbps=max")
            assert "io.weight has not default 50; io.max has not" in one.blockio_drift(guest, wanted)
            assert one.apply_blockio(guest, wanted)
            assert io_of(guest, "weight") == "default 50"
            assert io_of(guest, "max").startswith(f"{DISK} rbps=1048576 ")

    def test_foreign_block_io_stays(self, driver):
        guest = start(driver)
        (group_of(guest).folder / "io.weight").write_text("default 7\n")
        GuestCgroup(group_of(guest).folder).write_file("io.max", f"{DISK} rbps=4096")
        for wanted in (None, BlockIo(50, DeviceRates(1 << 20), None, frozenset({DISK}))):
            assert driver.blockio_drift(guest, wanted) == ""
            assert not driver.apply_blockio(guest, wanted)
        assert io_of(guest, "weight") == "default 7"
        assert io_of(guest, "max").startswith(f"{DISK} rbps=4096 ")

    def test_settings_that_the_kernel_lacks_are_reported(self, driver):
        guest = start(driver)
        (reason,) = driver.blockio_missing(guest, BlockIo(latency_us=100, devices=frozenset({DISK})))
        assert "no io.latency" in reason
        (reason,) = driver.blockio_missing(guest, BlockIo(rates=DeviceRates(1), own_disks=True))
        assert "name devices of the host" in reason
        assert driver.blockio_missing(guest, BlockIo(100, DeviceRates(1), None, frozenset({DISK}))) == []


@on_kernel
class TestUse:
    """The CPU time of busy processes, read from the kernel's own counters."""

    def test_a_quota_of_half_a_core_is_what_two_burning_processes_get(self, driver):
        guest = start(
            driver, "sh", "-c", f"{BURN[0]} -c 'while True: pass' & exec {BURN[0]} -c 'while True: pass'"
        )
        wait_for(lambda: len(group_of(guest).process_ids()) == 2)
        driver.apply_cpu_limits(guest, CpuLimits(100, 0.5))
        cores, throttled = used(group_of(guest))
        print(f"{cores:.3f} cores used, throttled in {throttled} periods")
        assert 0.3 < cores < 0.6
        assert throttled > 0
        driver.apply_cpu_limits(guest, CpuLimits(100))
        cores, throttled = used(group_of(guest))
        print(f"{cores:.3f} cores used without a limit, throttled in {throttled} periods")
        assert cores > 0.7
        assert throttled == 0

    def test_weights_divide_a_cpu_that_guests_share(self, driver, tmp_path):
        # The start of an interpreter also waits, and the other guest has the CPU meanwhile.
        marks = [tmp_path / name for name in ("great", "small")]
        loop = "open({!r}, 'w').close()\nwhile True: pass"
        guests = [start(driver, sys.executable, "-c", loop.format(str(mark))) for mark in marks]
        wait_for(lambda: all(mark.exists() for mark in marks))
        for guest, weight in zip(guests, (400, 4), strict=True):
            driver.apply_cpu_settings(guest, PINNED)
            driver.apply_cpu_limits(guest, CpuLimits(weight))
        before = [usage(group_of(guest)) for guest in guests]
        wait_for(lambda: sum(usage(group_of(guest)) for guest in guests) - sum(before) > 4e6)
        great, small = (usage(group_of(guest)) - was for guest, was in zip(guests, before, strict=True))
        print(f"weights 400 to 4: {great / small:.1f} times the CPU time")
        assert great / small > 4  # an emulated machine is far from exact


class TestAdoptedGroup:
    """A guest that was adopted as all processes of a foreign group."""

    def test_all_its_processes_are_the_guest_and_its_group_is_left_as_it_is(self, driver, work, uid):
        group, processes = work
        (group.folder / "cpu.weight").write_text("55\n")
        guest = driver.adopt_guest(uid, "work", GuestSettings(vcpus=2), group.folder)
        assert guest.pid == processes[0].pid
        assert sorted(group_of(guest).process_ids()) == sorted(child.pid for child in processes)
        assert group.process_ids() == []
        assert (group.folder / "cpu.weight").read_text().strip() == "55"
        driver.apply_cpu_settings(guest, PINNED)
        assert {frozenset(os.sched_getaffinity(child.pid)) for child in processes} == {ONE}
        assert driver.apply_cpu_limits(guest, CpuLimits(200, 0.5))
        assert list(driver.guests()) == [guest]

    def test_an_adopted_group_is_found_by_the_next_driver(self, driver, make_driver, work, uid):
        group, _ = work
        guest = driver.adopt_guest(uid, "work", GuestSettings(), group.folder)
        assert list(make_driver().guests()) == [guest]

    def test_an_adopted_group_has_another_main_process_until_all_have_ended(
        self, driver, make_driver, work, uid
    ):
        group, (first, second) = work
        changes = queue.SimpleQueue()
        driver.watch_guests(changes.put)
        guest = driver.adopt_guest(uid, "work", GuestSettings(), group.folder)
        first.kill()
        first.wait()
        change = changes.get(timeout=SECONDS)
        assert (change.kind, change.guest.uuid, change.guest.pid) == (ChangeKind.CHANGED, uid, second.pid)
        assert list(driver.guests()) == [change.guest]
        assert second.pid in driver.thread_ids(guest)
        assert second.pid in driver.thread_ids(change.guest)
        assert list(make_driver().guests()) == [change.guest]
        second.kill()
        second.wait()
        change = changes.get(timeout=SECONDS)
        assert (change.kind, change.guest.pid) == (ChangeKind.STOPPED, second.pid)
        assert driver.guests() == []
        assert not group_of(guest).folder.exists()

    def test_a_main_process_that_ended_without_the_agent_has_an_heir(self, driver, make_driver, work, uid):
        group, (first, second) = work
        driver.adopt_guest(uid, "work", GuestSettings(), group.folder)
        first.kill()
        first.wait()
        (guest,) = make_driver().guests()
        assert (guest.uuid, guest.pid) == (uid, second.pid)

    def test_stop_ends_all_processes_of_an_adopted_group(self, driver, work, uid):
        group, processes = work
        guest = driver.adopt_guest(uid, "work", GuestSettings(), group.folder)
        driver.stop(guest, 0.5)
        assert [child.wait(SECONDS) for child in processes] == [-signal.SIGTERM] * 2
        assert driver.guests() == []
        assert not group_of(guest).folder.exists()

    def test_a_group_with_a_process_that_is_a_guest_already_is_refused(self, driver, work, uid):
        group, (first, _) = work
        other = str(uuid.uuid4())
        driver.adopt_guest(other, "first", GuestSettings(), first.pid)
        GuestCgroup(group.folder / "inner").add(first.pid)
        with pytest.raises(DriverError, match=f"pid {first.pid} is guest .*{other}.* already"):
            driver.adopt_guest(uid, "work", GuestSettings(), group.folder)
        GuestCgroup(group_of(*driver.guests()).folder).add(first.pid)

    def test_a_group_with_immovable_processes_is_left_as_it_was(self, driver, work, uid, monkeypatch):
        group, processes = work
        add, moved = GuestCgroup.add, []

        def one_only(self, pid):
            if self.folder.name.startswith("guest-"):
                if moved:
                    raise PermissionError(13, "Permission denied", str(self.folder))
                moved.append(pid)
            add(self, pid)

        monkeypatch.setattr(GuestCgroup, "add", one_only)
        with pytest.raises(DriverError, match="Permission denied"):
            driver.adopt_guest(uid, "work", GuestSettings(), group.folder)
        assert sorted(group.process_ids()) == sorted(child.pid for child in processes)
        assert driver.guests() == []
        assert [path.name for path in (group.folder.parent / "guests").glob("guest-*")] == []

    def test_a_group_that_cannot_be_a_guest_is_refused_with_the_reason(
        self, driver, tree, uid, started, tmp_path
    ):
        guest = start(driver)
        a_slice = GuestCgroup(tree.make("system.slice"))
        a_slice.add(started().pid)
        with_agent = GuestCgroup(tree.make("agent.service"))
        (tmp_path / "plain").mkdir()
        link = tmp_path / "link"
        link.symlink_to(group_of(guest).folder)
        own = next(
            (
                line[3:]
                for line in Path("/proc/self/cgroup").read_text().splitlines()
                if line.startswith("0::")
            ),
            "/",
        )
        with_agent.add(os.getpid())
        try:
            for folder, reason in {
                tree.folder / "none": "No such file",
                tmp_path / "plain": "not a group of cgroup v2"
                if cgroups.ROOT is None
                else "not in the hierarchy",
                tree.folder: "holds all guests",
                tree.folder / "guests": "holds all guests",
                group_of(guest).folder: f"belongs to guest {guest.uuid} already",
                link: f"belongs to guest {guest.uuid} already",
                a_slice.folder: "a slice of the system",
                tree.make("empty"): "no process in it",
                with_agent.folder: "the agent itself is in it",
            }.items():
                with pytest.raises(DriverError, match=f"group {folder} cannot be a guest: .*{reason}"):
                    driver.adopt_guest(uid, "x", GuestSettings(), folder)
        finally:
            if cgroups.ROOT is not None:
                (Path("/sys/fs/cgroup") / own.lstrip("/") / "cgroup.procs").write_text(str(os.getpid()))
        assert list(driver.guests()) == [guest]

    def test_a_group_that_was_left_behind_half_adopted_can_be_adopted(self, driver, work, uid, tree):
        group, processes = work
        behind = CgroupRoot(tree.folder / "guests").make_group(str(uuid.uuid4()))
        behind.take_processes(group)
        guest = driver.adopt_guest(uid, "work", GuestSettings(), behind.folder)
        assert sorted(group_of(guest).process_ids()) == sorted(child.pid for child in processes)
        behind.remove()

    def test_without_groups_of_their_own_guests_are_adopted_by_pid_only(self, work, uid, tmp_path):
        group, _ = work
        driver = ProcessDriver(tmp_path / "others")
        with pytest.raises(DriverError, match=r"guests have no groups of their own here \(\[cgroup\] root\)"):
            driver.adopt_guest(uid, "work", GuestSettings(), group.folder)


def limit_of(guest, name):
    return (group_of(guest).folder / f"memory.{name}").read_text().strip()


def io_of(guest, name):
    return (group_of(guest).folder / f"io.{name}").read_text().strip()


def score_of(pid):
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def usage(group):
    """The CPU time that a group has used, in microseconds."""
    return int(stat(group)["usage_usec"])


def used(group):
    """The cores that a group uses over several periods, by its counters, and the number of throttled
    periods.
    """
    before, since = stat(group), time.monotonic()
    time.sleep(4)
    after, until = stat(group), time.monotonic()
    cores = (int(after["usage_usec"]) - int(before["usage_usec"])) / 1e6 / (until - since)
    return cores, int(after["nr_throttled"]) - int(before["nr_throttled"])


def stat(group):
    return dict(line.split() for line in (group.folder / "cpu.stat").read_text().splitlines())


def pages(pid):
    """The number of a process's pages on each NUMA node (/proc/PID/numa_maps)."""
    found = {}
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        for field in line.split():
            node, _, count = field.partition("=")
            if node.startswith("N") and node[1:].isdigit():
                found[int(node[1:])] = found.get(int(node[1:]), 0) + int(count)
    return found


def large(found):
    """The NUMA nodes with more than a few pages of the process."""
    return {node for node, count in found.items() if count > 2000}
