"""Tests of the contract of drivers, on the real drivers and on the fake driver that other tests use."""

import os
import queue
import re
import threading
import uuid
from collections import Counter
from typing import Any

import pytest

from compute_agent.drivers import procfs
from compute_agent.drivers.base import ChangeKind, CpuLimits, CpuSettings, MemoryLimits
from compute_agent.drivers.cgroup import CgroupRoot
from compute_agent.drivers.combined import CombinedDriver
from compute_agent.drivers.containers.driver import ContainerDriver
from compute_agent.drivers.foreign.records import ValueRecords
from compute_agent.drivers.libvirt.driver import LibvirtDriver
from compute_agent.drivers.processes.driver import ProcessDriver
from compute_agent.drivers.systemd.driver import SystemdDriver
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import DriverError, GuestGoneError
from tests.compute_agent.cgroups import FakeCgroups
from tests.compute_agent.drivers.containers.fake_engine import FakeEngine
from tests.compute_agent.fakes import FakeDriver
from tests.waits import wait_for

ALL = frozenset(os.sched_getaffinity(0))
ONE = frozenset({min(ALL)})
PINNED = CpuSettings((ONE,), ONE)
NOWHERE = CpuSettings((frozenset({1023}),), frozenset({1023}))

pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="needs two CPUs to tell apart")


def open_driver(kind, request, tmp_path):
    match kind:
        case "process":
            return ProcessDriver(tmp_path)
        case "process in groups":
            tree = FakeCgroups(tmp_path / "cgroup", request.getfixturevalue("monkeypatch"))
            return ProcessDriver(tmp_path / "guests", CgroupRoot.open(tree.folder))
        case "libvirt":
            return LibvirtDriver(request.getfixturevalue("libvirtd").uri)
        case "systemd":
            return request.getfixturevalue("services").driver
        case "containers":
            return request.getfixturevalue("containers").driver
        case "fake":
            return FakeDriver(ALL)
    # Several drivers: the tested driver is the last, and another driver comes before it.
    kind = kind.removesuffix(" beside another")
    return CombinedDriver([FakeDriver(ALL, "another"), open_driver(kind, request, tmp_path)])


def only(driver):
    """The tested driver alone, without the driver that is combined with it."""
    return driver.drivers[-1] if isinstance(driver, CombinedDriver) else driver


@pytest.fixture(
    params=[
        *("process", "process in groups", "systemd", "containers", "fake"),
        *("process beside another", "process in groups beside another", "systemd beside another"),
        "containers beside another",
        pytest.param("libvirt", marks=pytest.mark.slow),
        pytest.param("libvirt beside another", marks=pytest.mark.slow),
    ]
)
def driver(request, tmp_path):
    driver = open_driver(request.param, request, tmp_path)
    yield driver
    for guest in driver.guests():
        driver.stop(guest, 0)
    driver.close()


@pytest.fixture(params=["process", "process in groups", "fake"])
def starting_driver(request, tmp_path):
    """A driver for guests that the agent starts itself."""
    driver = open_driver(request.param, request, tmp_path)
    yield driver
    for guest in driver.guests():
        driver.stop(guest, 0)
    driver.close()


@pytest.fixture
def services(tmp_path):
    """A fake systemd with a driver."""
    pytest.importorskip("jeepney", reason="needs jeepney, of the extra systemd")
    from tests.compute_agent.drivers.systemd.fake_systemd import FakeSystemd

    fake: Any = FakeSystemd(tmp_path)
    records = ValueRecords(tmp_path / "records", "service")
    fake.driver = SystemdDriver(fake.path, "host", records, fake.folders)
    yield fake
    fake.close()


@pytest.fixture
def containers(tmp_path, monkeypatch):
    """A fake engine with a driver."""
    fake: Any = FakeEngine(tmp_path, monkeypatch)
    records = ValueRecords(tmp_path / "records", "container")
    fake.driver = ContainerDriver("podman", fake.path, "host", records, fake.folders)
    yield fake
    fake.close()


@pytest.fixture
def guest(driver, request):
    guest_uuid = str(uuid.uuid4())
    if isinstance(only(driver), ContainerDriver):
        labels = {"compute-agent.guest": "true", "compute-agent.vcpus": "2"}
        request.getfixturevalue("containers").start("a-1", labels)
        return wait_for(driver.guests)[0]
    if isinstance(only(driver), SystemdDriver):
        request.getfixturevalue("services").start("a-1.service", "[X-ComputeAgent]\nVcpus=2\n")
        return wait_for(driver.guests)[0]
    if isinstance(only(driver), LibvirtDriver):
        libvirtd = request.getfixturevalue("libvirtd")
        # a cgroup with the CPUs of a namesake may be left from a libvirtd that was killed
        libvirtd.run(guest_uuid, name=f"a-{libvirtd.folder.name}", vcpus=2)
        return wait_for(driver.guests)[0]
    starting = only(driver).starting_driver
    guest = starting.create_guest(guest_uuid, "a", GuestSettings(vcpus=2), ("sleep", "60"))
    starting.release(guest)
    return guest


@pytest.fixture
def has_groups(driver, guest, request):
    """Whether guests have cgroups in which CPU use can be limited and memory can be bound."""
    match only(driver):
        case LibvirtDriver():
            return request.getfixturevalue("libvirtd").has_cgroups
        case ProcessDriver():
            return bool(guest.cgroup)
    return True


def test_a_new_guest_is_listed_with_its_settings(driver, guest):
    assert list(driver.guests()) == [guest]
    assert (guest.name.split("-")[0], guest.settings.vcpus, guest.driver) == ("a", 2, only(driver).name)
    assert guest.pid in driver.thread_ids(guest)
    assert driver.vcpu_threads(guest) <= driver.thread_ids(guest)
    assert driver.vcpu_threads(guest)


def test_settings_are_applied_once_and_read_back(driver, guest):
    assert driver.observed_cpus(guest) == ALL
    assert driver.misplaced_threads(guest, PINNED)[guest.pid] == ALL
    assert driver.apply_cpu_settings(guest, PINNED) == len(driver.thread_ids(guest))
    assert driver.misplaced_threads(guest, PINNED) == {}
    assert driver.observed_cpus(guest) == ONE
    assert driver.apply_cpu_settings(guest, PINNED) == 0


def test_a_guest_is_defined_to_run_where_it_does(driver, guest):
    driver.apply_cpu_settings(guest, PINNED)
    assert driver.definition_drift(guest, PINNED) == ""


def test_cpus_that_are_not_there_are_refused(driver, guest):
    with pytest.raises(DriverError, match=guest.uuid):
        driver.apply_cpu_settings(guest, NOWHERE)


def test_the_reported_cpus_of_guest_cpus_are_their_pins_where_the_driver_knows_them(driver, guest):
    driver.apply_cpu_settings(guest, PINNED)
    told = isinstance(only(driver), LibvirtDriver)
    assert driver.vcpu_affinity(guest) == ({0: ONE, 1: ONE} if told else {})
    assert driver.emulator_affinity(guest) == (ONE if told else frozenset())


def test_cpu_limits_are_set_once_changed_and_taken_away_again(driver, guest, has_groups):
    if not has_groups:
        pytest.skip("guests have no groups here")
    steps = [CpuLimits(200), CpuLimits(200, 0.5), CpuLimits(1, 1.25), CpuLimits(10_000, 0.3333333)]
    if not driver.missing_limits(guest, CpuLimits(idle=True, burst=0.5)):
        steps += [
            CpuLimits(200, 1.0, burst=0.5),
            CpuLimits(200, 0.3, burst=0.2),
            CpuLimits(idle=True),
            CpuLimits(300, 0.5, idle=True, burst=0.5),
            CpuLimits(200),
            CpuLimits(quota=0.5, idle=True),
        ]
    for wanted in [*steps, CpuLimits(100)]:
        assert driver.cpu_limits(guest, wanted) is not None
        assert driver.apply_cpu_limits(guest, wanted)
        assert driver.cpu_limits(guest, wanted) is None
        assert not driver.apply_cpu_limits(guest, wanted)
    assert driver.cpu_limits(guest, CpuLimits(quota=2)) == CpuLimits(100)
    assert driver.cpu_limits(guest, CpuLimits()) is None


def test_a_guest_that_cannot_be_limited_is_only_an_error_if_it_has_to_be(driver, guest, has_groups):
    if has_groups:
        pytest.skip("guests have groups here")
    assert driver.cpu_limits(guest, CpuLimits(200)) is None
    assert not driver.apply_cpu_limits(guest, CpuLimits(200))
    for ask in (driver.cpu_limits, driver.apply_cpu_limits):
        with pytest.raises(
            DriverError, match=rf"{re.escape(str(guest))} cannot be limited to 0\.5 cores: .*cgroup"
        ):
            ask(guest, CpuLimits(quota=0.5))


def test_memory_that_is_not_bound_is_left_alone(driver, guest):
    assert driver.memory_nodes(guest, frozenset()) is None
    assert not driver.bind_memory(guest, frozenset())


def test_memory_is_bound_once_or_left_where_it_is(driver, guest, has_groups, monkeypatch):
    node = frozenset({0})
    monkeypatch.setattr(procfs, "nodes_with_memory", lambda: frozenset({0, 1}))
    assert driver.bind_memory(guest, node) is has_groups
    assert driver.memory_nodes(guest, node) is None
    assert not driver.bind_memory(guest, node)


def test_the_oom_score_of_a_guest_is_set_once_and_read_back(driver, guest):
    for score in (300, 400):
        wanted = MemoryLimits(oom_score_adj=score)
        assert driver.memory_limits(guest, wanted) is not None
        assert driver.limit_memory(guest, wanted)
        assert driver.memory_limits(guest, wanted) is None
        assert not driver.limit_memory(guest, wanted)
    assert driver.memory_limits(guest, MemoryLimits()) is None
    assert driver.oom_kills() == []


def test_a_stopped_guest_is_reported_and_gone(driver, guest):
    changes = queue.SimpleQueue()
    driver.watch_guests(changes.put)
    driver.stop(guest, 0.5)
    change = changes.get(timeout=10)
    assert (change.kind, change.guest) == (ChangeKind.STOPPED, guest)
    assert list(driver.guests()) == []
    for ask in (
        driver.observed_cpus,
        driver.thread_ids,
        driver.vcpu_threads,
        driver.vcpu_affinity,
        driver.emulator_affinity,
        driver.helper_affinity,
        driver.stuck_helpers,
        lambda it: driver.apply_cpu_settings(it, PINNED),
        lambda it: driver.definition_drift(it, PINNED),
        lambda it: driver.cpu_limits(it, CpuLimits(1)),
        lambda it: driver.apply_cpu_limits(it, CpuLimits(1)),
        lambda it: driver.memory_nodes(it, frozenset()),
        lambda it: driver.bind_memory(it, frozenset()),
        lambda it: driver.memory_use(it),
        lambda it: driver.huge_page_use(it),
        lambda it: driver.memory_limits(it, MemoryLimits(oom_score_adj=1)),
        lambda it: driver.memory_missing(it, MemoryLimits(oom_group=True)),
        lambda it: driver.limit_memory(it, MemoryLimits(oom_score_adj=1)),
    ):
        with pytest.raises(GuestGoneError):
            ask(guest)


def test_the_end_of_a_guest_is_reported_and_its_chosen_settings_are_declared(starting_driver):
    driver, changes = starting_driver, queue.Queue()
    driver.watch_guests(changes.put)
    settings = GuestSettings(priority=3)
    guest = driver.create_guest(str(uuid.uuid4()), "a", settings, ("sleep", "60"), declared=("qos_class",))
    driver.release(guest)
    (found,) = driver.guests()
    assert found.declared == {"qos_class": "LS", "priority": 3}
    driver.stop(found, 0)
    assert changes.get(timeout=10).kind is ChangeKind.STOPPED


def test_a_discarded_guest_leaves_nothing(starting_driver):
    guest = starting_driver.create_guest(str(uuid.uuid4()), "a", GuestSettings(), ("sleep", "60"))
    starting_driver.discard(guest)
    assert list(starting_driver.guests()) == []


def test_the_same_uuid_twice_is_refused(starting_driver):
    guest = starting_driver.create_guest(str(uuid.uuid4()), "a", GuestSettings(), ("sleep", "60"))
    starting_driver.release(guest)
    with pytest.raises(DriverError, match="exists already"):
        starting_driver.create_guest(guest.uuid, "b", GuestSettings(), ("sleep", "60"))


@pytest.fixture
def paths_read(monkeypatch):
    """How often each file and folder of guests' processes and groups is read, by its path, in this thread."""
    found, thread = Counter(), threading.get_ident()

    def count_reads(name):
        original = getattr(os, name)

        def counted(path, *arguments, **options):
            text = str(path)
            if threading.get_ident() == thread and re.match(r"/proc/[0-9]+/|.*/cgroup\.", text):
                found[text] += 1
            return original(path, *arguments, **options)

        monkeypatch.setattr(os, name, counted)

    for name in ("open", "listdir", "scandir"):
        count_reads(name)
    return found


def compare_guest(driver, guest):
    """Compare what the controllers of a round compare."""
    driver.misplaced_threads(guest, PINNED)
    driver.definition_drift(guest, PINNED)
    driver.recent_threads(guest)
    driver.cpu_limits(guest, CpuLimits())
    driver.memory_nodes(guest, frozenset())
    driver.stuck_helpers(guest)


def test_a_round_reads_each_file_of_a_guest_at_most_once(driver, guest, paths_read):
    driver.watch_guests(lambda change: None)  # as in the agent, where a poll says whether processes run
    driver.apply_cpu_settings(guest, PINNED)
    compare_guest(driver, guest)  # the driver keeps the names of threads, for example
    for _ in range(3):
        paths_read.clear()
        with procfs.sharing_reads() as readings:
            assert guest.uuid in {one.uuid for one in driver.guests()}
        with procfs.sharing_reads(readings):
            compare_guest(driver, guest)
        assert {path: count for path, count in paths_read.items() if count > 1} == {}


def test_a_round_reads_affinities_again_and_sees_an_end_before_it(driver, guest):
    with procfs.sharing_reads():
        assert driver.recent_threads(guest) == driver.thread_ids(guest)
        assert driver.misplaced_threads(guest, PINNED)
        driver.apply_cpu_settings(guest, PINNED)
    with procfs.sharing_reads():
        assert driver.misplaced_threads(guest, PINNED) == {}
    driver.stop(guest, 0.5)
    with procfs.sharing_reads():
        for ask in (driver.recent_threads, lambda it: driver.misplaced_threads(it, PINNED)):
            with pytest.raises(GuestGoneError):
                ask(guest)
        assert guest.uuid not in {one.uuid for one in driver.guests()}
