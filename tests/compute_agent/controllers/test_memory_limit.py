"""Tests of controller memory_limit: guests may use their allocation, and QoS classes decide which guests lose
memory first.
"""

from dataclasses import replace

import pytest

from compute_agent.controllers.base import GuestTarget
from compute_agent.controllers.memory import MemoryLimitController, memory_limits
from compute_agent.drivers.base import UNLIMITED, MemoryLimits
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import GuestGoneError
from compute_agent.model.resource import MEMORY_HIGH, RECLAIMED_MEMORY, MemoryShare, ThrottleControl
from tests.compute_agent.fakes import FakeDriver

MIB = 1 << 20
CPUS = frozenset({0, 1})
CLASSES = {"BE": MemoryShare(high=90, oom_score_adj=500), "LSR": MemoryShare(low=100, oom_score_adj=-500)}


@pytest.fixture
def driver():
    return FakeDriver(CPUS)


@pytest.fixture
def controller(driver):
    return MemoryLimitController(driver, CLASSES, 64)


@pytest.fixture
def target(driver):
    guests = {}

    def make(allocation, qos_class="LS"):
        if qos_class not in guests:
            guests[qos_class] = driver.create_guest(qos_class, "a", GuestSettings(qos_class=qos_class), ())
        return GuestTarget(guests[qos_class], None, CPUS, allocation)

    return make


@pytest.mark.parametrize(
    ("allocation", "share", "limits"),
    [
        ({"p": {"MEMORY_MB": 100}}, MemoryShare(), (164 * MIB, UNLIMITED, 0, 100)),
        ({"p": {"MEMORY_MB": 100}, "q": {"MEMORY_MB": 28}}, MemoryShare(), (192 * MIB, UNLIMITED, 0, 100)),
        ({"p": {"MEMORY_MB": 100}}, CLASSES["BE"], (164 * MIB, 90 * MIB, 0, 500)),
        ({"p": {"MEMORY_MB": 100}}, CLASSES["LSR"], (164 * MIB, UNLIMITED, 100 * MIB, -500)),
        ({"p": {RECLAIMED_MEMORY: 100}}, CLASSES["BE"], (164 * MIB, 90 * MIB, 0, 500)),
        ({"p": {"VCPU": 1}}, CLASSES["LSR"], (UNLIMITED, UNLIMITED, 0, -500)),
        ({}, CLASSES["BE"], (UNLIMITED, UNLIMITED, 0, 500)),
        ({}, MemoryShare(limit_mb=50), (50 * MIB, UNLIMITED, 0, 100)),
        ({"p": {"MEMORY_MB": 100}}, MemoryShare(limit_mb=50), (164 * MIB, UNLIMITED, 0, 100)),
    ],
)
def test_limits_follow_what_the_guest_holds_and_its_class(allocation, share, limits):
    assert memory_limits(allocation, share, 64) == MemoryLimits(*limits, minimum=0, oom_group=False)


def test_limits_are_set_once_and_what_differs_is_drift(controller, driver, target):
    held = target({"p": {"MEMORY_MB": 100}}, "LSR")
    assert controller.apply(held)
    assert driver.memory["LSR"] == MemoryLimits(164 * MIB, UNLIMITED, 100 * MIB, -500, (), 0, False)
    assert not controller.apply(held)
    driver.memory["LSR"] = MemoryLimits(UNLIMITED, UNLIMITED, 0, 0, (), 5 * MIB, True)
    assert controller.describe_drift(held) == (
        "memory max unlimited, high unlimited, low 0 MiB, min 5 MiB, oom_score_adj 0, oom.group 1 in place of"
        " max 164 MiB, high unlimited, low 100 MiB, min 0 MiB, oom_score_adj -500, oom.group 0"
    )
    assert controller.apply(held)
    assert controller.describe_drift(held) is None


def test_limits_of_a_guest_of_which_nothing_is_known_stay(controller, driver, target):
    driver.memory["LS"] = MemoryLimits(5 * MIB, UNLIMITED, 0, 7)
    assert controller.describe_drift(target(None)) is None
    assert not controller.apply(target(None))


def test_a_guest_that_uses_more_than_it_may_is_shown_and_not_killed_by_a_limit(controller, driver, target):
    held = target({"p": {"MEMORY_MB": 100}}, "BE")
    driver.memory_used["BE"] = 165 * MIB
    controller.sync([held], ())
    assert controller.apply(held)
    assert driver.memory["BE"] == MemoryLimits(UNLIMITED, 90 * MIB, 0, 500, (), 0, False)
    (reason,) = controller.refused["BE"]
    assert "it uses 165 MiB, but may use only 164: the agent sets memory.max once it uses less" in reason
    driver.memory_used["BE"] = 164 * MIB
    controller.sync([held], ())
    assert controller.refused == {}
    assert controller.apply(held)
    assert driver.memory["BE"].maximum == 164 * MIB


def test_limits_that_a_guest_cannot_have_are_told(controller, driver, target):
    held = target({"p": {"MEMORY_MB": 100}})
    driver.without_memory = ("oom_group: no",)
    controller.sync([held], ())
    assert controller.refused == {"LS": ("oom_group: no",)}
    driver.discard(held.guest)
    controller.sync([held], ())
    assert controller.refused == {}


def test_a_guest_gets_the_huge_pages_that_it_holds_and_no_more(driver, target):
    controller = MemoryLimitController(driver, CLASSES, 64, limits_pages=True)
    pages = {"CUSTOM_HUGE_PAGES_2MB": 3, "CUSTOM_HUGE_PAGES_1GB": 1}
    held = target({"p": pages, "q": {"CUSTOM_HUGE_PAGES_2MB": 1}})
    controller.sync([held], ())
    assert controller.apply(held)
    assert dict(driver.memory["LS"].huge_pages) == {
        64: 0, 2048: 8 * MIB, 32768: 0, 524288: 0, 1048576: 1024 * MIB, 16777216: 0,
    }  # fmt: skip
    assert not controller.apply(held)


def test_a_guest_that_uses_more_pages_than_it_holds_keeps_them_and_gets_no_more(driver, target):
    controller = MemoryLimitController(driver, CLASSES, 64, limits_pages=True)
    held = target({"p": {"CUSTOM_HUGE_PAGES_2MB": 1}})
    driver.pages_used["LS"] = {2048: 6 * MIB}
    controller.sync([held], ())
    (reason,) = controller.refused["LS"]
    assert "it uses 3 huge pages of 2048 KiB, but may use only 1" in reason
    controller.apply(held)
    assert dict(driver.memory["LS"].huge_pages)[2048] == 6 * MIB
    driver.pages_used["LS"] = {2048: 2 * MIB}
    controller.sync([held], ())
    assert controller.refused == {}
    assert "6 MiB in pages of 2048 KiB" in controller.describe_drift(held)
    assert controller.apply(held)
    assert dict(driver.memory["LS"].huge_pages)[2048] == 2 * MIB


def test_a_guest_that_ended_is_gone(controller, driver, target):
    held = target({"p": {"MEMORY_MB": 100}})
    driver.end(held.guest)
    controller.sync([held], ())
    for ask in (controller.describe_drift, controller.apply):
        with pytest.raises(GuestGoneError):
            ask(held)


def test_class_protects_memory_and_has_all_processes_killed_together():
    share = MemoryShare(minimum=25, oom_group=True)
    found = memory_limits({"p": {"MEMORY_MB": 100}}, share, 64)
    assert (found.minimum, found.oom_group) == (25 * MIB, True)


@pytest.mark.parametrize(("qos_class", "throttle", "high"), [("LS", 60, 60), ("BE", 60, 60), ("BE", 95, 90)])
def test_lower_of_the_limits_of_class_and_throttling_applies(
    controller, driver, target, qos_class, throttle, high
):
    held = target({"p": {"MEMORY_MB": 100}}, qos_class)
    limited = replace(held, limits={ThrottleControl(MEMORY_HIGH): float(throttle * MIB)})
    assert controller.apply(limited)
    assert driver.memory[qos_class].high == high * MIB
    controller.apply(held)
    assert driver.memory[qos_class].high == {"LS": UNLIMITED, "BE": 90 * MIB}[qos_class]
