"""Tests of helper processes of domains and of vhost workers: the agent finds exactly these, and moves
them.
"""

import contextlib
import errno
import itertools
import os
import shutil
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest

from compute_agent.drivers import procfs
from compute_agent.drivers.base import CpuSettings
from compute_agent.drivers.libvirt import helpers
from compute_agent.drivers.libvirt.driver import LibvirtDriver
from compute_agent.drivers.libvirt.helpers import HelperPins
from compute_agent.drivers.libvirt.qemu import QemuProcess
from compute_agent.drivers.libvirt.running_domain import DomainGroup, RunningDomain
from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import GuestSettings
from tests.waits import wait_for

ZERO, ONE, BOTH = frozenset({0}), frozenset({1}), frozenset({0, 1})

pytestmark = pytest.mark.skipif(not os.sched_getaffinity(0) >= BOTH, reason="needs CPUs 0 and 1")


@pytest.fixture
def start(tmp_path):
    """A function that starts processes with a given name and on given CPUs."""
    with contextlib.ExitStack() as stack:

        def run(name="swtpm", cpus=BOTH):
            program = tmp_path / name
            if not program.exists():
                shutil.copy(shutil.which("sleep"), program)
            child = stack.enter_context(subprocess.Popen([program, "60"]))
            stack.callback(child.wait)
            stack.callback(child.kill)
            wait_for(lambda: procfs.thread_name(child.pid, child.pid) == name[:15], "the program runs")
            os.sched_setaffinity(child.pid, cpus)
            return child.pid

        yield run


@pytest.fixture
def host(tmp_path, start, monkeypatch):
    """A domain with a sleeping process in place of QEMU, and the files of libvirt and of the kernel
    about it.
    """
    pid = start("qemu-system-x86", ONE)
    guest = Guest("a", "libvirt", "a", pid, GuestSettings())
    state, scope = tmp_path / "state", tmp_path / "scope"
    for folder in (state / "swtpm", scope / "emulator"):
        folder.mkdir(parents=True)
    known = RunningDomain(
        guest,
        QemuProcess(procfs.identify_process(pid), "qemu-system-x86"),
        "",
        SimpleNamespace(),
        SimpleNamespace(),
        number="7",
    )
    found = SimpleNamespace(known=known, state=state, now=0.0, groups={})
    monkeypatch.setattr("compute_agent.drivers.libvirt.running_domain.find_group", found.groups.get)
    monkeypatch.setattr(helpers, "find_group", found.groups.get)
    found.pins = HelperPins(state, lambda: found.now)

    def put(*tids):
        """Put tasks into the group of the main thread."""
        found.groups[pid] = DomainGroup((scope,), True)
        (scope / "emulator/cgroup.threads").write_text("".join(f"{tid}\n" for tid in (pid, *tids)))

    found.put = put
    return found


@pytest.fixture
def kernel_threads(host, monkeypatch):
    """A function that gives tasks the names of kernel threads, as children of kthreadd."""
    names = {}
    real = procfs.thread_name
    monkeypatch.setattr(procfs, "thread_name", lambda pid, tid: names.get(tid) or real(pid, tid))
    monkeypatch.setattr(procfs, "is_kernel_thread", names.__contains__)
    monkeypatch.setattr(helpers, "list_kernel_threads", lambda root: [str(tid) for tid in names])
    return names


def test_helpers_in_the_group_of_the_main_thread_are_moved(host, start):
    helper = start("virtiofsd-of-mine")
    host.put(helper)
    assert host.pins.read_affinity(host.known) == {helper: BOTH}
    assert host.pins.misplaced_tasks(host.known, ONE) == {helper: BOTH}
    assert host.pins.move_tasks(host.known, ONE) == 1
    assert os.sched_getaffinity(helper) == ONE
    assert host.pins.misplaced_tasks(host.known, ONE) == {}
    # Given back.
    assert host.pins.move_tasks(host.known, BOTH) == 1
    assert os.sched_getaffinity(helper) == BOTH
    assert os.sched_getaffinity(host.known.guest.pid) == ONE


def test_ids_of_another_namespace_and_of_ended_tasks_are_passed_over(host):
    host.put(0, 2**22 + 1)
    assert host.pins.read_affinity(host.known) == {}


def test_a_helper_that_was_plugged_in_later_is_known_by_its_pid_file(host, start):
    helper, other = start(), start("passt")
    host.put()
    (host.state / "swtpm/7-a-swtpm.pid").write_text(f"{helper}\n")
    (host.state / "8-b-net0-passt.pid").write_text(f"{other}\n")
    assert host.pins.move_tasks(host.known, ONE) == 1
    assert os.sched_getaffinity(helper) == ONE
    assert os.sched_getaffinity(other) == BOTH


def test_a_helper_that_starts_later_is_seen_later(host, start):
    assert host.pins.read_affinity(host.known) == {}
    helper = start()
    (host.state / "swtpm/7-a-swtpm.pid").write_text(f"{helper}\n")
    host.now += 5.0
    assert host.pins.read_affinity(host.known) == {helper: BOTH}


def test_a_pid_file_cannot_name_a_process_that_is_no_helper(host, start):
    pids = [start("sshd"), host.known.guest.pid, 2, 2**22 + 1]
    for number, pid in enumerate(pids):
        (host.state / f"swtpm/7-{number}.pid").write_text(f"{pid}\n")
    (host.state / "swtpm/7-text.pid").write_text("-1\n")
    (host.state / "swtpm/7-large.pid").write_text("9" * 5000)
    os.mkfifo(host.state / "swtpm/7-fifo.pid")
    (host.state / "swtpm/7-folder.pid").mkdir()
    (host.state / "swtpm/7-link.pid").symlink_to("/proc/self/stat")
    assert host.pins.read_affinity(host.known) == {}


def test_a_pid_file_cannot_name_a_helper_of_another_domain(host, start, tmp_path):
    theirs, claimed = start(), start("virtiofsd")
    host.put()
    host.groups[theirs] = DomainGroup((tmp_path / "other",), True)
    (host.state / "swtpm/7-a-swtpm.pid").write_text(f"{theirs}\n")
    for number in (7, 8):
        (host.state / f"{number}-a-fs0.pid").write_text(f"{claimed}\n")
    assert host.pins.read_affinity(host.known) == {}


def test_a_domain_that_has_ended_has_no_helpers(host, start):
    helper = start()
    host.put(helper)
    identity = host.known.process.identity
    host.known.process = QemuProcess(replace(identity, start_time=identity.start_time + 1), "qemu")
    assert host.pins.read_affinity(host.known) == {}


@pytest.mark.parametrize("has_group", [True, False])
def test_workers_of_vhost_are_moved_and_other_kernel_threads_stay(host, start, kernel_threads, has_group):
    worker, other, foreign, rest = (start(f"kernel-{number}") for number in range(4))
    kernel_threads |= {
        worker: f"vhost-{host.known.guest.pid}",
        other: f"kvm-pit/{host.known.guest.pid}",
        rest: "vhost-",
    }
    if has_group:
        host.put(worker, other, rest)
    else:
        kernel_threads[foreign] = f"vhost-{foreign}"
    assert host.pins.move_tasks(host.known, ONE) == 1
    assert [os.sched_getaffinity(tid) for tid in (worker, other, foreign, rest)] == [ONE, BOTH, BOTH, BOTH]


def test_a_process_with_the_name_of_a_worker_is_none(host, start, kernel_threads, monkeypatch):
    kernel_threads[start()] = f"vhost-{host.known.guest.pid}"
    monkeypatch.setattr(procfs, "is_kernel_thread", lambda pid: False)
    assert host.pins.read_affinity(host.known) == {}


def test_a_worker_that_is_older_than_its_process_is_of_an_earlier_one(
    host, start, kernel_threads, monkeypatch
):
    worker = start()
    kernel_threads[worker] = f"vhost-{host.known.guest.pid}"
    assert host.pins.read_affinity(host.known).keys() == {worker}
    real = procfs.identify_process

    def identify(pid):
        return replace(real(pid), start_time=0) if pid == worker else real(pid)

    monkeypatch.setattr(procfs, "identify_process", identify)
    assert host.pins.read_affinity(host.known) == {}


def test_a_task_that_has_ended_is_not_confused_with_the_next_one_of_its_id(host, start, monkeypatch):
    helper, real = start(), procfs.is_alive
    host.put(helper)
    # The task is found alive, and has ended before it is moved.
    answers = itertools.cycle([True, False])
    monkeypatch.setattr(procfs, "is_alive", lambda one: next(answers) if one.pid == helper else real(one))
    assert host.pins.move_tasks(host.known, ONE) == 0
    assert os.sched_getaffinity(helper) == BOTH


def test_a_helper_that_cannot_be_moved_is_reported_and_not_tried_again(host, start, monkeypatch):
    helper = start()
    host.put(helper)
    calls = []

    def refuse(tid, cpus):
        calls.append(cpus)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_setaffinity", refuse)
        # The groups of the domain may not allow the CPUs yet.
        assert host.pins.move_tasks(host.known, ONE, is_final=False) == 0
        assert host.pins.misplaced_tasks(host.known, ONE) == {helper: BOTH}
        assert host.pins.list_stuck(host.known) == ()
        assert host.pins.move_tasks(host.known, ONE) == 0
        assert host.pins.misplaced_tasks(host.known, ONE) == {}
        assert host.pins.move_tasks(host.known, ONE) == 0
        assert calls == [ONE, ONE]
    assert host.pins.list_stuck(host.known) == (
        f"its helper swtpm ({helper}) stays on CPUs 0-1: Invalid argument",
    )
    # Other CPUs are tried.
    assert host.pins.move_tasks(host.known, ZERO) == 1
    assert os.sched_getaffinity(helper) == ZERO


def test_fewer_cpus_than_wanted_are_no_fault(host, start, monkeypatch):
    helper = start("swtpm", ONE)
    host.put(helper)
    # In a control group without other CPUs, the kernel also ignores the call.
    monkeypatch.setattr(os, "sched_setaffinity", lambda tid, cpus: None)
    assert host.pins.move_tasks(host.known, BOTH) == 0
    assert host.pins.misplaced_tasks(host.known, BOTH) == {}
    assert host.pins.list_stuck(host.known) == ()


class TestRealDomains:
    """Real domains with sleeping processes as their helpers."""

    @pytest.fixture
    def driver(self, libvirtd):
        state = libvirtd.folder / "root/run/libvirt/qemu"
        driver = LibvirtDriver(libvirtd.uri, state_folder=state if libvirtd.is_system else state / "run")
        yield driver
        driver.close()

    def test_a_helper_goes_with_the_emulator(self, libvirtd, driver, start):
        domain = libvirtd.run()
        [guest] = wait_for(driver.guests, "the guest is seen")
        helper = start()
        (libvirtd.folder / f"root/run/libvirt/qemu/{domain.ID()}-a-swtpm.pid").write_text(f"{helper}\n")
        self.check_moves(driver, guest, helper)

    def test_a_process_in_the_group_of_the_emulator_goes_with_it(self, libvirtd, driver, start):
        if not libvirtd.has_cgroups:
            pytest.skip("guests have no groups here")
        libvirtd.run()
        [guest] = wait_for(driver.guests, "the guest is seen")
        helper = start("some-helper")
        for line in procfs.read_text(f"/proc/{guest.pid}/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            for name in {"cpu", "cpuset"} & set(controllers.split(",")):
                with open(f"/sys/fs/cgroup/{name}{path}/tasks", "w") as file:
                    file.write(f"{helper}\n")
        self.check_moves(driver, guest, helper)

    def check_moves(self, driver, guest, helper):
        """Check that the helper moves to the CPUs of the emulator threads."""
        for emulator in (ONE, ZERO, BOTH):
            settings = CpuSettings((ZERO, ONE), emulator)
            assert helper in driver.misplaced_threads(guest, settings)
            driver.apply_cpu_settings(guest, settings)
            assert os.sched_getaffinity(helper) == emulator
            assert driver.helper_affinity(guest) == {helper: emulator}
            assert driver.misplaced_threads(guest, settings) == {}
        assert driver.stuck_helpers(guest) == ()

    def test_emulator_threads_are_moved_and_have_the_pins_of_the_definition_again(
        self, libvirtd, driver, start
    ):
        pins = "<cputune><emulatorpin cpuset='1'/></cputune>"
        xml = libvirtd.xml(vcpus=2).replace("<os>", f"{pins}<os>")
        domain = libvirtd.connection.defineXML(xml)
        domain.create()
        [guest] = wait_for(driver.guests, "the guest is seen")
        wait_for(lambda: len(driver.vcpu_affinity(guest)) == 2, "the threads have names")
        helper = start("swtpm", ONE)
        (libvirtd.folder / f"root/run/libvirt/qemu/{domain.ID()}-a-swtpm.pid").write_text(f"{helper}\n")
        before = driver.emulator_threads(guest)
        iothreads = {tid for tid in before if procfs.thread_name(guest.pid, tid) == "IO iothread1"}
        vcpus = driver.vcpu_affinity(guest)
        assert {cpus for tid, cpus in before.items() if tid not in iothreads} == {ONE}
        assert driver.moved_emulator(guest, BOTH) == {}

        assert driver.move_emulator(guest, before, ZERO) > 0
        after = driver.emulator_threads(guest)
        # The definition has no pin of the I/O thread that it could get back.
        assert {cpus for tid, cpus in after.items() if tid not in iothreads} == {ZERO}
        assert {after[tid] for tid in iothreads} == {before[tid] for tid in iothreads}
        assert driver.vcpu_affinity(guest) == vcpus
        assert domain.emulatorPinInfo() == (True, False)
        assert domain.emulatorPinInfo(libvirtd.libvirt.VIR_DOMAIN_AFFECT_CONFIG) == (False, True)

        assert driver.moved_emulator(guest, BOTH).keys() == before.keys() - iothreads - {helper}
        driver.restore_emulator(guest, BOTH)
        given_back = driver.emulator_threads(guest)
        assert given_back.pop(helper) == BOTH
        assert given_back == {tid: cpus for tid, cpus in before.items() if tid != helper}
        assert driver.moved_emulator(guest, BOTH) == {}
