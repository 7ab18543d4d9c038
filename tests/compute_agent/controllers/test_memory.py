"""Tests of controller memory: a guest's memory is bound to the NUMA nodes of its CPUs, and released."""

from dataclasses import replace

import pytest

from compute_agent.controllers.base import GuestTarget
from compute_agent.controllers.memory import MemoryController
from compute_agent.model.guest import CpuAssignment
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import GuestGoneError
from tests.compute_agent.fakes import FakeDriver

CPUS = frozenset({0, 1})
ZERO, ONE, BOTH = frozenset({0}), frozenset({1}), frozenset({0, 1})


@pytest.fixture
def driver():
    return FakeDriver(CPUS)


@pytest.fixture
def controller(driver):
    return MemoryController(driver)


@pytest.fixture
def on(driver):
    """A function that makes the wanted state of one guest, with memory on these NUMA nodes."""
    guest = driver.create_guest("a", "a", GuestSettings(), ())

    def make(mems):
        assignment = None if mems is None else CpuAssignment((CPUS,), CPUS, mems=mems)
        return GuestTarget(guest, assignment, CPUS)

    return make


def test_memory_goes_with_the_guest_and_is_let_go_when_it_is_shared(controller, driver, on):
    for mems in (ZERO, ONE, BOTH, frozenset()):
        assert controller.apply(on(mems))
        assert driver.nodes["a"] == mems
        assert not controller.apply(on(mems))
        assert controller.describe_drift(on(mems)) is None


def test_memory_that_another_program_bound_is_repaired(controller, driver, on):
    controller.apply(on(ZERO))
    driver.nodes["a"] = BOTH
    assert controller.describe_drift(on(ZERO)) == "memory from NUMA nodes 0-1 in place of 0"
    assert controller.describe_drift(on(frozenset())) == "memory from NUMA nodes 0-1 in place of any"
    assert controller.apply(on(ZERO))
    assert driver.nodes["a"] == ZERO


def test_the_memory_of_a_guest_that_is_left_where_it_is_stays(controller, driver, on):
    driver.nodes["a"] = ONE
    assert controller.describe_drift(on(None)) is None
    assert not controller.apply(on(None))
    assert driver.nodes["a"] == ONE


def test_a_guest_that_ended_is_gone(controller, driver, on):
    target = on(ZERO)
    driver.end(target.guest)
    for ask in (controller.describe_drift, controller.apply):
        with pytest.raises(GuestGoneError):
            ask(target)


def test_memory_of_a_guest_that_starts_is_bound_to_the_nodes_of_its_allocation(controller, driver, on):
    controller.begin_guest(on(None))
    assert "a" not in driver.nodes
    controller.begin_guest(replace(on(None), starting_mems=ONE))
    assert driver.nodes["a"] == ONE


def test_where_another_program_binds_memory_it_also_binds_that_of_starting_guests(driver, on):
    MemoryController(driver, binds_all=False).begin_guest(replace(on(None), starting_mems=ONE))
    assert "a" not in driver.nodes
