"""Tests that processes of the host keep off quiet CPUs, and that CPUs of guests with level alone become
partitions.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import pytest

from compute_agent.isolation import control_groups
from compute_agent.isolation.control_groups import GroupReader
from compute_agent.isolation.decision import LOOSE, NO_GROUPS, HeldCpus, IsolationDemand
from compute_agent.isolation.facts import WORKQUEUE_MASK
from compute_agent.isolation.partitions import NO_GROUP, NO_REMOTE
from compute_agent.isolation.shell import stuck_sentences
from tests.compute_agent.isolation.fake_kernel import FakeGroupReader, IsolationHost, Killed

NODES = {0: frozenset(range(4)), 1: frozenset(range(4, 8))}
DEDICATED = frozenset({2, 3, 6, 7})
INVALID = "Invalid cpu list in cpuset.cpus.exclusive"
MEMORY = Path("/dev/shm")
NOTHING = IsolationDemand((), DEDICATED, NODES)
SCOPE = "machine.slice/machine-qemu-1.scope"
DOMAIN = HeldCpus("d", frozenset({2, 3}), True, 70, True, "", (frozenset({2}), frozenset({3})))
PROCESS = HeldCpus("p", frozenset({6, 7}), True, 80, True, "guests/guest-p", (frozenset({6, 7}),))
MODERN = [(6, 8), (6, 12), (7, 0)]


def demand(*guests, kept=()):
    return IsolationDemand(guests, DEDICATED, NODES, frozenset(kept))


def make_host(folder, version=(6, 12)):
    """A host with a process guest, and with a domain of two guest CPUs with its other threads on
    shared CPUs.
    """
    host = IsolationHost(folder, version=version)
    groups = host.kernel.cgroups
    for name in ("init.scope", "system.slice", "user.slice", "guests"):
        groups.add(name)
    groups.add("system.slice/cron.service")
    for name in ("machine.slice", SCOPE, f"{SCOPE}/libvirt"):
        groups.add(name)
    groups.add(f"{SCOPE}/libvirt/emulator", "0-1")
    groups.add(f"{SCOPE}/libvirt/vcpu0", "2")
    groups.add(f"{SCOPE}/libvirt/vcpu1", "3")
    groups.add("guests/guest-p", "6-7")
    groups.add_process(70, f"{SCOPE}/libvirt/emulator")
    groups.add_process(80, "guests/guest-p")
    host.kernel.add_thread(60, "kswapd0", NODES[0])
    host.kernel.add_thread(61, "kswapd1", NODES[1])
    return host


@pytest.fixture
def memory():
    """A folder in memory, because the agent syncs its file to disk in each round."""
    folder = Path(mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def host(memory):
    return make_host(memory)


def cpus_of(host, *groups):
    """The CPUs of groups; empty for groups that may use all CPUs."""
    texts = [host.kernel.cgroups.text(group, "cpuset.cpus") for group in groups]
    return ["" if text == "0-7" else text for text in texts]


def exclusive_cpus(host, *groups):
    return [host.kernel.cgroups.text(group, "cpuset.cpus.exclusive") for group in groups]


def states(host, *groups):
    return [host.kernel.cgroups.state(group) for group in groups]


VCPUS = (f"{SCOPE}/libvirt/vcpu0", f"{SCOPE}/libvirt/vcpu1")
PARTITIONS = (*VCPUS, "guests/guest-p")


def test_groups_of_the_host_leave_quiet_cpus_and_groups_of_guests_stay(host):
    quiet = HeldCpus("p", frozenset({6, 7}), True, 80)
    others = HeldCpus("d", frozenset({2, 3}), False, 70)
    assert host.bring_about(demand(quiet, others)).stuck == ()
    assert cpus_of(host, "init.scope", "system.slice", "user.slice") == ["0-1,4-5"] * 3
    assert cpus_of(host, "machine.slice", SCOPE, "guests", "guests/guest-p") == ["", "", "", "6-7"]
    assert states(host, *PARTITIONS) == ["member"] * 3


def test_a_new_slice_is_found_and_one_that_another_program_has_opened_is_repaired(host):
    quiet = demand(HeldCpus("p", frozenset({6, 7}), True, 80))
    host.bring_about(quiet)
    host.kernel.cgroups.add("custom.slice")
    host.kernel.cgroups.add("empty.slice", populated=False)
    host.kernel.change("sys/fs/cgroup/user.slice/cpuset.cpus", {0, 6})
    host.bring_about(quiet)
    assert cpus_of(host, "custom.slice", "empty.slice", "user.slice") == ["0-1,4-5", "", "0"]
    assert host.drifts == 1
    host.bring_about(NOTHING)
    assert cpus_of(host, "custom.slice", "system.slice", "user.slice") == ["", "", "0,6"]


def test_a_slice_gets_its_cpus_back_when_a_guest_starts_in_it(host):
    quiet = HeldCpus("p", frozenset({6, 7}), True, 80)
    host.bring_about(demand(quiet))
    host.kernel.cgroups.add("user.slice/session.scope")
    host.kernel.cgroups.add_process(90, "user.slice/session.scope")
    host.bring_about(demand(quiet, HeldCpus("s", frozenset(), pid=90)))
    assert cpus_of(host, "user.slice", "user.slice/session.scope") == ["", ""]


def test_beside_guests_each_group_of_the_host_is_bound_by_itself(host):
    host.kernel.cgroups.add("system.slice/agent.service")
    host.kernel.cgroups.add("system.slice/agent.service/guest-x", "6")
    guest = HeldCpus("x", frozenset({6}), True, 0, group="system.slice/agent.service/guest-x")
    host.bring_about(demand(guest))
    assert cpus_of(host, "system.slice", "system.slice/cron.service") == ["", "0-1,4-5"]
    assert cpus_of(host, "system.slice/agent.service/guest-x") == ["6"]


@pytest.mark.parametrize("version", MODERN)
def test_guests_that_are_alone_have_partitions_and_all_is_as_before_afterwards(memory, version):
    host = make_host(memory, version)
    before = host.kernel.texts()
    status = host.bring_about(demand(DOMAIN, PROCESS))
    assert states(host, *PARTITIONS) == ["isolated", "isolated", "root"]
    assert (status.alone, status.refused, status.stuck) == ({2, 3, 6, 7}, {}, ())
    assert exclusive_cpus(host, "machine.slice", "guests") == ["2-3", "6-7"]
    # Below Linux 6.11 a group passes down only CPUs that it has itself.
    texts = [host.kernel.cgroups.text(group, "cpuset.cpus") for group in ("machine.slice", SCOPE)]
    assert texts == (["0-7"] * 2 if version < (6, 11) else ["", ""])
    masks = host.kernel.masks()
    assert (masks["proc/60/status"], masks["proc/61/status"]) == ({0, 1}, {4, 5})
    writes = len(host.kernel.writes)
    host.bring_about(demand(DOMAIN, PROCESS))
    assert len(host.kernel.writes) == writes
    host.bring_about(NOTHING)
    assert host.kernel.texts() == before
    assert (host.kept().masks, host.kept().groups, host.count_changes()) == ({}, {}, 0)


def test_a_guest_that_leaves_takes_its_cpus_out_of_the_groups_above(host):
    second = "machine.slice/machine-qemu-2.scope"
    for name in (second, f"{second}/libvirt"):
        host.kernel.cgroups.add(name)
    host.kernel.cgroups.add(f"{second}/libvirt/vcpu0", "6")
    host.kernel.cgroups.add_process(71, f"{second}/libvirt/emulator")
    other = HeldCpus("e", frozenset({6}), True, 71, True, "", (frozenset({6}),))
    host.bring_about(demand(DOMAIN, other))
    assert host.kernel.cgroups.text("machine.slice", "cpuset.cpus.exclusive") == "2-3,6"
    host.kernel.cgroups.remove(SCOPE)
    host.bring_about(demand(other))
    assert host.kernel.cgroups.text("machine.slice", "cpuset.cpus.exclusive") == "6"
    assert states(host, f"{second}/libvirt/vcpu0") == ["isolated"]
    assert not any(SCOPE in path for path in host.kept().groups)


def test_a_partition_goes_before_the_pins_of_its_guest_change_and_returns_after_them(host):
    host.bring_about(demand(DOMAIN))
    moved = HeldCpus("d", frozenset({2, 6}), True, 70, True, "", (frozenset({2}), frozenset({6})))
    status = host.bring_about(demand(moved))
    assert states(host, *VCPUS) == ["isolated", "member"]
    assert (status.alone, status.refused) == ({2}, {})
    host.kernel.change(f"sys/fs/cgroup/{VCPUS[1]}/cpuset.cpus", {6})
    assert host.bring_about(demand(moved)).alone == {2, 6}


def test_linux_6_1_has_no_partition_for_a_domain_and_keeps_processes_off_all_the_same(memory):
    host = make_host(memory, (6, 1))
    before = host.kernel.texts()
    status = host.bring_about(demand(DOMAIN))
    assert (status.refused, status.alone) == ({"d": (NO_REMOTE,)}, frozenset())
    assert cpus_of(host, "system.slice") == ["0-1,4-5"]
    host.bring_about(NOTHING)
    assert host.kernel.texts() == before


def test_linux_6_1_has_a_partition_for_a_group_below_the_root(memory):
    host = make_host(memory, (6, 1))
    before = host.kernel.texts()
    host.kernel.cgroups.add("guest-r", "7")
    guest = HeldCpus("r", frozenset({7}), True, 0, True, "guest-r", (frozenset({7}),))
    assert host.bring_about(demand(guest)).alone == {7}
    assert states(host, "guest-r") == ["isolated"]
    host.bring_about(NOTHING)
    assert states(host, "guest-r") == ["member"]
    host.kernel.cgroups.remove("guest-r")
    assert host.kernel.texts() == before


def test_a_refused_partition_is_told_with_the_reason_of_the_kernel_and_not_tried_again(host):
    host.kernel.cgroups.permitted = False
    status = host.bring_about(demand(DOMAIN))
    said = tuple(f"alone: control group vcpu{number}: Enable partition not permitted" for number in range(2))
    assert (status.refused, status.alone) == ({"d": said}, frozenset())
    writes = len(host.kernel.writes)
    assert host.bring_about(demand(DOMAIN)).refused == {"d": said}
    assert len(host.kernel.writes) == writes
    host.kernel.cgroups.permitted = True
    host.kernel.cgroups.settle()
    assert host.bring_about(demand(DOMAIN)).refused == {}


def test_a_partition_that_becomes_invalid_later_is_told(host):
    host.bring_about(demand(DOMAIN))
    host.kernel.set_online({0, 1, 3, 4, 5, 6, 7})
    host.kernel.cgroups.settle()
    status = host.bring_about(demand(DOMAIN))
    assert "vcpu0: Invalid cpu list" in status.refused["d"][0]
    assert status.alone == {3}


def test_exclusive_cpus_of_another_program_stay(host):
    host.kernel.cgroups.write_text("sys/fs/cgroup/guests/cpuset.cpus.exclusive", "4")
    host.bring_about(demand(PROCESS))
    assert host.kernel.cgroups.text("guests", "cpuset.cpus.exclusive") == "4,6-7"
    host.bring_about(NOTHING)
    assert host.kernel.cgroups.text("guests", "cpuset.cpus.exclusive") == "4"


def test_a_write_that_the_kernel_refuses_is_told(host):
    host.kernel.cgroups.write_text("sys/fs/cgroup/user.slice/cpuset.cpus.exclusive", "2")
    assert host.bring_about(demand(DOMAIN)).refused["d"] == (
        *(f"alone: control group {name}: {INVALID}" for name in ("vcpu0", "vcpu1")),
        "alone: machine.slice/cpuset.cpus.exclusive: Invalid argument",
    )


@pytest.mark.parametrize(
    ("guest", "sentence"),
    [
        (HeldCpus("s", frozenset({6}), True, 0, True), NO_GROUP),
        (
            replace(PROCESS, vcpu_cpus=(frozenset({6, 7}), frozenset({0}))),
            "alone: other threads of it are in the same control group, on CPU 0",
        ),
        (
            HeldCpus("d", frozenset({2, 3}), True, 70, True, "", (frozenset({2, 3}),) * 2),
            "alone: several of its CPUs may use the same host CPU",
        ),
    ],
)
def test_guests_with_groups_that_cannot_be_partitions_are_told(host, guest, sentence):
    assert host.bring_about(demand(guest)).refused == {guest.uuid: (sentence,)}


def test_processes_outside_of_groups_are_told(host):
    host.kernel.put("sys/fs/cgroup/cgroup.procs", "1\n2\n60\n61\n500")
    quiet = demand(HeldCpus("p", frozenset({6, 7}), True, 80))
    assert stuck_sentences(host.bring_about(quiet).stuck) == (f"2 processes: {LOOSE}",)
    host.kernel.put("sys/fs/cgroup/cgroup.controllers", "cpu")
    assert stuck_sentences(host.bring_about(quiet).stuck) == (f"all processes: {NO_GROUPS}",)


def test_unbound_workqueues_have_their_former_mask_after_a_partition(host):
    host.kernel.change(WORKQUEUE_MASK, set(range(1, 8)))
    host.bring_about(demand(DOMAIN))
    assert host.kernel.masks()[WORKQUEUE_MASK] == {1, 4, 5}
    host.bring_about(NOTHING)
    assert host.kernel.masks()[WORKQUEUE_MASK] == set(range(1, 8))


@pytest.mark.slow
@pytest.mark.parametrize("version", [(6, 1), *MODERN])
def test_killed_at_any_write_the_next_agent_gives_all_back(memory, version):
    number = 0
    while True:
        host = make_host(memory / str(number), version)
        before = host.kernel.texts()
        host.kernel.kill_at = number
        try:
            host.bring_about(demand(DOMAIN, PROCESS))
            host.bring_about(demand(PROCESS))
            host.bring_about(NOTHING)
        except Killed:
            host.kernel.kill_at = None
            host.start()
            host.bring_about(NOTHING)
            assert host.kernel.texts() == before
            assert (host.kept().masks, host.kept().groups) == ({}, {})
            number += 1
        else:
            break
    assert number > 10


class Systemctl:
    """A fake systemctl that records its commands, and writes the CPUs as systemd does."""

    def __init__(self, folder):
        self.folder = folder
        self.program = folder / "systemctl"
        self.program.write_text(
            '#!/bin/sh\nshift 3\necho "$@" >>"$0.log"\n'
            f'unit="{folder}/root/sys/fs/cgroup/$1"\n'
            'test -e "$0.broken" && exit 1\n'
            'echo "${2#*=}" | tr " " , >"$unit/cpuset.cpus"\n'
        )
        self.program.chmod(0o755)

    def commands(self):
        log = self.folder / "systemctl.log"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def systemctl(host, memory):
    found = Systemctl(memory)
    host.kernel.groups = FakeGroupReader(host.kernel.root, lambda: str(found.program))
    return found


def test_units_get_their_cpus_from_systemd(host, systemctl):
    quiet = demand(HeldCpus("p", frozenset({6, 7}), True, 80))
    folder = host.kernel.root / "run/systemd/system.control/user.slice.d"
    folder.mkdir(parents=True)
    (folder / "50-AllowedCPUs.conf").write_text("[Slice]\n")
    host.bring_about(quiet)
    assert systemctl.commands() == [
        f"{unit} AllowedCPUs=0-1 4-5" for unit in ("init.scope", "system.slice", "user.slice")
    ]
    host.bring_about(NOTHING)
    assert systemctl.commands()[3:] == [
        f"{unit} AllowedCPUs=" for unit in ("init.scope", "system.slice", "user.slice")
    ]
    assert cpus_of(host, "init.scope", "system.slice", "user.slice") == [""] * 3
    assert not folder.exists()


def test_a_unit_that_systemd_does_not_change_is_written_by_the_agent(host, systemctl):
    (host.kernel.root.parent / "systemctl.broken").touch()
    host.bring_about(demand(HeldCpus("p", frozenset({6, 7}), True, 80)))
    assert cpus_of(host, "system.slice") == ["0-1,4-5"]


def test_a_systemctl_that_hangs_costs_one_wait(host, systemctl, monkeypatch, caplog):
    monkeypatch.setattr(control_groups, "_SYSTEMD_SECONDS", 0.1)
    systemctl.program.write_text("#!/bin/sh\nexec sleep 60\n")
    host.bring_about(demand(HeldCpus("p", frozenset({6, 7}), True, 80)))
    assert cpus_of(host, "init.scope", "system.slice", "user.slice") == ["0-1,4-5"] * 3
    assert caplog.text.count("systemctl cannot set the CPUs of") == 1


def test_the_controller_is_enabled_where_no_group_has_cpus(memory):
    reader = GroupReader(memory, lambda: None)
    for folder in ("", "a"):
        (memory / "sys/fs/cgroup" / folder).mkdir(parents=True, exist_ok=True)
        (memory / "sys/fs/cgroup" / folder / "cgroup.subtree_control").write_text("cpu")
    # No kernel makes the file here.
    with pytest.raises(FileNotFoundError):
        reader.write_cpus("a/b", "0-1")
    for folder in ("", "a"):
        file = memory / "sys/fs/cgroup" / folder / "cgroup.subtree_control"
        assert file.read_text() == "+cpuset\n"
    reader.write_cpus("a/b", "")
