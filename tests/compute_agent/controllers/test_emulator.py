"""Tests of controller emulator: if another program pins guests, emulator threads leave dedicated CPUs, and
later return.
"""

from dataclasses import replace

import pytest

from compute_agent.controllers.base import GuestTarget
from compute_agent.controllers.emulator import EmulatorController, EmulatorSettings
from compute_agent.model.guest import CpuAssignment, PlacementConstraints
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import DriverError
from tests.compute_agent.builders import cpu_set
from tests.compute_agent.fakes import FakeDriver

ONLINE = frozenset(range(4))
SHARED, OWN = cpu_set(0), cpu_set(2, 3)
SETTINGS = EmulatorSettings(True, SHARED, {0: ONLINE})


@pytest.fixture
def driver():
    driver = FakeDriver(ONLINE)
    driver.create_guest("a", "a", GuestSettings(), ())
    driver.emulators["a"] = {7: OWN, 8: SHARED}
    return driver


@pytest.fixture
def controller(driver):
    return EmulatorController(driver, SETTINGS)


def target_of(driver, **settings):
    guest = replace(
        driver.running["a"],
        settings=GuestSettings(vcpus=2, **settings),
        constraints=PlacementConstraints(emulator=OWN),
    )
    place = CpuAssignment((cpu_set(2), cpu_set(3)), OWN, (2, 3), given=True)
    return GuestTarget(guest, place, ONLINE)


def reconcile(controller, target):
    controller.sync([target], ())
    return controller.apply(target)


def test_threads_on_dedicated_cpus_are_moved_and_given_back(controller, driver):
    target = target_of(driver)
    controller.sync([target], ())
    text = "threads that run no guest CPU may use dedicated CPUs 2-3: 7"
    assert controller.describe_drift(target) == text
    [row] = controller.plan_changes([target], ())
    assert row.change == f"{text} -> 0"
    assert controller.apply(target)
    assert driver.emulators["a"] == {7: SHARED, 8: SHARED}
    assert controller.describe_drift(target) is None
    assert not reconcile(controller, target)

    [item] = EmulatorController(driver, EmulatorSettings()).release([target.guest], ONLINE)
    assert (item.kind, item.detail) == ("pins", "emulator CPUs 0")
    item.give_back()
    assert driver.emulators["a"][7] == OWN
    assert not list(controller.release([target.guest], ONLINE))


def test_threads_that_start_later_are_moved_in_the_next_round(controller, driver):
    target = target_of(driver)
    reconcile(controller, target)
    driver.emulators["a"][9] = cpu_set(3)
    assert reconcile(controller, target)
    assert driver.emulators["a"][9] == SHARED


def test_threads_stay_unless_the_option_says_move(driver):
    controller = EmulatorController(driver, replace(SETTINGS, moves=False))
    target = target_of(driver)
    assert not reconcile(controller, target)
    assert controller.describe_drift(target) is None
    assert driver.emulators["a"][7] == OWN
    assert controller.refused == {}


def test_threads_that_do_not_move_are_refusals_and_not_tried_again(controller, driver):
    target = target_of(driver)
    driver.immovable = {7}
    assert not reconcile(controller, target)
    assert controller.describe_drift(target) is None
    controller.sync([target], ())
    [reason] = controller.refused["a"]
    assert "dedicated CPUs 2-3: 7; the kernel does not move them" in reason
    # The controller tries another thread, and then also the former thread.
    driver.emulators["a"][9], driver.immovable = OWN, set()
    assert reconcile(controller, target)
    controller.sync([target], ())
    assert controller.refused == {}


def test_without_a_shared_cpu_threads_stay(driver):
    controller = EmulatorController(driver, replace(SETTINGS, shared=frozenset()))
    target = target_of(driver)
    assert not reconcile(controller, target)
    [reason] = controller.refused["a"]
    assert reason.endswith("7; no shared CPU is free for them")


def test_a_failure_of_the_driver_is_tried_again(controller, driver):
    target = target_of(driver)
    driver.broken = DriverError("libvirtd is away")
    with pytest.raises(DriverError):
        reconcile(controller, target)
    driver.broken = None
    assert reconcile(controller, target)


def test_a_preserved_or_ended_guest_is_no_refusal(controller, driver):
    driver.immovable = {7}
    target = target_of(driver, preserve=True)
    controller.sync([target], ())
    assert controller.refused == {}
    driver.end(driver.running["a"])
    controller.sync([target_of_ended(target)], ())
    assert controller.refused == {}


def target_of_ended(target):
    return replace(target, guest=replace(target.guest, settings=GuestSettings()))
