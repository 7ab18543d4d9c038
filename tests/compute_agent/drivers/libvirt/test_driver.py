"""Tests of the libvirt driver on a real libvirtd with real QEMU guests."""

import contextlib
import gc
import glob
import os
import queue
import re
import signal
import threading
import uuid
from pathlib import Path

import pytest

from compute_agent.drivers import procfs
from compute_agent.drivers.base import ChangeKind, CpuLimits, CpuSettings, GuestChange, GuestFlavor
from compute_agent.drivers.libvirt import domain_metadata, qemu
from compute_agent.drivers.libvirt.connection import LibvirtConnection
from compute_agent.drivers.libvirt.domain_definition import NAMESPACE
from compute_agent.drivers.libvirt.domain_table import DomainTable
from compute_agent.drivers.libvirt.driver import LibvirtDriver
from compute_agent.drivers.libvirt.running_domain import DomainGroup
from compute_agent.model.guest import UNCONSTRAINED, PlacementConstraints
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import DriverError, GuestGoneError
from tests.compute_agent.builders import build_guest
from tests.compute_agent.libvirtd import Libvirtd, thread_cpus
from tests.waits import wait_for

SECONDS = 20
ZERO, ONE = frozenset({0}), frozenset({1})
APART = CpuSettings((ZERO, ONE), ONE)
SWAPPED = CpuSettings((ONE, ZERO), ZERO)

METADATA = (
    '<guest:settings xmlns:guest="urn:placement-compute:guest:1">'
    "<guest:qos_class>{}</guest:qos_class></guest:settings>"
)
NOVA = (
    '<nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">'
    '<nova:flavor name="f"><nova:extraSpecs>'
    '<nova:extraSpec name="hw:cpu_thread_policy">isolate</nova:extraSpec>'
    '<nova:extraSpec name="hw:emulator_threads_policy">isolate</nova:extraSpec>'
    "</nova:extraSpecs></nova:flavor></nova:instance>"
)

pytestmark = pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1")


class Watched:
    """A driver, and the list of changes that it reports."""

    def __init__(self, uri, **options):
        self.driver = LibvirtDriver(uri, **options)
        self.changes = queue.SimpleQueue()
        self.driver.watch_guests(self.changes.put)

    def next(self):
        change = self.changes.get(timeout=SECONDS)
        return change.kind, change.guest

    def started(self):
        kind, guest = self.next()
        assert kind is ChangeKind.STARTED
        return guest


@pytest.fixture
def watched(libvirtd):
    watched = Watched(libvirtd.uri)
    yield watched
    watched.driver.close()


@pytest.fixture
def driver(watched):
    return watched.driver


def sockets():
    """The number of sockets that this process has open.

    If a daemon dies while a connection opens, an event descriptor of libvirt stays open, but no socket.
    """
    links = []
    for path in glob.glob("/proc/self/fd/*"):
        with contextlib.suppress(OSError):  # another thread has closed it
            links.append(os.readlink(path))
    return sum(link.startswith("socket:") for link in links)


def roles(pid):
    """The CPUs of guest CPU 0, of guest CPU 1, of the I/O thread, and of all other threads."""
    names = dict(thread_cpus(pid))
    guest = [names.pop(f"CPU {number}/TCG") for number in (0, 1)]
    return [*guest, names.pop("IO iothread1"), set().union(*names.values())]


def test_a_domain_that_starts_is_reported_with_its_settings(watched, libvirtd):
    guest_uuid = str(uuid.uuid4())
    domain = libvirtd.run(guest_uuid, metadata=METADATA.format("BE"))
    guest = watched.started()
    assert (guest.uuid, guest.name, guest.driver) == (guest_uuid, domain.name(), "libvirt")
    assert (guest.settings.vcpus, guest.settings.qos_class) == (2, "BE")
    assert guest.pid == libvirtd.process(domain)
    domain.destroy()
    assert watched.next() == (ChangeKind.STOPPED, guest)


def test_a_domain_has_the_flavor_that_nova_wrote(watched, libvirtd):
    libvirtd.run(metadata=NOVA)
    guest = watched.started()
    assert (guest.identity.flavor, guest.declared, guest.settings) == ("f", {}, GuestSettings(vcpus=2))
    assert guest.identity.extra_specs == {
        "hw:cpu_thread_policy": "isolate",
        "hw:emulator_threads_policy": "isolate",
    }


def test_changed_metadata_is_reported(watched, libvirtd):
    domain = libvirtd.run()
    before = watched.started()
    kind, key = libvirtd.libvirt.VIR_DOMAIN_METADATA_ELEMENT, "guest"
    text = "<settings><qos_class>LSR</qos_class></settings>"
    domain.setMetadata(kind, text, key, "urn:placement-compute:guest:1")
    kind, after = watched.next()
    assert (kind, after.pid, before.settings.qos_class) == (ChangeKind.CHANGED, before.pid, "LS")
    assert after.settings.qos_class == "LSR"
    assert list(watched.driver.guests()) == [after]


def test_a_domain_that_ends_during_its_description_is_no_error(libvirtd, monkeypatch, caplog):
    find_domain = LibvirtConnection.find_domain

    def find_and_end(self, guest_uuid):
        domain = find_domain(self, guest_uuid)
        if domain is not None:
            domain.destroy()
        return domain

    libvirtd.run()
    monkeypatch.setattr(LibvirtConnection, "find_domain", find_and_end)
    driver = LibvirtDriver(libvirtd.uri)
    try:
        assert driver.guests() == []
    finally:
        driver.close()
    assert "cannot be described" not in caplog.text


def test_one_domain_that_cannot_be_described_hides_no_other(libvirtd, monkeypatch):
    bad, good = sorted(str(uuid.uuid4()) for _ in range(2))
    for guest_uuid in (bad, good):
        libvirtd.run(guest_uuid)
    real = domain_metadata.describe_domain

    def describe(xml):
        if bad in xml:
            raise ZeroDivisionError("nobody thought of this")
        return real(xml)

    monkeypatch.setattr(domain_metadata, "describe_domain", describe)
    driver = LibvirtDriver(libvirtd.uri, look_interval=0.1)
    try:
        assert [guest.uuid for guest in driver.guests()] == [good]
        assert list(driver.lost_guests()) == [bad]
        assert "nobody thought of this" in driver.lost_guests()[bad]
        monkeypatch.undo()
        wait_for(lambda: not driver.lost_guests())
        assert {guest.uuid for guest in driver.guests()} == {bad, good}
    finally:
        driver.close()


@pytest.fixture(scope="module")
def libvirtd_of_nobody():
    """A libvirtd that runs its guests as another user than root, without a security label that names the
    user.
    """
    server = Libvirtd(user="nobody", default_confined=False)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's libvirtd runs guests as somebody else")
@pytest.mark.parametrize("label", ["", "<seclabel type='none' model='dac'/>"])
def test_a_domain_without_a_label_is_that_of_the_user_in_qemu_conf(libvirtd, libvirtd_of_nobody, label):
    domain = libvirtd_of_nobody.run(label=label)
    assert "<label>" not in domain.XMLDesc()
    pid = libvirtd_of_nobody.process(domain)
    assert procfs.users_of(pid) == {65534}
    driver = LibvirtDriver(libvirtd_of_nobody.uri)
    try:
        assert [guest.pid for guest in driver.guests()] == [pid]
        assert driver.lost_guests() == {}
    finally:
        driver.close()
        domain.destroy()


def test_a_domain_without_a_known_process_is_lost_until_it_ends(libvirtd, monkeypatch, caplog):
    domain = libvirtd.run()
    guest_uuid = domain.UUIDString()
    monkeypatch.setattr(qemu, "find_process", lambda uuid, owner: None)
    watched = Watched(libvirtd.uri, look_interval=0.1)
    driver = watched.driver
    try:
        assert list(driver.guests()) == []
        assert list(driver.lost_guests()) == [guest_uuid]
        assert f"domain {guest_uuid} ('{domain.name()}') runs, but user" in driver.lost_guests()[guest_uuid]
        looks = []
        monkeypatch.setattr(qemu, "find_process", lambda uuid, owner: looks.append(owner))
        wait_for(lambda: len(looks) > 3)
        assert caplog.text.count("runs, but user") == 1  # though it was looked for again and again
        domain.destroy()
        wait_for(lambda: not driver.lost_guests())
        assert watched.changes.empty()
    finally:
        driver.close()


def test_a_domain_with_any_metadata_is_seen(watched, libvirtd):
    deep = "<x>" * 200 + "</x>" * 200
    texts = ("99999999999999999999", "' OR 1=1", "&amp;lol;", "\u202e\u0663", "y" * 500_000)
    settings = "".join(
        f"<guest:{name}>{text}</guest:{name}>"
        for text in texts
        for name in (
            *("qos_class", "thread_policy", "eviction_priority", "resctrl", "blockio_class", "memory_type"),
        )
    )
    odd = f'<guest:settings xmlns:guest="urn:placement-compute:guest:1">{deep}{settings}</guest:settings>'
    noted = f'<agent:tuned xmlns:agent="{NAMESPACE}" shares="{"9" * 5000}"/>'
    libvirtd.run(metadata=odd + noted)
    guest = watched.started()
    assert guest.settings == GuestSettings(vcpus=2)
    assert watched.driver.read_flavor(guest) == GuestFlavor({})
    assert watched.driver.read_flavor(build_guest("other", driver="process")) == GuestFlavor()
    watched.driver.apply_cpu_settings(guest, APART)
    assert roles(guest.pid) == [{"0"}, {"1"}, {"1"}, {"1"}]


def test_guest_cpus_io_threads_and_emulator_are_pinned_each_to_its_own(watched, libvirtd):
    libvirtd.run()
    guest = watched.started()
    watched.driver.apply_cpu_settings(guest, APART)
    assert roles(guest.pid) == [{"0"}, {"1"}, {"1"}, {"1"}]
    watched.driver.apply_cpu_settings(guest, SWAPPED)
    assert roles(guest.pid) == [{"1"}, {"0"}, {"0"}, {"0"}]
    assert watched.driver.observed_cpus(guest) == ZERO | ONE


def test_pins_that_libvirt_has_missed_are_sent_again(driver, watched, libvirtd, monkeypatch):
    domain = libvirtd.run()
    guest = watched.started()
    wait_for(lambda: driver.misplaced_threads(guest, APART))

    def fail(*_):
        raise DriverError("libvirtd is away")

    with monkeypatch.context() as patch:
        patch.setattr(DomainTable, "on_domain", fail)
        with pytest.raises(DriverError, match="libvirtd is away"):
            driver.apply_cpu_settings(guest, APART)
    assert roles(guest.pid) == [{"0"}, {"1"}, {"1"}, {"1"}]
    assert driver.misplaced_threads(guest, APART).keys() == {guest.pid}
    assert driver.apply_cpu_settings(guest, APART) == 0
    assert driver.misplaced_threads(guest, APART) == {}
    assert domain.vcpuPinInfo() == [(True, False), (False, True)]


def test_libvirt_knows_the_pins_of_a_transient_domain(watched, libvirtd):
    domain = libvirtd.run()
    watched.driver.apply_cpu_settings(watched.started(), APART)
    assert not domain.isPersistent()
    assert domain.vcpuPinInfo() == [(True, False), (False, True)]
    assert domain.emulatorPinInfo() == (False, True)


def test_pins_are_in_the_definition_of_a_persistent_domain_and_hold_from_its_next_start(watched, libvirtd):
    domain = libvirtd.run(persistent=True)
    guest = watched.started()
    watched.driver.apply_cpu_settings(guest, APART)
    config = libvirtd.libvirt.VIR_DOMAIN_AFFECT_CONFIG
    assert domain.vcpuPinInfo(config) == [(True, False), (False, True)]
    assert domain.emulatorPinInfo(config) == (False, True)
    assert domain.ioThreadInfo(config)[0][1] == [False, True]

    domain.destroy()
    assert watched.next() == (ChangeKind.STOPPED, guest)
    domain.create()
    again = watched.started()
    assert again.pid != guest.pid
    assert roles(again.pid)[:3] == [{"0"}, {"1"}, {"1"}]


def test_one_stray_thread_is_seen_and_put_back(watched, libvirtd):
    domain = libvirtd.run()
    guest = watched.started()
    watched.driver.apply_cpu_settings(guest, APART)
    (stray,) = [
        tid for tid in procfs.thread_ids(guest.pid) if procfs.thread_name(guest.pid, tid) == "CPU 0/TCG"
    ]
    domain.pinVcpu(0, (True, True))
    assert watched.driver.misplaced_threads(guest, APART) == {stray: ZERO | ONE}
    assert watched.driver.apply_cpu_settings(guest, APART) == 1
    assert watched.driver.misplaced_threads(guest, APART) == {}


def test_a_guest_cpu_that_is_plugged_in_runs_on_what_the_others_have(watched, libvirtd):
    xml = libvirtd.xml().replace("<vcpu>2</vcpu>", "<vcpu current='2'>3</vcpu>")
    domain = libvirtd.connection.createXML(xml)
    guest = watched.started()
    settings = CpuSettings((ZERO, ZERO), ONE)
    watched.driver.apply_cpu_settings(guest, settings)
    domain.setVcpusFlags(3, libvirtd.libvirt.VIR_DOMAIN_AFFECT_LIVE)
    wait_for(lambda: "CPU 2/TCG" in thread_cpus(guest.pid))
    watched.driver.apply_cpu_settings(guest, settings)
    assert thread_cpus(guest.pid)["CPU 2/TCG"] == {"0"}


def test_a_domain_destroyed_in_the_middle_is_gone(driver, watched, libvirtd, monkeypatch):
    domain = libvirtd.run()
    guest = watched.started()
    look = qemu.QemuProcess.misplaced_threads
    monkeypatch.setattr(qemu.QemuProcess, "misplaced_threads", _destroying(domain, look))
    with pytest.raises(GuestGoneError, match=guest.uuid):
        driver.apply_cpu_settings(guest, APART)


def _destroying(domain, misplaced):
    """``misplaced`` for a guest that is destroyed after its threads were read for the first time."""
    ends = iter([domain.destroy])

    def look(self, settings):
        found = misplaced(self, settings)
        for end in ends:
            end()
        return found

    return look


def test_a_killed_qemu_is_gone_at_once(driver, watched, libvirtd):
    libvirtd.run()
    guest = watched.started()
    os.kill(guest.pid, signal.SIGKILL)
    wait_for(lambda: list(driver.guests()) == [])
    for ask in (driver.thread_ids, driver.observed_cpus, lambda it: driver.apply_cpu_settings(it, APART)):
        with pytest.raises(GuestGoneError):
            ask(guest)
    driver.stop(guest, 0)
    assert watched.next() == (ChangeKind.STOPPED, guest)


def test_a_guest_without_an_operating_system_is_destroyed_after_the_timeout(driver, watched, libvirtd):
    libvirtd.run()
    guest = watched.started()
    driver.stop(guest, 0.1)
    assert procfs.identify_process(guest.pid) is None
    assert watched.next() == (ChangeKind.STOPPED, guest)


def test_a_paused_guest_is_stopped(driver, watched, libvirtd):
    domain = libvirtd.run()
    guest = watched.started()
    domain.suspend()
    driver.stop(guest, 0.1)
    assert list(driver.guests()) == []


def test_without_libvirtd_guests_are_known_and_changes_are_refused_until_it_is_back(
    driver, watched, libvirtd
):
    libvirtd.run()
    guest = watched.started()
    driver.apply_cpu_settings(guest, APART)
    before = sockets()
    libvirtd.kill()
    try:
        assert list(driver.guests()) == [guest]
        assert driver.misplaced_threads(guest, APART) == {}
        with pytest.raises(DriverError) as caught:
            driver.apply_cpu_settings(guest, SWAPPED)
        assert not isinstance(caught.value, GuestGoneError)
        del caught  # libvirt's errors hold their connection
        assert roles(guest.pid) == [{"0"}, {"1"}, {"1"}, {"1"}]
    finally:
        libvirtd.start()
    wait_for(lambda: not driver.outage_reason)
    assert driver.apply_cpu_settings(guest, SWAPPED) > 0
    assert roles(guest.pid) == [{"1"}, {"0"}, {"0"}, {"0"}]
    libvirtd.run()  # events come again
    assert watched.started().uuid != guest.uuid
    gc.collect()  # what an error holds goes in circles; nothing here makes the collector come by itself
    wait_for(lambda: sockets() <= before)


def test_a_libvirtd_that_hangs_counts_as_away_and_delays_no_caller(driver, watched, libvirtd):
    libvirtd.run()
    guest = watched.started()
    driver.apply_cpu_settings(guest, APART)
    with libvirtd.hanging():
        assert list(driver.guests()) == [guest]
        assert driver.misplaced_threads(guest, APART) == {}
        assert driver.cpu_limits(guest, CpuLimits()) is None
        assert driver.memory_nodes(guest, frozenset()) is None
        with pytest.raises(DriverError) as caught:
            driver.apply_cpu_settings(guest, SWAPPED)  # ends with the connection
        assert not isinstance(caught.value, GuestGoneError)
        wait_for(lambda: driver.outage_reason)
        for _ in range(100):  # and is not tried again
            with pytest.raises(DriverError, match="does not answer"):
                driver.bind_memory(guest, frozenset({0}))
        assert roles(guest.pid) == [{"0"}, {"1"}, {"1"}, {"1"}]
    wait_for(lambda: not driver.outage_reason)
    driver.apply_cpu_settings(guest, SWAPPED)
    assert roles(guest.pid) == [{"1"}, {"0"}, {"0"}, {"0"}]


def test_a_driver_is_closed_while_libvirtd_hangs(libvirtd):
    domain = libvirtd.run()
    driver = LibvirtDriver(libvirtd.uri)
    (guest,) = driver.guests()
    with libvirtd.hanging():
        wait_for(lambda: driver.outage_reason)
        driver.close()
        assert procfs.identify_process(guest.pid) is not None
    assert domain.isActive()


def test_starts_and_ends_while_libvirtd_was_away_are_reported_afterwards(watched, libvirtd):
    libvirtd.run()
    gone, stays = watched.started(), None
    libvirtd.run()
    stays = watched.started()
    libvirtd.kill()
    os.kill(gone.pid, signal.SIGKILL)
    libvirtd.start()
    libvirtd.run()
    told = [watched.next() for _ in range(2)]
    assert (ChangeKind.STOPPED, gone) in told
    (new,) = [guest for kind, guest in told if kind is ChangeKind.STARTED]
    assert {guest.uuid for guest in watched.driver.guests()} == {stays.uuid, new.uuid}


def test_a_driver_without_libvirtd_says_so_and_waits_for_it(libvirtd):
    domain = libvirtd.run()
    libvirtd.kill()
    try:
        driver = LibvirtDriver(libvirtd.uri)
        with pytest.raises(DriverError, match="does not answer"):
            driver.guests()
        changes = queue.SimpleQueue()
        driver.watch_guests(changes.put)
        libvirtd.start()
        wait_for(lambda: not driver.outage_reason)
        (guest,) = driver.guests()
        assert guest.pid == libvirtd.process(domain)
        assert changes.get(timeout=SECONDS) == GuestChange(ChangeKind.FOUND, guest)
    finally:
        driver.close()
        libvirtd.connection  # noqa: B018 # is there again


def test_a_driver_waits_until_another_agent_of_the_same_guests_is_gone(libvirtd):
    domain, others = libvirtd.run(), ["another agent (pid 7) already manages them"]

    def check_lock():
        if others:
            raise DriverError(others[0])

    driver = LibvirtDriver(libvirtd.uri, lock=check_lock)
    try:
        assert driver.outage_reason == others[0]
        with pytest.raises(DriverError, match="pid 7"):
            driver.guests()
        others.clear()
        wait_for(lambda: not driver.outage_reason)
        assert [guest.pid for guest in driver.guests()] == [libvirtd.process(domain)]
    finally:
        driver.close()


def test_a_restarted_guest_is_another_one(watched, libvirtd):
    domain = libvirtd.run(persistent=True)
    first = watched.started()
    domain.destroy()
    domain.create()
    assert watched.next() == (ChangeKind.STOPPED, first)
    second = watched.started()
    assert (second.uuid, second.pid != first.pid) == (first.uuid, True)
    with pytest.raises(GuestGoneError):
        watched.driver.apply_cpu_settings(first, APART)


def test_a_process_that_ended_before_libvirtd_noticed_is_a_stopped_guest(watched, libvirtd, monkeypatch):
    domain = libvirtd.run(persistent=True)
    first = watched.started()
    # libvirtd notices the end after one look: an event may let the driver look twice.
    numbers = iter(["1"])
    monkeypatch.setattr(domain_metadata, "run_number", lambda xml: next(numbers, None))
    domain.destroy()
    assert watched.next() == (ChangeKind.STOPPED, first)
    assert not watched.driver.lost_guests()


def test_a_guest_that_is_restarted_while_it_is_looked_for_has_started(watched, libvirtd, monkeypatch):
    domain = libvirtd.connection.defineXML(libvirtd.xml())
    look, runs = qemu.find_process, threading.Event()

    def too_late(guest_uuid, owner):
        monkeypatch.setattr(qemu, "find_process", look)
        assert runs.wait(SECONDS)
        domain.destroy()
        domain.create()

    monkeypatch.setattr(qemu, "find_process", too_late)
    domain.create()
    runs.set()
    assert watched.started().pid == libvirtd.process(domain)
    assert not watched.driver.lost_guests()


@pytest.fixture
def two_nodes(monkeypatch):
    """Make the host, which has one NUMA node, look as if it had two. Guests may use both nodes."""
    both = frozenset({0, 1})
    monkeypatch.setattr(procfs, "nodes_with_memory", lambda: both)
    monkeypatch.setattr(procfs, "memory_nodes", lambda pid: both)
    return monkeypatch


def test_memory_is_bound_to_its_node_or_left_with_a_log_line(driver, watched, libvirtd, caplog):
    domain = libvirtd.run(persistent=True)
    guest = watched.started()
    assert driver.memory_nodes(guest, ZERO) == frozenset()
    assert driver.bind_memory(guest, ZERO) is libvirtd.has_cgroups
    assert driver.memory_nodes(guest, ZERO) is None
    assert not driver.bind_memory(guest, ZERO)
    if not libvirtd.has_cgroups:
        assert caplog.text.count("cannot be moved to its NUMA nodes") == 1
        return
    assert domain.numaParameters()["numa_nodeset"] == "0"
    assert "mode='restrictive' nodeset='0'" in domain.XMLDesc(libvirtd.libvirt.VIR_DOMAIN_XML_INACTIVE)
    assert "cannot be moved to its NUMA nodes" not in caplog.text
    assert driver.memory_nodes(guest, frozenset()) is None  # the only node is every node


def test_memory_that_was_bound_can_be_bound_again(driver, watched, libvirtd, two_nodes):
    if not libvirtd.has_cgroups:
        pytest.skip("needs cgroups for guests")
    libvirtd.run()
    guest = watched.started()
    two_nodes.setattr(procfs, "memory_nodes", lambda pid: ZERO)
    assert driver.bind_memory(guest, ZERO)
    # The memory seems to be elsewhere, until it is bound again.
    places = iter([ONE, ONE])
    two_nodes.setattr(procfs, "memory_nodes", lambda pid: next(places, ZERO))
    assert driver.memory_nodes(guest, ZERO) == ONE
    assert driver.bind_memory(guest, ZERO)
    assert driver.memory_nodes(guest, frozenset()) == ZERO


def test_memory_that_another_program_bound_stays_there(driver, watched, libvirtd, two_nodes, caplog):
    if not libvirtd.has_cgroups:
        pytest.skip("needs cgroups for guests")
    numatune = "<numatune><memory mode='strict' nodeset='0'/></numatune><os>"
    domain = libvirtd.connection.defineXML(libvirtd.xml().replace("<os>", numatune))
    domain.create()
    guest = watched.started()
    assert driver.memory_nodes(guest, frozenset()) == ZERO
    assert not driver.bind_memory(guest, frozenset())
    assert driver.memory_nodes(guest, frozenset()) is None
    assert f"The memory of guest {guest} cannot be moved to its NUMA nodes" in caplog.text
    assert domain.numaParameters()["numa_nodeset"] == "0"


def test_memory_for_a_missing_node_stays_with_a_log_line(driver, watched, libvirtd, caplog):
    libvirtd.run()
    guest = watched.started()
    nowhere = frozenset({63})
    for _ in range(3):
        assert not driver.bind_memory(guest, nowhere)
    assert caplog.text.count(f"The memory of guest {guest} cannot be moved to its NUMA nodes") == 1
    assert driver.memory_nodes(guest, nowhere) is None
    assert driver.bind_memory(guest, ZERO) is libvirtd.has_cgroups  # another node is tried again


@pytest.mark.parametrize(
    ("unified", "group"), [(True, "/sys/fs/cgroup/machine.slice/one.scope"), (False, "")]
)
def test_the_use_of_a_domain_is_counted_by_its_outer_group_of_version_2(
    driver, watched, libvirtd, monkeypatch, unified, group
):
    outer = Path("/sys/fs/cgroup/machine.slice/one.scope")
    made = DomainGroup((outer, outer / "libvirt"), unified)
    monkeypatch.setattr("compute_agent.drivers.libvirt.running_domain.find_group", lambda pid: made)
    domain = libvirtd.run()
    guest = watched.started()
    assert driver.usage_group(guest) == group
    domain.destroy()
    assert watched.next() == (ChangeKind.STOPPED, guest)
    assert driver.usage_group(guest) == ""


class TestCpuLimits:
    """CPU shares and quotas of domains, if libvirt has cgroups."""

    @pytest.fixture(autouse=True)
    def _cgroups(self, libvirtd):
        if not libvirtd.has_cgroups:
            pytest.skip("needs cgroups for guests")

    @staticmethod
    def shares(domain, libvirtd):
        """The CPU shares of the running domain, and of its definition (0 stands for none)."""
        flags = (libvirtd.libvirt.VIR_DOMAIN_AFFECT_LIVE, libvirtd.libvirt.VIR_DOMAIN_AFFECT_CONFIG)
        return tuple(domain.schedulerParametersFlags(flag)["cpu_shares"] for flag in flags)

    @staticmethod
    def quota(domain):
        has = domain.schedulerParameters()
        return has["global_quota"], has["global_period"], has["vcpu_quota"]

    def define(self, libvirtd, cputune):
        xml = libvirtd.xml().replace("<os>", f"<cputune>{cputune}</cputune><os>")
        domain = libvirtd.connection.defineXML(xml)
        domain.create()
        return domain

    def test_the_weight_is_in_the_definition_as_well_and_follows_the_guest(self, driver, watched, libvirtd):
        domain = libvirtd.run(persistent=True)
        guest = watched.started()
        for weight, shares in ((200, 2048), (400, 4096), (1, 10)):
            assert driver.apply_cpu_limits(guest, CpuLimits(weight))
            assert self.shares(domain, libvirtd) == (shares, shares)

    def test_the_weight_is_the_agents_for_another_agent_too(self, driver, watched, libvirtd):
        domain = libvirtd.run(persistent=True)
        guest = watched.started()
        driver.apply_cpu_limits(guest, CpuLimits(200))
        other = LibvirtDriver(libvirtd.uri)
        try:
            assert other.apply_cpu_limits(guest, CpuLimits(400))
        finally:
            other.close()
        assert self.shares(domain, libvirtd) == (4096, 4096)

    @pytest.mark.parametrize("persistent", [True, False])
    def test_foreign_shares_of_the_definition_stay(self, driver, watched, libvirtd, persistent):
        if persistent:
            domain = self.define(libvirtd, "<shares>300</shares>")
        else:
            xml = libvirtd.xml().replace("<os>", "<cputune><shares>300</shares></cputune><os>")
            domain = libvirtd.connection.createXML(xml)
        guest = watched.started()
        assert driver.cpu_limits(guest, CpuLimits(200)) is None
        assert driver.apply_cpu_limits(guest, CpuLimits(200, 0.5))
        assert driver.apply_cpu_limits(guest, CpuLimits(200))
        assert domain.schedulerParameters()["cpu_shares"] == 300

    def test_shares_that_were_changed_by_hand_are_put_right(self, driver, watched, libvirtd):
        domain = libvirtd.run(persistent=True)
        guest = watched.started()
        driver.apply_cpu_limits(guest, CpuLimits(200))
        domain.setSchedulerParametersFlags({"cpu_shares": 10240}, libvirtd.libvirt.VIR_DOMAIN_AFFECT_LIVE)
        assert driver.cpu_limits(guest, CpuLimits(200)) == CpuLimits(1000)
        assert driver.apply_cpu_limits(guest, CpuLimits(200))
        assert self.shares(domain, libvirtd) == (2048, 2048)

    def test_the_quota_is_that_of_the_whole_domain_and_in_no_definition(self, driver, watched, libvirtd):
        domain = self.define(libvirtd, "<period>100000</period><quota>20000</quota>")
        guest = watched.started()
        before = domain.XMLDesc(libvirtd.libvirt.VIR_DOMAIN_XML_INACTIVE)
        assert self.quota(domain) == (-1, 100_000, 20_000)
        assert driver.apply_cpu_limits(guest, CpuLimits(quota=0.5))
        assert self.quota(domain) == (50_000, 100_000, 20_000)
        assert driver.apply_cpu_limits(guest, CpuLimits())
        assert self.quota(domain) == (-1, 100_000, 20_000)
        assert domain.XMLDesc(libvirtd.libvirt.VIR_DOMAIN_XML_INACTIVE) == before

    def test_a_quota_of_the_definition_is_what_is_left_without_a_limit(self, driver, watched, libvirtd):
        domain = self.define(
            libvirtd, "<global_period>50000</global_period><global_quota>40000</global_quota>"
        )
        guest = watched.started()
        for limit, quota in ((None, 0.8), (0.5, 0.5), (0.9, 0.8), (0.3, 0.3), (None, 0.8)):
            driver.apply_cpu_limits(guest, CpuLimits(quota=limit))
            has, period, _ = self.quota(domain)
            assert has / period == quota
            assert driver.cpu_limits(guest, CpuLimits(quota=limit)) is None

    def test_a_quota_that_libvirt_refuses_is_an_error_that_names_the_guest(self, driver, watched, libvirtd):
        libvirtd.run()
        guest = watched.started()
        with pytest.raises(DriverError, match=re.escape(f"guest {guest} does not accept CPU limits")):
            driver.apply_cpu_limits(guest, CpuLimits(quota=1e12))

    def test_limits_are_seen_while_libvirtd_is_away(self, driver, watched, libvirtd):
        libvirtd.run()
        guest = watched.started()
        driver.apply_cpu_limits(guest, CpuLimits(200, 0.5))
        libvirtd.kill()
        try:
            assert driver.cpu_limits(guest, CpuLimits(200, 0.5)) is None
            assert driver.cpu_limits(guest, CpuLimits(100)) == CpuLimits(200, 0.5)
            with pytest.raises(DriverError) as caught:
                driver.apply_cpu_limits(guest, CpuLimits(100))
            assert not isinstance(caught.value, GuestGoneError)
        finally:
            libvirtd.start()


def test_memory_that_cannot_be_bound_as_libvirtd_is_away_is_bound_later(driver, watched, libvirtd):
    libvirtd.run()
    guest = watched.started()
    libvirtd.kill()
    try:
        with pytest.raises(DriverError):
            driver.bind_memory(guest, ZERO)
    finally:
        libvirtd.start()
    wait_for(lambda: not driver.outage_reason)
    assert driver.bind_memory(guest, ZERO) is libvirtd.has_cgroups


def test_the_reported_cpus_of_each_guest_cpu_are_its_pins(driver, watched, libvirtd):
    libvirtd.run()
    guest = watched.started()
    driver.apply_cpu_settings(guest, APART)
    assert driver.vcpu_affinity(guest) == {0: ZERO, 1: ONE}


class TestChangesOfTheDefinition:
    """Changes of the definition of a running domain, for which libvirtd has no event."""

    @pytest.fixture
    def watched(self, libvirtd):
        watched = Watched(libvirtd.uri, look_interval=0.1)
        yield watched
        watched.driver.close()

    @pytest.fixture
    def driver(self, watched):
        return watched.driver

    @pytest.fixture
    def domain(self, libvirtd):
        return libvirtd.run(persistent=True)

    @pytest.fixture
    def guest(self, driver, watched, domain):
        guest = watched.started()
        driver.apply_cpu_settings(guest, APART)
        assert driver.definition_drift(guest, APART) == ""
        return guest

    @staticmethod
    def pins(domain, config):
        io = domain.ioThreadInfo(config)[0][1]
        return [*domain.vcpuPinInfo(config), domain.emulatorPinInfo(config), tuple(io)]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda domain, flag: domain.pinVcpuFlags(1, (True, True), flag), "guest CPU 1"),
            (lambda domain, flag: domain.pinEmulator((True, True), flag), "the emulator"),
            (lambda domain, flag: domain.pinIOThread(1, (True, True), flag), "I/O thread 1"),
        ],
    )
    def test_pins_that_drift_are_seen_and_repaired(self, driver, domain, guest, libvirtd, change, words):
        config = libvirtd.libvirt.VIR_DOMAIN_AFFECT_CONFIG
        before = self.pins(domain, config)
        change(domain, config)
        wait_for(lambda: driver.definition_drift(guest, APART))
        assert (
            driver.definition_drift(guest, APART) == f"the definition has 1 other pins, such as for {words}"
        )
        assert driver.misplaced_threads(guest, APART) == {}
        assert driver.apply_cpu_settings(guest, APART) == 0
        assert self.pins(domain, config) == before == [(True, False), *[(False, True)] * 3]
        assert driver.definition_drift(guest, APART) == ""

    def test_foreign_pins_to_some_cpus_are_demands_and_stay(self, driver, domain, guest, libvirtd):
        config = libvirtd.libvirt.VIR_DOMAIN_AFFECT_CONFIG
        assert guest.constraints == UNCONSTRAINED
        domain.pinEmulator((True, False), config)
        wait_for(lambda: driver.guests()[0].constraints == PlacementConstraints(emulator=frozenset({0})))
        driver.apply_cpu_settings(guest, SWAPPED)
        assert domain.emulatorPinInfo(config) == (True, False)
        assert domain.vcpuPinInfo(config) == [(False, True), (True, False)]
        assert driver.definition_drift(guest, SWAPPED) == ""
        domain.pinEmulator((True, True), config)
        wait_for(lambda: driver.guests()[0].constraints == UNCONSTRAINED)

    def test_a_definition_that_is_reverted_right_after_the_agent_wrote_it_is_seen(
        self, driver, domain, guest, libvirtd
    ):
        """The definition is reverted before anything has read the definition that the agent wrote."""
        driver.apply_cpu_settings(guest, SWAPPED)
        config = libvirtd.libvirt.VIR_DOMAIN_AFFECT_CONFIG
        for vcpu, cpus in enumerate(((True, False), (False, True))):
            domain.pinVcpuFlags(vcpu, cpus, config)
        wait_for(lambda: "2 other pins" in driver.definition_drift(guest, SWAPPED))

    def test_a_domain_without_definition_has_no_drift(self, driver, watched, libvirtd):
        domain = libvirtd.run()
        guest = watched.started()
        driver.apply_cpu_settings(guest, APART)
        assert driver.definition_drift(guest, SWAPPED) == ""
        libvirtd.connection.defineXML(domain.XMLDesc().replace("cpuset='0'", "cpuset='0-1'"))
        wait_for(lambda: "guest CPU 0" in driver.definition_drift(guest, APART))
        domain.undefine()
        wait_for(lambda: driver.definition_drift(guest, SWAPPED) == "")

    def test_pins_are_seen_again_after_libvirtd_was_away(self, driver, domain, guest, libvirtd):
        libvirtd.kill()
        libvirtd.start()
        domain = libvirtd.connection.lookupByUUIDString(guest.uuid)
        domain.pinEmulator((True, True), libvirtd.libvirt.VIR_DOMAIN_AFFECT_CONFIG)
        wait_for(lambda: "the emulator" in driver.definition_drift(guest, APART))

    def test_each_domain_is_read_in_turn_while_others_cause_many_events(
        self, driver, domain, guest, libvirtd
    ):
        others, libvirt = [libvirtd.run() for _ in range(5)], libvirtd.libvirt
        domain.pinEmulator((True, True), libvirt.VIR_DOMAIN_AFFECT_CONFIG)

        def drifts():
            for other in others:
                other.setMetadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, "<x/>", "x", "urn:x")
            return driver.definition_drift(guest, APART)

        wait_for(drifts, pause=0.001)

    def test_shares_of_an_operator_count_as_soon_as_they_are_seen(self, driver, domain, guest, libvirtd):
        if not libvirtd.has_cgroups:
            pytest.skip("needs cgroups for guests")
        driver.apply_cpu_limits(guest, CpuLimits(200))
        domain.setSchedulerParametersFlags({"cpu_shares": 300}, libvirtd.libvirt.VIR_DOMAIN_AFFECT_CONFIG)
        wait_for(lambda: driver.cpu_limits(guest, CpuLimits(400)) is None)  # the weight is left alone
        domain.setSchedulerParametersFlags({"cpu_shares": 300}, libvirtd.libvirt.VIR_DOMAIN_AFFECT_LIVE)
        assert not driver.apply_cpu_limits(guest, CpuLimits(400))
        assert TestCpuLimits.shares(domain, libvirtd) == (300, 300)

    def test_a_quota_of_an_operator_counts_as_soon_as_it_is_seen(self, driver, domain, guest, libvirtd):
        if not libvirtd.has_cgroups:
            pytest.skip("needs cgroups for guests")
        config = libvirtd.libvirt.VIR_DOMAIN_AFFECT_CONFIG
        for quota, goes_to in ((40_000, 0.4), (-1, None)):
            domain.setSchedulerParametersFlags({"global_quota": quota, "global_period": 100_000}, config)
            wait_for(lambda: driver.cpu_limits(guest, CpuLimits()) is not None)
            assert driver.apply_cpu_limits(guest, CpuLimits())
            has, period, _ = TestCpuLimits.quota(domain)
            assert (has / period if has > 0 else None) == goes_to
