"""Tests of guests in cgroup v2 groups of their own, on the kernel's cgroup file system if there is one."""

import os
import queue
import signal
import subprocess
import uuid
from pathlib import Path

import pytest

from compute_agent.drivers import cgroup, procfs
from compute_agent.drivers.base import CpuLimits, CpuSettings
from compute_agent.drivers.cgroup import CgroupRoot, GuestCgroup
from compute_agent.drivers.foreign.table import UnfitSubjectError, group_members
from compute_agent.drivers.processes.driver import ProcessDriver
from compute_agent.host import kernel_files
from compute_agent.model.guest_settings import GuestSettings

ALL = frozenset(os.sched_getaffinity(0))
ONE = frozenset({min(ALL)})


def mount_point():
    """The folder where cgroup v2 is mounted; None if it is not mounted."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        fields = line.split()
        if fields[2] == "cgroup2" and os.access(fields[1], os.W_OK):
            return Path(fields[1])
    return None


def make_nested(folder, depth):
    """Make folders below each other; their paths may be longer than the kernel takes."""
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("g", dir_fd=descriptor)
        inner = os.open("g", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)


@pytest.fixture
def root():
    mount = mount_point()
    if mount is None:
        pytest.skip("there is no writable cgroup v2 file system")
    folder = mount / f"test-{uuid.uuid4()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"groups cannot be made: {error}")
    yield CgroupRoot.open(folder)
    for group in folder.iterdir():
        if group.is_dir():
            GuestCgroup(group).remove()
    folder.rmdir()


@pytest.fixture
def driver(tmp_path, root):
    driver = ProcessDriver(tmp_path, root)
    yield driver
    driver.close()


def run(driver, *command):
    uid = str(uuid.uuid4())
    guest = driver.create_guest(uid, uid, GuestSettings(), command)
    driver.apply_cpu_settings(guest, CpuSettings((ONE,), ONE))
    driver.release(guest)
    return guest


def group_of(root, guest):
    return GuestCgroup(root.folder / f"guest-{guest.uuid}")


def test_a_guest_is_in_a_group_of_its_own_and_pinned(driver, root):
    guest = run(driver, "sleep", "60")
    assert group_of(root, guest).process_ids() == [guest.pid]
    assert driver.observed_cpus(guest) == ONE


def test_the_group_goes_with_the_guest_and_all_its_processes(driver, root):
    changes = queue.SimpleQueue()
    driver.watch_guests(changes.put)
    guest = run(driver, "sh", "-c", "setsid -f sleep 60; sleep 60")
    while len(processes := group_of(root, guest).process_ids()) < 2:
        pass
    os.kill(guest.pid, signal.SIGKILL)
    changes.get(timeout=10)
    assert not group_of(root, guest).folder.exists()
    assert [pid for pid in processes if procfs.identify_process(pid)] == []


def test_a_process_that_left_the_family_is_pinned_with_its_group(driver, root):
    guest = run(driver, "sh", "-c", "setsid -f sleep 60; exec sleep 61")
    while len(group_of(root, guest).process_ids()) < 2 or procfs.command_line(guest.pid) != ("sleep", "61"):
        pass
    assert driver.apply_cpu_settings(guest, CpuSettings((ALL,), ALL)) == (2 if ALL != ONE else 0)


def test_a_discarded_guest_leaves_no_group(driver, root):
    uid = str(uuid.uuid4())
    guest = driver.create_guest(uid, uid, GuestSettings(), ("sleep", "60"))
    driver.discard(guest)
    assert not group_of(root, guest).folder.exists()


def test_a_guest_that_ended_meanwhile_leaves_no_group(driver, root, tmp_path):
    guest = run(driver, "sleep", "60")
    os.kill(guest.pid, signal.SIGKILL)
    os.waitpid(guest.pid, 0)
    assert ProcessDriver(tmp_path, root).guests() == []
    assert not group_of(root, guest).folder.exists()


@pytest.mark.parametrize("content", [None, "cgroup.procs"], ids=["absent", "not a group"])
def test_without_a_group_as_root_guests_are_pinned_by_affinity(tmp_path, caplog, content):
    folder = tmp_path / "cgroup"
    if content is not None:
        folder.mkdir()
        (folder / content).touch()
    assert CgroupRoot.open(folder) is None
    assert "pinned by affinity instead" in caplog.text


class TestFakeTree:
    """Writes of the driver into an ordinary folder that stands for the cgroup file system."""

    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "cgroup.controllers").write_text("cpuset cpu pids\n")
        (tmp_path / "cgroup.subtree_control").write_text("cpu\n")
        (tmp_path / "cgroup.procs").touch()
        return tmp_path

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
    @pytest.mark.parametrize("mode", [0o755, 0o777])
    def test_a_root_in_which_others_could_put_processes_is_not_used(self, folder, mode, caplog):
        folder.chmod(mode)
        if mode == 0o755:
            os.chown(folder, 65534, -1)
        assert CgroupRoot.open(folder) is None
        assert "pinned by affinity instead" in caplog.text
        assert str(folder) in caplog.text

    def test_controllers_that_are_offered_are_handed_down(self, folder):
        CgroupRoot.open(folder)
        assert (folder / "cgroup.subtree_control").read_text() == "+cpuset"

    def test_cpus_and_memory_nodes_are_written_where_they_differ(self, folder):
        group = CgroupRoot.open(folder).make_group("g")
        (group.folder / "cpuset.cpus").write_text("0-3")
        (group.folder / "cpuset.mems").write_text("\n")
        group.confine_cpus(frozenset({0, 1, 2, 3}))
        group.bind_memory(frozenset())
        assert (group.folder / "cpuset.cpus").read_text() == "0-3"
        assert (group.folder / "cpuset.mems").read_text() == "\n"
        group.confine_cpus(frozenset({1, 3}))
        group.bind_memory(frozenset({0}))
        assert (group.folder / "cpuset.cpus").read_text() == "1,3\n"
        assert (group.folder / "cpuset.mems").read_text() == "0\n"
        assert group.memory_nodes() == {0}

    def test_limits_are_written_where_they_differ(self, folder):
        group = CgroupRoot.open(folder).make_group("g")
        weight, maximum = group.folder / "cpu.weight", group.folder / "cpu.max"
        weight.write_text("100")
        maximum.write_text("max 100000")
        has = group.cpu_limits()
        assert has == CpuLimits(100)
        group.limit_cpu(has, CpuLimits(100))
        assert (weight.read_text(), maximum.read_text()) == ("100", "max 100000")
        group.limit_cpu(has, CpuLimits(300, 0.5))
        assert (weight.read_text(), maximum.read_text()) == ("300\n", "50000 100000\n")
        group.limit_cpu(group.cpu_limits(), CpuLimits(quota=1e-9))
        assert (weight.read_text(), maximum.read_text()) == ("300\n", "1000 100000\n")
        group.limit_cpu(group.cpu_limits(), CpuLimits())
        assert maximum.read_text() == "max 100000\n"

    def test_without_the_controllers_nothing_is_written(self, folder):
        group = CgroupRoot.open(folder).make_group("g")
        group.confine_cpus(frozenset({1}))
        group.bind_memory(frozenset({1}))
        assert list(group.folder.iterdir()) == []
        assert group.memory_nodes() is None
        assert group.cpu_limits() is None


class TestSubgroups:
    """Groups that a guest makes below its own group."""

    def test_processes_of_all_subgroups_are_found_parents_first(self, tmp_path):
        for number, name in enumerate(("", "a", "a/b", "c")):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "cgroup.procs").write_text(f"{number}\n")
        found = GuestCgroup(tmp_path).process_ids()
        assert sorted(found) == [0, 1, 2, 3]
        assert found[0] == 0
        assert found.index(1) < found.index(2)

    def test_a_guest_that_nests_groups_without_end_does_no_harm(self, tmp_path):
        (tmp_path / "cgroup.procs").write_text("7\n")
        try:
            make_nested(tmp_path, 3000)
            assert GuestCgroup(tmp_path).process_ids() == [7]
            assert GuestCgroup(tmp_path).process_ids(all_groups=True) == [7]
        finally:
            subprocess.run(["rm", "-r", tmp_path / "g"], check=True)

    def test_deep_groups_are_left_out_with_a_warning(self, tmp_path, caplog):
        make_nested(tmp_path, cgroup.MAX_DEPTH + 3)
        folder = tmp_path
        for number in range(1, cgroup.MAX_DEPTH + 3):
            folder = folder / "g"
            (folder / "cgroup.procs").write_text(f"{number}\n")
        assert GuestCgroup(tmp_path).process_ids() == list(range(1, cgroup.MAX_DEPTH + 1))
        assert "levels of groups below it" in caplog.text
        assert len(GuestCgroup(tmp_path).process_ids(all_groups=True)) == cgroup.MAX_DEPTH + 2

    def test_the_agent_reads_a_bounded_number_of_groups_and_warns_once(self, tmp_path, monkeypatch, caplog):
        monkeypatch.setattr(cgroup, "MAX_GROUPS", 3)
        for number in range(6):
            (tmp_path / str(number)).mkdir()
            (tmp_path / str(number) / "cgroup.procs").write_text(f"{number}\n")
        group = GuestCgroup(tmp_path)
        for _ in range(2):
            assert len(group.process_ids()) == 2
        assert caplog.text.count("has more than 3 groups or 32 levels of groups below it") == 1

    def test_members_beyond_the_bound_are_found_without_reading_their_groups(self, tmp_path, monkeypatch):
        """A guest cannot escape its limits by thousands of groups, and the agent does not read them."""
        monkeypatch.setattr(cgroup, "MAX_GROUPS", 3)
        read, reads = kernel_files.read, []
        monkeypatch.setattr(
            kernel_files, "read", lambda path, *limit: reads.append(path) or read(path, *limit)
        )
        monkeypatch.setattr(procfs, "all_pids", lambda: [1, 7, 8])
        paths = {7: "/guest/99", 8: "/guest/98/deep", 1: "/init.scope"}
        monkeypatch.setattr(procfs, "cgroup_path", lambda pid: paths.get(pid, "/other"))
        (tmp_path / "cgroup.controllers").touch()
        guest = tmp_path / "guest"
        for number in range(100):
            (guest / str(number)).mkdir(parents=True)
            (guest / str(number) / "cgroup.procs").touch()
        (guest / "cgroup.procs").write_text("5\n")
        assert group_members(tmp_path, guest, 0) == [5]
        assert group_members(tmp_path, guest, 7) == [5, 7]
        assert group_members(tmp_path, guest, 1) == [5]
        (guest / "cgroup.procs").write_text("")
        (guest / "cgroup.events").write_text("populated 0\nfrozen 0\n")
        assert group_members(tmp_path, guest, 0) == []
        (guest / "cgroup.events").write_text("populated 1\nfrozen 0\n")
        assert group_members(tmp_path, guest, 0) == [7, 8]
        assert len(reads) == 5 * cgroup.MAX_GROUPS
        paths[os.getpid()] = "/guest/97"
        with pytest.raises(UnfitSubjectError, match="the agent itself is in it"):
            group_members(tmp_path, guest, 7)
