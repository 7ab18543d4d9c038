"""What every driver does, on the real one and on the fake that other tests use."""

import os
import queue
import uuid

import pytest

from compute_agent.drivers.base import ChangeKind, CpuSettings, DriverError, GuestGoneError, GuestSettings
from compute_agent.drivers.process import ProcessDriver
from tests.compute_agent.fakes import FakeDriver

ALL = frozenset(os.sched_getaffinity(0))
ONE = frozenset({min(ALL)})
PINNED = CpuSettings((ONE,), ONE)
NOWHERE = CpuSettings((frozenset({1023}),), frozenset({1023}))

pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="needs two CPUs to tell apart")


@pytest.fixture(params=["process", "fake"])
def driver(request, tmp_path):
    driver = ProcessDriver(tmp_path) if request.param == "process" else FakeDriver(ALL)
    yield driver
    for guest in driver.guests():
        driver.stop(guest, 0)
    driver.close()


@pytest.fixture
def guest(driver):
    guest = driver.create(str(uuid.uuid4()), "a", GuestSettings(vcpus=2), ("sleep", "60"))
    driver.release(guest)
    return guest


def test_a_new_guest_is_listed_with_its_settings(driver, guest):
    assert list(driver.guests()) == [guest]
    assert (guest.name, guest.settings.vcpus, guest.driver) == ("a", 2, driver.name)
    assert guest.pid in driver.thread_ids(guest)


def test_settings_are_applied_once_and_read_back(driver, guest):
    assert driver.observed_cpus(guest) == ALL
    assert driver.cpu_affinity(guest, PINNED)[guest.pid] == ALL
    assert driver.apply_cpu_settings(guest, PINNED) == len(driver.thread_ids(guest))
    assert driver.cpu_affinity(guest, PINNED) == {}
    assert driver.observed_cpus(guest) == ONE
    assert driver.apply_cpu_settings(guest, PINNED) == 0


def test_cpus_that_are_not_there_are_refused(driver, guest):
    with pytest.raises(DriverError, match=guest.uuid):
        driver.apply_cpu_settings(guest, NOWHERE)


def test_a_stopped_guest_is_told_of_and_gone(driver, guest):
    changes = queue.SimpleQueue()
    driver.watch(changes.put)
    driver.stop(guest, 10)
    change = changes.get(timeout=10)
    assert (change.kind, change.guest) == (ChangeKind.STOPPED, guest)
    assert list(driver.guests()) == []
    for ask in (driver.observed_cpus, driver.thread_ids, lambda it: driver.apply_cpu_settings(it, PINNED)):
        with pytest.raises(GuestGoneError):
            ask(guest)


def test_a_discarded_guest_leaves_nothing(driver):
    guest = driver.create(str(uuid.uuid4()), "a", GuestSettings(), ("sleep", "60"))
    driver.discard(guest)
    assert list(driver.guests()) == []


def test_the_same_uuid_twice_is_refused(driver, guest):
    with pytest.raises(DriverError, match="exists already"):
        driver.create(guest.uuid, "b", GuestSettings(), ("sleep", "60"))
