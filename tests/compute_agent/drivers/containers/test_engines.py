"""Containers of a fake engine and of a real Podman: found, followed and stopped."""

import os
import tempfile
from pathlib import Path

import pytest

from compute_agent.drivers import procfs
from compute_agent.drivers.base import ChangeKind, CpuSettings
from compute_agent.drivers.cgroup import GuestCgroup
from compute_agent.drivers.containers import engine as engine_module
from compute_agent.drivers.containers.table import ContainerTable
from compute_agent.model.messages import DriverError
from tests.compute_agent.drivers.containers.fake_engine import GUEST, IMAGE, FakeEngine
from tests.compute_agent.drivers.containers.real_podman import IMAGE_LABELS, RealPodman, missing_reason
from tests.waits import wait_for

ALL = frozenset(os.sched_getaffinity(0))
ONE = frozenset({min(ALL)})
DB = "db"


@pytest.fixture(scope="module")
def podman():
    if reason := missing_reason():
        pytest.skip(reason)
    # Podman refuses paths of its state with more than 50 characters, and pytest makes longer ones.
    with tempfile.TemporaryDirectory(prefix="podman-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        real = RealPodman(Path(folder))
        try:
            try:
                real.start("first", {})
            except AssertionError as error:
                pytest.skip(f"podman cannot run a container here: {error}")
            yield real
        finally:
            real.close()


@pytest.fixture(params=["fake", pytest.param("podman", marks=pytest.mark.slow)])
def engine(request, tmp_path, monkeypatch):
    if request.param == "fake":
        fake = FakeEngine(tmp_path, monkeypatch)
        fake.images[IMAGE] = IMAGE_LABELS
        yield fake
        fake.close()
    else:
        real = request.getfixturevalue("podman")
        yield real
        real.remove_all()


def next_change(driver):
    change = driver.changes.get(timeout=30)
    return change.kind, change.guest.name


@pytest.fixture
def follow(engine, open_driver):
    """A driver that has listed its guests."""

    def follow(**options):
        # A real engine may take longer than the usual time limit of a call.
        driver = open_driver(engine, **{"seconds": 60.0, **options})
        wait_for(lambda: not driver.awaited_drivers, seconds=90)
        # If the first list has taken long, its guests are in changes.
        while not driver.changes.empty():
            assert driver.changes.get().kind is ChangeKind.FOUND
        return driver

    return follow


def test_only_containers_with_the_label_are_guests(engine, follow):
    engine.start(DB, {**GUEST, "compute-agent.vcpus": "2", **IMAGE_LABELS})
    engine.start("other", {"compute-agent.vcpus": "2"})
    driver = follow()
    (guest,) = driver.guests()
    assert (guest.name, guest.settings.vcpus, [guest.pid]) == (DB, 2, engine.pids(DB))
    assert guest.pid in GuestCgroup(engine.folders.groups / guest.cgroup).process_ids()
    assert guest.details["container"] in guest.cgroup
    assert list(driver.process_ids(guest)) == [guest.pid]
    # A label of the image has no effect.
    assert guest.declared == {}
    assert driver.lost_guests() == {}


def test_a_start_an_end_and_a_restart_are_reported(engine, follow):
    driver = follow()
    engine.start(DB)
    assert next_change(driver) == (ChangeKind.STARTED, DB)
    engine.restart(DB)
    assert next_change(driver) == (ChangeKind.STOPPED, DB)
    assert next_change(driver) == (ChangeKind.STARTED, DB)
    wait_for(lambda: [guest.pid for guest in driver.guests()] == engine.pids(DB))
    engine.stop(DB)
    assert next_change(driver) == (ChangeKind.STOPPED, DB)
    assert driver.guests() == []


def test_containers_are_guests_by_their_names(engine, follow):
    engine.start("nova_api", {})
    driver = follow(guest_names=["nova_*", "neutron_server"])
    engine.start("nova_conductor", {})
    assert next_change(driver) == (ChangeKind.STARTED, "nova_conductor")
    engine.start("glance_api", {})
    engine.start("nova_libvirt", {"compute-agent.guest": "false"})
    engine.start(DB)
    assert next_change(driver) == (ChangeKind.STARTED, DB)
    engine.restart("nova_api")
    assert next_change(driver) == (ChangeKind.STOPPED, "nova_api")
    assert next_change(driver) == (ChangeKind.STARTED, "nova_api")
    assert {guest.name for guest in driver.guests()} == {"nova_api", "nova_conductor", DB}
    assert driver.lost_guests() == {}


def test_a_list_that_is_too_long_costs_no_guest(engine, follow, monkeypatch, caplog):
    """The labels of an image may make the list as long as the image wants."""
    engine.start(DB)
    driver = follow(look_interval=0.1)
    monkeypatch.setattr(engine_module, "_MAX_ANSWER", 100_000)
    engine.start("long", {"compute-agent.guest": "false", "a": "x" * 60_000, "b": "x" * 60_000})
    wait_for(lambda: "it cannot list containers" in caplog.text)
    engine.start("web")
    assert next_change(driver) == (ChangeKind.STARTED, "web")
    engine.stop(DB)
    assert next_change(driver) == (ChangeKind.STOPPED, DB)
    assert [guest.name for guest in driver.guests()] == ["web"]
    assert (driver.outage_reason, caplog.text.count("it cannot list containers")) == ("", 1)


def test_a_guest_is_stopped_through_the_engine_and_not_started_again(engine, follow):
    engine.start(DB)
    driver = follow()
    (guest,) = driver.guests()
    driver.stop(guest, 5)
    driver.stop(guest, 5)
    assert not engine.is_running(DB)
    wait_for(lambda: driver.guests() == [])


@pytest.fixture
def looks(monkeypatch):
    """The completed lists of all drivers."""
    found, look_around = [], ContainerTable.look_around

    def count_look(table, everything):
        look_around(table, everything)
        found.append(table)

    monkeypatch.setattr(ContainerTable, "look_around", count_look)
    return found


def wait_for_look(looks):
    """Wait for a whole list that begins from now on."""
    before = len(looks)
    wait_for(lambda: len(looks) >= before + 2)


def test_a_paused_container_stays_a_guest_and_can_be_stopped(engine, follow, looks):
    engine.start(DB)
    driver = follow(look_interval=0.1)
    (guest,) = driver.guests()
    engine.pause(DB)
    wait_for_look(looks)
    assert driver.guests() == [guest]
    driver.close()
    later = follow()
    assert later.guests() == [guest]
    later.stop(guest, 5)
    assert procfs.identify_process(guest.pid) is None


def test_a_container_that_is_stopping_stays_a_guest_and_can_be_stopped_sooner(engine, follow, looks):
    engine.start(DB, slow_stop=True)
    driver = follow(look_interval=0.1)
    (guest,) = driver.guests()
    engine.begin_stop(DB)
    wait_for_look(looks)
    assert driver.guests() == [guest]
    driver.stop(guest, 1)
    assert procfs.identify_process(guest.pid) is None
    wait_for(lambda: driver.guests() == [])


def test_cpus_are_set_where_the_group_has_the_controller(engine, follow):
    engine.start(DB)
    driver = follow()
    (guest,) = driver.guests()
    settings = CpuSettings((ONE,), ONE)
    if not GuestCgroup(engine.folders.groups / guest.cgroup).has_file("cpuset.cpus"):
        with pytest.raises(DriverError, match="does not have the controller cpuset"):
            driver.apply_cpu_settings(guest, settings)
        return
    driver.apply_cpu_settings(guest, settings)
    assert driver.observed_cpus(guest) == ONE
    assert driver.misplaced_threads(guest, settings) == {}


def test_a_pod_is_one_guest_or_each_of_its_containers_is(engine, follow):
    engine.start_pod("web")
    engine.join_pod("web", "web-2")
    by_container = follow()
    assert [guest.name for guest in by_container.guests()] == ["web-2"]
    by_container.close()
    driver = follow(whole_pods=True)
    (guest,) = driver.guests()
    pids = {*engine.pids("web-1"), *engine.pids("web-2")}
    assert guest.name == "web"
    assert {guest.pid, *pids} <= set(driver.process_ids(guest))
    assert pids <= driver.thread_ids(guest)
    assert driver.lost_guests() == {}


def test_starts_and_ends_of_a_pod_and_of_its_containers_are_seen(engine, follow):
    driver = follow(whole_pods=True)
    engine.start_pod("web")
    assert next_change(driver) == (ChangeKind.STARTED, "web")
    (guest,) = driver.guests()
    engine.join_pod("web", "web-2", {})
    (pid,) = engine.pids("web-2")
    assert pid in driver.process_ids(guest)
    engine.stop("web-2")
    assert pid not in driver.process_ids(guest)
    # Podman alone does not stop a pod of which a container has ended.
    driver.stop(guest, 5)
    assert next_change(driver) == (ChangeKind.STOPPED, "web")
    assert driver.guests() == []
    assert not engine.is_running("web-1")
    engine.start("other")
    assert next_change(driver) == (ChangeKind.STARTED, "other")


def test_a_pod_that_another_program_stops_and_starts_is_seen(engine, follow):
    engine.start_pod("web")
    driver = follow(whole_pods=True)
    engine.stop_pod("web")
    assert next_change(driver) == (ChangeKind.STOPPED, "web")


def test_a_node_of_kubernetes_is_refused(engine, open_driver):
    engine.start("pod", {"io.kubernetes.pod.uid": "1"})
    driver = open_driver(engine, seconds=60.0)
    wait_for(lambda: "this is a node of Kubernetes" in driver.outage_reason, seconds=90)
