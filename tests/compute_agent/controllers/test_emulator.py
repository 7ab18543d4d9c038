"""Tests of controller emulator: if another program pins guests, emulator threads leave dedicated CPUs, and
later return.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.controllers.base import GuestTarget
from compute_agent.controllers.emulator import (
    EmulatorController,
    EmulatorSettings,
    find_misplaced,
    tell_misplaced,
)
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


ALL_CPUS = frozenset(range(8))
HOST = EmulatorSettings(True, cpu_set(0, 4), {0: cpu_set(0, 1, 2, 3), 1: cpu_set(4, 5, 6, 7)})
PINNED = CpuAssignment((cpu_set(5), cpu_set(6)), cpu_set(5, 6), (5, 6), given=True)
CPU_SETS = st.frozensets(st.integers(0, 7))


def test_threads_go_to_shared_cpus_of_the_nodes_of_their_guest():
    assert HOST.choose_cpus(PINNED, cpu_set(5, 6), ALL_CPUS) == cpu_set(4)
    both = CpuAssignment((cpu_set(1), cpu_set(6)), cpu_set(1), (1, 6))
    assert HOST.choose_cpus(both, cpu_set(1, 6), ALL_CPUS) == cpu_set(0, 4)
    assert HOST.choose_cpus(PINNED, cpu_set(5, 6), ALL_CPUS - {4}) == cpu_set(0)
    assert HOST.choose_cpus(PINNED, cpu_set(0, 4), ALL_CPUS) == frozenset()


def test_threads_on_dedicated_cpus_are_misplaced():
    threads = {1: cpu_set(5, 6), 2: cpu_set(4), 3: ALL_CPUS, 4: cpu_set(2)}
    held = cpu_set(2, 5, 6)
    assert find_misplaced(threads, PINNED, held) == {1: cpu_set(5, 6), 3: held, 4: cpu_set(2)}


def test_a_cpu_of_their_own_is_none_of_the_reserved_ones():
    alone = CpuAssignment((cpu_set(5),), cpu_set(6), (5, 6), given=True)
    assert find_misplaced({1: cpu_set(6), 2: cpu_set(5, 6)}, alone, cpu_set(5, 6)) == {2: cpu_set(5)}


@given(threads=st.dictionaries(st.integers(1, 9), CPU_SETS, max_size=4), held=CPU_SETS, online=CPU_SETS)
def test_moved_threads_are_not_misplaced_again(threads, held, online):
    cpus = HOST.choose_cpus(PINNED, held, online)
    assert cpus <= online
    moved = threads | dict.fromkeys(find_misplaced(threads, PINNED, held), cpus)
    assert find_misplaced(moved, PINNED, held) == {}


def test_a_sentence_names_few_threads():
    found = {tid: cpu_set(5) for tid in range(1, 7)}
    assert tell_misplaced({}) == ""
    text = "threads that run no guest CPU may use dedicated CPUs 5: 1, 2, 3, 4 and 2 more"
    assert tell_misplaced(found) == text
