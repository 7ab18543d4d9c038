"""Tests that masks match the demands, on files that answer as kernels do, and get their original content
back.
"""

import contextlib
import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from compute_agent.isolation.decision import KERNEL_MANAGED, NO_SINK, HeldCpus, IsolationDemand
from compute_agent.isolation.facts import DEFAULT_MASK, WATCHDOG_MASK, WORKQUEUE_MASK, MaskReader
from compute_agent.isolation.originals import OriginalsFile
from compute_agent.isolation.shell import HostIsolator, MaskOwnership, stuck_sentences
from tests.compute_agent.isolation.fake_kernel import BOOT, IsolationHost, Killed

NODES = {0: frozenset(range(4)), 1: frozenset(range(4, 8))}
DEDICATED = frozenset({2, 3, 6, 7})
RPS = "sys/class/net/eth0/queues/rx-0/rps_cpus"
NOTHING = IsolationDemand((), DEDICATED, NODES)


def demand(*cpus, others=(), kept=(), pid=0):
    guests = [HeldCpus("quiet", frozenset(cpus), True, pid)] if cpus else []
    guests += [HeldCpus("other", frozenset(others))] if others else []
    return IsolationDemand(tuple(guests), DEDICATED, NODES, frozenset(kept))


@pytest.fixture
def host(tmp_path):
    """A host with CPUs 0-1 and 4-5 shared. One interrupt may use all CPUs, each CPU has an interrupt of its
    own, and one interrupt may use CPUs 2 to 4.
    """
    host = IsolationHost(tmp_path)
    host.kernel.add_interrupt(20, "ahci")
    for cpu in range(8):
        host.kernel.add_interrupt(30 + cpu, f"eth0-rx-{cpu}", {cpu}, node=cpu // 4)
    host.kernel.add_interrupt(40, "eth1", {2, 3, 4}, node=0)
    host.kernel.add_queue("eth0", 0, {2, 4})
    host.kernel.add_queue("eth0", 1)
    return host


def irq_masks(host):
    return {int(path.split("/")[2]): cpus for path, cpus in host.kernel.masks().items() if "_list" in path}


def test_masks_leave_quiet_cpus_for_sinks_of_their_node_and_others_stay(host):
    status = host.bring_about(demand(2, 3, 6))
    assert status.stuck == ()
    assert irq_masks(host) == {
        20: {0, 1, 4, 5},
        **{30 + cpu: {cpu} for cpu in (0, 1, 4, 5, 7)},
        # The CPUs are of their own node, first the CPU with fewer interrupts, and the two interrupts are not
        # on one CPU.
        32: {1},
        33: {0},
        36: {4},
        40: {4},
    }
    masks = host.kernel.masks()
    assert masks[DEFAULT_MASK] == masks[WORKQUEUE_MASK] == masks[WATCHDOG_MASK] == {0, 1, 4, 5}
    assert masks[RPS] == {4}
    assert (status.quiet, host.count_changes()) == ({2, 3, 6}, 10)


def test_a_host_without_a_quiet_guest_reads_and_writes_no_mask(host, monkeypatch):
    monkeypatch.setattr(host.kernel, "read_facts", None)
    assert host.bring_about(NOTHING).quiet == frozenset()
    assert host.kernel.writes == []
    assert not host.file.exists()


def test_a_second_look_writes_nothing(host):
    host.bring_about(demand(2))
    host.kernel.writes.clear()
    before = host.file.stat().st_mtime_ns
    host.bring_about(demand(2))
    assert host.kernel.writes == []
    assert host.file.stat().st_mtime_ns == before


def test_all_masks_have_their_former_bytes_when_the_guest_has_ended(host):
    before = host.kernel.texts()
    host.bring_about(demand(2, 3, 6, 7))
    assert host.kernel.texts() != before
    host.bring_about(NOTHING)
    assert host.count_changes() == 0
    assert host.kernel.texts() == before
    assert host.kept().masks == {}


def test_a_guest_that_leaves_gives_back_what_no_other_guest_needs(host):
    before = host.kernel.masks()
    host.bring_about(demand(2, 3, 6))
    host.bring_about(demand(2))
    masks = host.kernel.masks()
    assert masks[host.kernel.irq(36)] == before[host.kernel.irq(36)]
    assert masks[host.kernel.irq(33)] == {3}
    assert 2 not in masks[host.kernel.irq(32)]


@pytest.mark.parametrize("version", [(6, 1), (6, 8), (6, 12), (7, 0)])
def test_managed_interrupts_are_left_and_said_and_not_tried_again(tmp_path, version):
    host = IsolationHost(tmp_path, version=version)
    host.kernel.add_interrupt(50, "nvme0q3", {2}, managed=True)
    host.kernel.add_interrupt(51, "nvme0q4", {3}, managed=True)
    host.bring_about(demand(2))
    writes = len(host.kernel.writes)
    status = host.bring_about(demand(2))
    assert stuck_sentences(status.stuck) == (f"interrupt 50 (nvme0q3): {KERNEL_MANAGED}",)
    assert len(host.kernel.writes) == writes
    assert [path for path, _ in host.kernel.writes].count(host.kernel.irq(50)) == (version < (6, 11))
    assert host.bring_about(NOTHING).stuck == ()
    assert host.kept().masks == {}


@pytest.mark.parametrize(
    ("error", "reason"),
    [(OSError(errno.EBUSY, "busy"), "Device or resource busy"), (None, "the kernel has 2-4 instead")],
)
def test_an_interrupt_that_does_not_move_for_now_is_said_and_tried_again(host, monkeypatch, error, reason):
    write = host.kernel.write_mask

    def write_mask(path, text, names=""):
        if path != host.kernel.irq(40):
            write(path, text, names)
        elif error is not None:
            raise error

    with monkeypatch.context() as patch:
        patch.setattr(host.kernel, "write_mask", write_mask)
        [stuck] = host.bring_about(demand(2)).stuck
    assert (stuck.mask.in_words, stuck.reason) == ("interrupt 40 (eth1)", reason)
    # The interrupt has the whole mask, and fires on one CPU of it.
    assert stuck.cpus == host.kernel.effective(40) & {2}
    assert host.bring_about(demand(2)).stuck == ()
    assert not irq_masks(host)[40] & {2}


def test_a_cpu_without_vectors_is_passed_over(tmp_path):
    host = IsolationHost(tmp_path, vectors=2)
    for number in (20, 21):
        host.kernel.add_interrupt(number, f"a{number}", {0})
    host.kernel.add_interrupt(22, "b", {2}, node=0)
    host.kernel.put("proc/irq/20/effective_affinity_list", "")  # so that the agent cannot know
    host.kernel.add_interrupt(23, "c", {0})
    assert host.bring_about(demand(2)).stuck == ()
    assert irq_masks(host)[22] == {1}


def test_an_interrupt_stays_where_no_cpu_is_left_for_it(host):
    everything = frozenset(range(8))
    status = host.bring_about(
        IsolationDemand((HeldCpus("a", frozenset({2, 3}), True), HeldCpus("b", everything - {2, 3})))
    )
    assert {one.reason for one in status.stuck} == {NO_SINK}
    assert irq_masks(host)[32] == {2}


def test_a_free_dedicated_cpu_takes_interrupts_only_until_a_guest_holds_it(tmp_path):
    host = IsolationHost(tmp_path, cpus=4)
    host.kernel.add_interrupt(30, "eth0", {2})

    def held(*others):
        guests = (HeldCpus("q", frozenset({2}), True), HeldCpus("o", frozenset(others)))
        return IsolationDemand(guests, frozenset(range(4)))

    host.bring_about(held(0))
    assert irq_masks(host)[30] == {1}
    host.bring_about(held(0, 1))
    assert irq_masks(host)[30] == {3}


def test_new_interrupts_and_reset_devices_are_found_and_get_the_former_default_back(host):
    before = host.kernel.texts()
    host.bring_about(demand(2, 3))
    host.kernel.add_interrupt(60, "eth2")
    host.kernel.add_interrupt(61, "eth2-rx-0", {3}, node=0)
    host.kernel.reset_interrupt(37)
    host.bring_about(demand(2, 3))
    assert not irq_masks(host)[61] & {2, 3}
    host.bring_about(NOTHING)
    everywhere = {host.kernel.irq(60): "0-7", host.kernel.irq(37): "0-7", host.kernel.irq(61): "3"}
    assert host.kernel.texts() == before | everywhere
    assert host.drifts == 0


def test_a_number_that_another_device_has_now_does_not_get_the_original_of_the_former(host):
    host.bring_about(demand(2))
    host.kernel.remove_interrupt(32)
    host.kernel.add_interrupt(32, "usb", {5})
    host.bring_about(NOTHING)
    assert irq_masks(host)[32] == {5}


def test_a_mask_of_another_program_is_the_original_from_then_on_and_repaired_if_it_touches(host):
    host.bring_about(demand(2))
    host.kernel.change(host.kernel.irq(20), {2, 4})
    host.kernel.change(host.kernel.irq(36), {5})
    host.kernel.change(WORKQUEUE_MASK, {0, 2})
    host.bring_about(demand(2))
    assert (irq_masks(host)[20], irq_masks(host)[36]) == ({4}, {5})
    assert host.kernel.masks()[WORKQUEUE_MASK] == {0}
    assert host.drifts == 2
    host.bring_about(NOTHING)
    assert (irq_masks(host)[20], irq_masks(host)[36]) == ({2, 4}, {5})
    assert host.kernel.masks()[WORKQUEUE_MASK] == {0, 2}


def test_a_sink_that_goes_offline_costs_no_original(host):
    host.bring_about(demand(2))
    assert irq_masks(host)[32] == {1}
    host.kernel.set_online({0, 2, 3, 4, 5, 6, 7})
    host.bring_about(demand(2))
    assert irq_masks(host)[32] == {0}
    host.bring_about(NOTHING)
    assert irq_masks(host)[32] == {2}


def test_the_interrupts_of_a_passthrough_device_go_to_its_own_guest(host):
    host.kernel.add_interrupt(70, "vfio-msix[0](0000:3b:00.0)", node=0)
    host.kernel.add_interrupt(71, "vfio-msix[0](0000:5e:00.0)", {2, 3}, node=0)
    devices = host.kernel.root / "sys/kernel/iommu_groups/12/devices"
    devices.mkdir(parents=True)
    (devices / "0000:3b:00.0").mkdir()
    descriptors = host.kernel.root / "proc/77/fd"
    descriptors.mkdir(parents=True)
    (descriptors / "9").symlink_to("/dev/vfio/12")
    host.bring_about(demand(2, 3, pid=77))
    assert (irq_masks(host)[70], irq_masks(host)[71]) == ({2, 3}, {0})
    host.bring_about(NOTHING)
    assert (irq_masks(host)[70], irq_masks(host)[71]) == (set(range(8)), {2, 3})
    # A file of the same name is no device: interrupts of a device do not come to this guest.
    host.kernel.devices.clear()
    host.bring_about(demand(2, 3, pid=77))
    assert not irq_masks(host)[70] & {2, 3}


def test_a_device_is_told_from_a_file_of_the_same_name(tmp_path):
    reader = MaskReader(Path("/"))
    with open("/dev/null") as device, open(tmp_path / "null", "w") as file:
        found = [reader._is_device(f"proc/self/fd/{each.fileno()}", "/dev/null") for each in (device, file)]
        assert found == [True, False]
        assert not reader._is_device(f"proc/self/fd/{device.fileno()}", "/dev/zero")
    assert not reader._is_device("proc/self/fd/1", "/dev/missing")


def test_only_one_agent_of_a_host_changes_masks(tmp_path):
    """Two agents have different state folders, but the same kernel and the same folder of locks."""
    first, second = IsolationHost(tmp_path), tmp_path / "second.json"
    locks = MaskOwnership(tmp_path), MaskOwnership(tmp_path)
    stores = first.store, OriginalsFile(second)
    one, two = (
        HostIsolator(first.kernel, store, ownership=lock) for store, lock in zip(stores, locks, strict=True)
    )
    before = first.kernel.texts()
    one.bring_about(demand(2))
    quiet = first.kernel.texts()
    status = two.bring_about(demand(3))
    [sentence] = status.refused["quiet"]
    assert sentence == f"another agent has quiet CPUs on this host (pid {os.getpid()})"
    assert (first.kernel.texts(), second.exists(), status.quiet) == (quiet, False, frozenset())
    # Without a wish the second one does not look at the lock.
    assert two.bring_about(NOTHING).refused == {}
    one.bring_about(NOTHING)
    assert first.kernel.texts() == before
    assert two.bring_about(demand(3)).refused == {}
    assert "another agent" in one.bring_about(demand(2)).refused["quiet"][0]
    # A reload in the same process has the same lock.
    again = HostIsolator(first.kernel, stores[1], ownership=locks[1])
    again.bring_about(NOTHING)
    assert first.kernel.texts() == before
    locks[0].give_up()
    locks[1].give_up()


def test_an_agent_names_the_other_agent_that_keeps_it_from_restoring_masks(tmp_path):
    host, locks = IsolationHost(tmp_path), (MaskOwnership(tmp_path), MaskOwnership(tmp_path))
    isolator = HostIsolator(host.kernel, host.store, ownership=locks[0])
    isolator.bring_about(demand(2))
    locks[0].give_up()
    assert locks[1].find_objection() == ""
    [sentence] = isolator.bring_about(NOTHING).refusal_sentences
    assert "another agent has quiet CPUs" in sentence
    locks[1].give_up()
    assert isolator.bring_about(NOTHING).refusal_sentences == ()


def test_without_a_lock_masks_are_changed_and_that_is_said(tmp_path, caplog):
    host, folder = IsolationHost(tmp_path), tmp_path / "locks"
    isolator = HostIsolator(host.kernel, host.store, ownership=MaskOwnership(folder))
    assert isolator.bring_about(NOTHING).refusal_sentences == ()
    for _ in range(2):
        status = isolator.bring_about(demand(2))
        assert status.quiet == {2}
        assert "no lock can be taken" in status.refusal_sentences[-1]
    assert caplog.text.count("no lock can be taken") == 1
    folder.mkdir()
    assert isolator.bring_about(demand(2)).unlocked == ""
    assert "another agent" in MaskOwnership(folder).find_objection()
    isolator.bring_about(NOTHING)


def test_a_process_with_a_million_open_files_costs_a_few_of_them(host, monkeypatch):
    class Entries(contextlib.AbstractContextManager):
        def __exit__(self, *error):
            self.closed = True

        def __iter__(self):
            for number in range(1_000_000):
                self.listed = number
                yield SimpleNamespace(name=str(number))

    host.kernel.add_interrupt(70, "vfio-msix[0](0000:3b:00.0)")
    entries, scandir = Entries(), os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: entries if str(path).endswith("77/fd") else scandir(path))
    assert host.kernel.read_facts(frozenset({2}), processes={"guest": 77}).owners == {}
    assert (entries.listed + 1, entries.closed) == (8192, True)


def test_movable_kernel_threads_leave_and_those_of_one_cpu_stay(host):
    host.kernel.add_thread(60, "kswapd0", {0, 1, 2, 3})
    host.kernel.add_thread(61, "khugepaged")
    host.kernel.add_thread(62, "ksoftirqd/2", {2}, flags=0x04000000)
    host.kernel.add_thread(63, "irq/32-eth0", {2})
    host.kernel.add_thread(64, "rcuop/2", {2})
    before = host.kernel.texts()
    assert host.bring_about(demand(2)).stuck == ()
    bound = {path: cpus for path, cpus in host.kernel.masks().items() if "status" in path}
    assert bound == {
        "proc/60/status": {0, 1},
        "proc/61/status": {0, 1, 4, 5},
        "proc/62/status": {2},
        "proc/63/status": {2},
        "proc/64/status": {0, 1, 4, 5},
    }
    host.bring_about(NOTHING)
    assert host.kernel.texts() == before


def test_a_thread_with_the_number_of_one_that_ended_keeps_its_affinity(host):
    host.kernel.add_thread(60, "khugepaged", start=1)
    host.bring_about(demand(2))
    host.kernel.add_thread(60, "ksmd", {5}, start=2)
    host.bring_about(NOTHING)
    assert host.kernel.masks()["proc/60/status"] == {5}
    assert host.kept().masks == {}


def test_the_original_of_a_thread_that_ended_is_forgotten(host):
    host.kernel.add_thread(60, "khugepaged")
    host.bring_about(demand(2))
    host.kernel.remove_thread(60)
    # A process of the host has the number now.
    host.kernel.put("proc/60/status", "Cpus_allowed_list:\t0-7")
    host.bring_about(NOTHING)
    assert host.kept().masks == {}


def test_threads_of_another_machine_are_never_bound(tmp_path):
    with pytest.raises(OSError, match="not supported"):
        MaskReader(tmp_path).bind_thread(1, frozenset({0}))


def test_originals_of_another_boot_do_not_count(host):
    host.bring_about(demand(2))
    host.kernel.put(BOOT, "boot-2")
    host.kernel.change(DEFAULT_MASK, {0, 5})
    host.start()
    host.bring_about(NOTHING)
    assert host.kernel.masks()[DEFAULT_MASK] == {0, 5}


def test_a_damaged_file_of_originals_is_put_aside_with_the_next_demand(host):
    host.file.write_bytes(b"{")
    host.bring_about(NOTHING)
    assert host.file.read_bytes() == b"{"
    host.bring_about(demand(2))
    assert [path.name for path in host.file.parent.glob("isolation.json.damaged-*")]
    assert host.kept().masks


def test_masks_stay_if_originals_cannot_be_kept(host, monkeypatch):
    before = host.kernel.texts()
    monkeypatch.setattr("compute_agent.isolation.originals.write_durably", full_disk)
    with pytest.raises(OSError, match="full"):
        host.bring_about(demand(2))
    assert host.kernel.texts() == before


def full_disk(*_):
    raise OSError("the disk is full")


def test_killed_at_any_write_the_next_agent_gives_all_back(tmp_path_factory):
    for after in (demand(2, 3), NOTHING):
        number = 0
        while True:
            host = IsolationHost(tmp_path_factory.mktemp("kill"))
            for cpu in range(8):
                host.kernel.add_interrupt(30 + cpu, f"eth0-rx-{cpu}", {cpu}, node=cpu // 4)
            host.kernel.add_thread(60, "kswapd0", {2, 3})
            before = host.kernel.texts()
            host.kernel.kill_at = number
            try:
                host.bring_about(demand(2, 3, 6))
                host.bring_about(after)
                host.bring_about(NOTHING)
            except Killed:
                host.kernel.kill_at = None
                host.start()
                host.bring_about(after)
                host.start()
                host.bring_about(NOTHING)
                assert host.kernel.texts() == before
                assert host.kept().masks == {}
                number += 1
            else:
                break
        assert number > 10
