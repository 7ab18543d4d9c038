"""Tests of realtime schedules: the threads that get them, schedules of other programs, refusals, and
removal.
"""

import errno
import os
import subprocess
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compute_agent.controllers.base import GuestTarget
from compute_agent.controllers.realtime import RealtimeController
from compute_agent.drivers import procfs
from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.model.guest import CpuAssignment
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import DriverError
from compute_agent.schedules import run_notes
from compute_agent.schedules.realtime import (
    NO_ROOM,
    NONE_HELD,
    NOT_ALLOWED,
    NOT_BOUND,
    RESET_USUAL,
    USUAL,
    KernelSchedules,
    ThreadSchedule,
    choose_threads,
    decide_schedules,
    read_throttle,
    realtime_schedule,
)
from compute_agent.schedules.run_notes import PRIORITIES_FILE, RunNote, RunNotesFile
from tests.compute_agent.builders import cpu_set
from tests.compute_agent.fakes import FakeDriver

OWN = realtime_schedule(5, in_turn=False)
NOVA = ThreadSchedule(os.SCHED_FIFO, 1)
OTHER_OWN, DEADLINE = realtime_schedule(9, in_turn=True), ThreadSchedule(6)
# A higher priority than the agent sets, with the flag that it sets.
RTKIT = ThreadSchedule(OWN.policy, 60)
RESET = ThreadSchedule(RESET_USUAL)
SCHEDULES = st.sampled_from(
    [USUAL, OWN, OTHER_OWN, NOVA, ThreadSchedule(os.SCHED_BATCH), DEADLINE, RTKIT, RESET]
)
PLACE = CpuAssignment((cpu_set(2), cpu_set(3)), cpu_set(0, 1), (2, 3))


@given(st.dictionaries(st.integers(1, 6), SCHEDULES), st.frozensets(st.integers(1, 8)), st.booleans())
@example({1: USUAL, 2: RESET}, frozenset({1}), False)
def test_schedules_of_others_stay_and_all_own_ones_are_as_wanted(present, wanted, noted):
    changes = decide_schedules(present, wanted, OWN, noted)
    after = present | changes
    assert changes.keys() <= present.keys()
    assert all(present[tid] != goal for tid, goal in changes.items())
    foreign = {
        tid
        for tid, has in present.items()
        if has in (NOVA, DEADLINE, RTKIT) or (not noted and has in (OWN, OTHER_OWN))
    }
    for tid, has in present.items():
        if tid in foreign or has.policy == os.SCHED_BATCH:
            assert after[tid] == has
        elif tid in wanted and not foreign:
            assert after[tid] == OWN
        else:
            assert after[tid] == (USUAL if noted or (wanted and not foreign) else has)
    assert not decide_schedules(after, wanted, OWN, noted or OWN in changes.values())


@pytest.mark.parametrize(
    ("threads", "place", "has_others", "chosen", "reason"),
    [
        ({7: cpu_set(2), 8: cpu_set(3)}, PLACE, True, {7, 8}, ""),
        ({7: cpu_set(2), 8: cpu_set(0)}, PLACE, True, {7}, ""),
        ({7: cpu_set(2), 8: cpu_set()}, PLACE, True, {7}, ""),
        # Pins come first.
        ({7: cpu_set(0, 1, 2, 3)}, PLACE, True, set(), ""),
        ({7: cpu_set(2)}, replace(PLACE, dedicated=()), True, set(), NONE_HELD),
        # Emulator threads on the guest's own CPUs would starve.
        ({7: cpu_set(2), 8: cpu_set(3)}, replace(PLACE, emulator_cpus=cpu_set(2, 3)), True, set(), NO_ROOM),
        ({7: cpu_set(2)}, replace(PLACE, emulator_cpus=cpu_set(2, 3)), True, {7}, ""),
        # All threads of a process are alike.
        ({7: cpu_set(2, 3)}, replace(PLACE, emulator_cpus=cpu_set(2, 3)), False, {7}, ""),
    ],
)
def test_threads_on_dedicated_cpus_alone_are_chosen(threads, place, has_others, chosen, reason):
    assert choose_threads(threads, place, has_others) == (chosen, reason)


@pytest.mark.parametrize(
    ("runtime", "period", "server", "release", "text"),
    [
        ("950000", "1000000", False, "6.11.4-1-generic", "50 ms in each 1000 ms"),
        ("950000", "1000000", False, "odd", "50 ms in each 1000 ms"),
        ("-1", "1000000", False, "6.1.0", ""),
        ("1000000", "1000000", False, "6.1.0", ""),
        ("950000", "1000000", True, "6.1.0", ""),
        # debugfs cannot be read.
        ("950000", "1000000", False, "6.12.95+deb12-amd64", ""),
        ("950000", "1000000", False, "7.0.0-rc1", ""),
        ("", "", False, "6.1.0", ""),
    ],
)
def test_the_kernels_limit_is_said(tmp_path, runtime, period, server, release, text):
    folder = tmp_path / "proc/sys/kernel"
    folder.mkdir(parents=True)
    (folder / "osrelease").write_text(f"{release}\n")
    if runtime:
        (folder / "sched_rt_runtime_us").write_text(runtime)
        (folder / "sched_rt_period_us").write_text(period)
    if server:
        (tmp_path / "sys/kernel/debug/sched/fair_server").mkdir(parents=True)
    found = read_throttle(tmp_path)
    assert text in found
    assert bool(text) == bool(found)


class FakeSchedules(KernelSchedules):
    def __init__(self):
        self.schedules, self.refusal, self.before_write = {}, None, lambda tid: None
        self.nices = {}

    def read_nice(self, tid):
        return self.nices.get(tid, 0)

    def write_nice(self, tid, nice):
        self.nices[tid] = nice

    def read(self, tid):
        return self.schedules.get(tid, USUAL)

    def write(self, tid, schedule):
        if self.refusal:
            raise self.refusal
        self.before_write(tid)
        self.schedules[tid] = schedule


class RealtimeHost:
    """A host with a driver and one guest, which has two threads on dedicated CPUs."""

    def __init__(self, monkeypatch, folder):
        self.folder = folder
        self.driver, self.schedules, self.lost = FakeDriver(range(4)), FakeSchedules(), []
        self.guest = self.driver.create_guest("a", "a", GuestSettings(vcpus=2, qos_class="RT"), ())
        self.threads = self.driver.affinities["a"]
        self.threads.update(zip(self.threads, PLACE.vcpu_cpus, strict=True))
        self.driver.vcpu_cpus["a"] = dict(enumerate(PLACE.vcpu_cpus))
        self.main = ProcessIdentity(self.guest.pid, 1, "boot")
        monkeypatch.setattr(procfs, "thread_affinity", self.threads.get)
        monkeypatch.setattr(procfs, "identify_process", {self.guest.pid: self.main}.get)

    def controller(self, **priorities):
        return RealtimeController(
            self.driver, priorities, self.store(), self.schedules, lambda: self.lost.append(1)
        )

    def store(self):
        return RunNotesFile(self.folder / PRIORITIES_FILE)

    def target(self, **settings):
        guest = replace(self.guest, settings=replace(self.guest.settings, **settings))
        return GuestTarget(guest, PLACE, frozenset(range(4)))

    def present(self):
        return {self.schedules.read(tid) for tid in self.threads}


@pytest.fixture
def host(monkeypatch, tmp_path):
    return RealtimeHost(monkeypatch, tmp_path)


def test_guest_cpus_get_the_priority_and_give_it_back(host):
    controller = host.controller(RT=5)
    [row] = controller.plan_changes([host.target()], ())
    assert (row.subject, row.change) == ("a", "2 threads -> realtime priority 5")
    assert controller.apply(host.target())
    assert host.present() == {OWN}
    assert not controller.apply(host.target())
    # Another class, and a reload: another controller finds the guest by its note.
    controller = host.controller(RT=5)
    controller.sync([host.target(qos_class="LS")], ())
    assert host.present() == {USUAL}
    assert host.lost == []


def test_a_class_with_a_priority_may_come_and_go(host):
    controller = host.controller(RT=5)
    for qos_class, schedule in (("LS", USUAL), ("RT", OWN), ("LS", USUAL)):
        controller.sync([host.target(qos_class=qos_class)], ())
        assert host.present() == {schedule}


def test_a_thread_id_of_another_thread_meanwhile_is_no_drift(host):
    controller = host.controller(RT=5)
    controller.sync([host.target()], ())
    tid, cpus = host.threads.popitem()
    controller.sync([host.target()], ())
    host.threads[tid], host.schedules.schedules[tid] = cpus, USUAL
    controller.sync([host.target()], ())
    assert (host.present(), host.lost) == ({OWN}, [])


def test_release_finds_the_guest_by_its_note(host):
    host.controller(RT=5).sync([host.target()], ())
    host.schedules.schedules[min(host.threads)] = USUAL
    [item] = host.controller().release([host.guest], frozenset())
    assert (item.kind, item.detail) == ("realtime", "1 threads")
    item.give_back()
    assert host.present() == {USUAL}
    assert host.store().kept_notes == {}
    assert not list(host.controller().release([host.guest], frozenset()))


def test_a_thread_that_lost_its_schedule_is_drift_and_a_new_one_is_not(host):
    controller = host.controller(RT=5)
    controller.sync([host.target()], ())
    host.threads[5000] = cpu_set(2)
    controller.sync([host.target()], ())
    assert (host.present(), host.lost) == ({OWN}, [])
    host.schedules.schedules[5000] = USUAL
    controller.sync([host.target()], ())
    assert (host.present(), host.lost) == ({OWN}, [1])


@pytest.mark.parametrize("main", [5, -5, 0])
def test_threads_born_with_a_priority_get_the_nice_value_that_they_did_not_inherit(host, main):
    # The flag SCHED_RESET_ON_FORK of the agent's schedules has this effect.
    threads, nices = list(host.threads), host.schedules.nices
    nices |= {threads[0]: main, threads[1]: 0}
    controller = host.controller(RT=5)
    controller.sync([host.target()], ())
    assert nices == {threads[0]: main, threads[1]: 0}, "the guest itself has chosen that"
    host.threads |= {5000: cpu_set(2), 5001: cpu_set(3)}
    nices[5001] = 7
    controller.sync([host.target()], ())
    assert (nices.get(5000, 0), nices[5001], nices[threads[1]]) == (main, 7, 0)
    host.threads[5002] = cpu_set(3)
    [item] = host.controller().release([host.guest], frozenset())
    item.give_back()
    assert nices.get(5002, 0) == main


def test_a_guest_of_novas_realtime_stays(host):
    host.schedules.schedules[max(host.threads)] = NOVA
    controller = host.controller(RT=5)
    controller.sync([host.target()], ())
    assert host.present() == {USUAL, NOVA}
    assert controller.refused == {}


def test_threads_that_cannot_be_told_apart_take_turns(host):
    host.driver.vcpu_cpus.clear()
    host.guest = replace(host.guest, cgroup=str(host.folder))
    controller = host.controller(RT=5)
    # Such a thread may bind itself to another CPU, unless its group has none.
    for cpus in (None, "", "0-3"):
        if cpus is not None:
            (host.folder / "cpuset.cpus").write_text(f"{cpus}\n")
        controller.sync([host.target()], ())
        assert host.present() == {USUAL}
        assert controller.refused == {"a": (f"realtime_priority: {NOT_BOUND}",)}
    (host.folder / "cpuset.cpus").write_text("2-3\n")
    controller.sync([host.target()], ())
    assert host.present() == {realtime_schedule(5, in_turn=True)}
    host.guest = replace(host.guest, cgroup="")
    controller.sync([host.target()], ())
    assert host.present() == {USUAL}


def test_priorities_of_another_program_with_the_flag_stay(host):
    host.schedules.schedules = dict.fromkeys(host.threads, OWN)
    controller = host.controller(RT=5)
    for qos_class in ("LS", "RT", "LS"):
        controller.sync([host.target(qos_class=qos_class)], ())
        assert (host.present(), host.store().kept_notes) == ({OWN}, {})
    assert not list(controller.release([host.guest], frozenset()))


def test_a_thread_that_gave_its_priority_up_has_kept_the_flag(host):
    controller = host.controller(RT=5)
    controller.sync([host.target()], ())
    host.schedules.schedules = dict.fromkeys(host.threads, RESET)
    controller.sync([host.target()], ())
    assert (host.present(), host.lost) == ({OWN}, [1, 1])
    host.schedules.schedules = dict.fromkeys(host.threads, RESET)
    controller.sync([host.target(qos_class="LS")], ())
    assert host.present() == {USUAL}


def test_a_note_is_kept_before_the_first_priority_and_until_the_last_is_lifted(host, monkeypatch):
    controller = host.controller(RT=5)
    with monkeypatch.context() as patch:
        patch.setattr(run_notes, "write_durably", full_disk)
        with pytest.raises(OSError, match="no space"):
            controller.apply(host.target())
        controller.sync([host.target()], ())
        assert "no space" in controller.refused["a"][0]
        assert host.present() == {USUAL}
    controller.sync([host.target()], ())
    host.schedules.refusal = PermissionError()
    controller.sync([host.target(qos_class="LS")], ())
    assert (host.present(), host.store().kept_notes) == ({OWN}, {"a": RunNote(host.main)})
    host.schedules.refusal = None
    controller.sync([host.target(qos_class="LS")], ())
    controller.sync([host.target(qos_class="LS")], ())
    assert (host.present(), host.store().kept_notes) == ({USUAL}, {})


def full_disk(path, content):
    raise OSError(errno.ENOSPC, "no space")


def test_a_stranger_with_the_id_of_an_ended_thread_keeps_its_schedule(host):
    ended = max(host.threads)

    def end_thread(tid):
        host.threads.pop(ended, None)

    host.schedules.before_write = end_thread
    host.controller(RT=5).sync([host.target()], ())
    assert host.schedules.read(ended) == USUAL
    assert host.present() == {OWN}


def test_refusals_are_said(host):
    controller = host.controller(RT=5)
    host.schedules.refusal = PermissionError()
    assert not controller.apply(host.target())
    assert controller.refused == {"a": (f"realtime_priority: {NOT_ALLOWED}",)}
    host.schedules.refusal = OSError("no")
    controller.sync([host.target()], ())
    assert controller.refused == {"a": ("realtime_priority: no",)}
    host.schedules.refusal = None
    assert controller.apply(host.target())
    assert controller.refused == {}


def test_a_guest_that_cannot_be_read_costs_no_other_its_priority(host, monkeypatch):
    controller, read = host.controller(RT=5), host.driver.vcpu_threads
    broken = GuestTarget(replace(host.guest, uuid="b"), PLACE, frozenset(range(4)))

    def read_threads(guest):
        if guest.uuid == "b":
            raise DriverError("libvirtd is away")
        return read(guest)

    monkeypatch.setattr(host.driver, "vcpu_threads", read_threads)
    controller.sync([broken, host.target()], ())
    assert host.present() == {OWN}
    assert controller.refused == {"b": ("realtime_priority: libvirtd is away",)}


def test_a_preserved_or_ended_guest_is_left_alone(host):
    controller = host.controller(RT=5)
    controller.sync([host.target(preserve=True)], ())
    assert not controller.apply(host.target(preserve=True))
    assert host.present() == {USUAL}
    host.driver.end(host.guest)
    controller.sync([host.target()], ())
    assert controller.refused == {}
    assert not list(controller.plan_changes([host.target()], ()))


def test_a_thread_of_this_kernel_gets_a_schedule_and_loses_it():
    kernel = KernelSchedules()
    assert kernel.read(1 << 22) is None
    # pid 0 is the calling thread.
    before = kernel.read(0)
    try:
        kernel.write(0, realtime_schedule(1, in_turn=True))
    except PermissionError:
        pytest.skip("it takes CAP_SYS_NICE")
    try:
        assert kernel.read(0) == realtime_schedule(1, in_turn=True)
    finally:
        kernel.write(0, before)
    assert kernel.read(0) == before
    with subprocess.Popen(["sleep", "60"]) as process:
        kernel.write_nice(process.pid, 7)
        assert kernel.read_nice(process.pid) == 7
        process.kill()
    assert kernel.read_nice(process.pid) is None
