"""Tests of controller cpu: weights come from guests' allocations, quotas from watermarks."""

import pytest

from compute_agent.controllers.base import GuestTarget
from compute_agent.controllers.cpu import CpuController, CpusetController, cpu_weight
from compute_agent.drivers.base import CpuLimits, QuotaError
from compute_agent.model.guest import CpuAssignment
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import GuestGoneError
from compute_agent.model.resource import CpuShare, ThrottleControl
from tests.compute_agent.fakes import FakeDriver

CPUS = frozenset({0, 1})
SHARED = CpuAssignment((CPUS,), CPUS)
QUOTA = ThrottleControl("cpu_quota")


@pytest.fixture
def driver():
    return FakeDriver(CPUS)


@pytest.fixture
def controller(driver):
    return CpuController(driver, {"BE"})


@pytest.fixture
def target(driver):
    """A function that makes the wanted state of one guest for the controller."""
    guest = driver.create_guest("a", "a", GuestSettings(), ())

    def make(assignment=SHARED, allocation=None, **limits):
        return GuestTarget(
            guest,
            assignment,
            CPUS,
            allocation,
            {ThrottleControl(name): limit for name, limit in limits.items()},
        )

    return make


@pytest.mark.parametrize(
    ("allocation", "best_effort", "weight"),
    [
        ({"p": {"VCPU": 1}}, False, 100),
        ({"p": {"VCPU": 4, "MEMORY_MB": 4096}}, False, 400),
        ({"p": {"PCPU": 2}}, False, 200),
        ({"p": {"PCPU": 2, "VCPU": 1}, "q": {"VCPU": 3}}, False, 600),
        ({"p": {"VCPU": 4}}, True, 4),
        ({}, False, 100),
        ({}, True, 1),
        ({"p": {"MEMORY_MB": 4096}}, False, 100),
        ({"p": {"VCPU": 100}}, False, 10_000),
        ({"p": {"VCPU": 101}}, False, 10_000),
    ],
)
def test_the_weight_follows_what_the_guest_holds(allocation, best_effort, weight):
    assert cpu_weight(allocation, 1 if best_effort else 100) == weight


def test_a_guest_gets_its_weight_once(controller, driver, target):
    four = target(allocation={"p": {"VCPU": 4}})
    assert controller.describe_drift(four) == "CPU weight 100, no quota in place of weight 400, no quota"
    assert controller.apply(four)
    assert driver.limits["a"] == CpuLimits(400)
    assert controller.describe_drift(four) is None
    assert not controller.apply(four)


def test_a_limit_is_set_and_taken_away_again(controller, driver, target):
    held = {"p": {"VCPU": 2}}
    controller.apply(target(allocation=held))
    for limit in (1.5, 0.25):
        assert controller.apply(target(allocation=held, cpu_quota=limit))
        assert driver.limits["a"] == CpuLimits(200, limit)
    assert controller.describe_drift(target(allocation=held)) == (
        "CPU weight 200, quota 0.25 cores in place of weight 200, no quota"
    )
    assert controller.apply(target(allocation=held))
    assert driver.limits["a"] == CpuLimits(200)


def test_limits_of_other_levers_are_not_for_the_cpu(controller, driver, target):
    controller.apply(target(allocation={}, memory_bandwidth=10.0, cache_ways=1.0))
    assert driver.limits.get("a", CpuLimits(100)) == CpuLimits(100)


@pytest.mark.parametrize(("assignment", "allocation"), [(None, {"p": {"VCPU": 4}}), (SHARED, None)])
def test_the_weight_of_a_guest_that_is_left_alone_stays_but_limits_hold(
    controller, driver, target, assignment, allocation
):
    driver.limits["a"] = CpuLimits(777)
    assert controller.describe_drift(target(assignment, allocation)) is None
    assert controller.apply(target(assignment, allocation, cpu_quota=0.5))
    assert driver.limits["a"] == CpuLimits(777, 0.5)


def test_weights_that_another_program_changed_are_repaired(controller, driver, target):
    held = target(allocation={"p": {"VCPU": 2}})
    controller.apply(held)
    driver.limits["a"] = CpuLimits(1, 0.1)
    assert "weight 1, quota 0.1 cores" in controller.describe_drift(held)
    assert controller.apply(held)
    assert driver.limits["a"] == CpuLimits(200)


def test_a_guest_that_ended_is_gone(controller, driver, target):
    driver.end(target().guest)
    for ask in (controller.describe_drift, controller.apply):
        with pytest.raises(GuestGoneError):
            ask(target(allocation={}))


RECLAIMED = {"p": {"CUSTOM_RECLAIMED_VCPU": 4}}


def shares(**fields):
    return {"LS": CpuShare(**fields)}


def test_a_class_has_its_own_weight(driver, target):
    controller = CpuController(driver, {"BE"}, shares(cpu_weight=250))
    controller.apply(target(allocation={"p": {"VCPU": 2}}))
    assert driver.limits["a"] == CpuLimits(500)


def test_guests_of_an_idle_class_are_idle_until_the_class_is_not(driver, target):
    held = target(allocation={"p": {"VCPU": 2}})
    idle = CpuController(driver, {"BE"}, shares(cpu_idle=True))
    assert idle.apply(held)
    assert driver.limits["a"] == CpuLimits(0, idle=True)
    assert idle.describe_drift(held) is None
    driver.limits["a"] = CpuLimits(100)
    assert idle.describe_drift(held) == "CPU weight 100, no quota in place of idle, no quota"
    idle.apply(held)
    # As long as Placement has not answered, it stays idle.
    assert not idle.apply(target(allocation=None))
    assert CpuController(driver, {"BE"}).apply(held)
    assert driver.limits["a"] == CpuLimits(200)


def test_an_idle_guest_is_released(driver, target):
    held = target(allocation={"p": {"VCPU": 2}}, cpu_quota=1.0)
    controller = CpuController(driver, {"BE"}, shares(cpu_idle=True))
    controller.apply(held)
    quota, idle = controller.release([held.guest], CPUS)
    assert (quota.detail, idle.detail) == ("1 cores", "idle")
    quota.give_back()
    assert driver.limits["a"] == CpuLimits(0, idle=True)
    idle.give_back()
    assert driver.limits["a"] == CpuLimits(100)
    assert list(controller.release([held.guest], CPUS)) == []


@pytest.mark.parametrize(
    ("allocation", "throttled", "quota"),
    [
        (RECLAIMED, None, 6.0),
        (RECLAIMED, 2.0, 2.0),
        (RECLAIMED, 8.0, 6.0),
        ({"p": {"VCPU": 4}}, None, None),
        ({"p": {"VCPU": 1, "CUSTOM_RECLAIMED_VCPU": 4}}, None, None),
        (None, None, None),
    ],
)
def test_guests_on_reclaimed_cpus_have_a_cap(driver, target, allocation, throttled, quota):
    controller = CpuController(driver, {"BE"}, shares(reclaimed_cap=150))
    limits = {} if throttled is None else {"cpu_quota": throttled}
    held = target(allocation=allocation, **limits)
    controller.sync((held,), ())
    controller.apply(held)
    assert driver.limits.get("a", CpuLimits()).quota == quota


def test_a_guest_that_can_have_no_quota_is_told_and_runs_without_cap(driver, target, monkeypatch):
    controller = CpuController(driver, {"BE"}, shares(reclaimed_cap=100))
    held, limits = target(allocation=RECLAIMED), driver.cpu_limits

    def refuse(guest, wanted):
        if wanted.quota is not None:
            raise QuotaError(guest, wanted.quota, "it has no group")
        return limits(guest, wanted)

    monkeypatch.setattr(driver, "cpu_limits", refuse)
    controller.sync((held,), ())
    assert controller.refused == {"a": ("guest a cannot be limited to 4 cores: it has no group",)}
    assert controller.apply(held)
    assert driver.limits["a"] == CpuLimits(400)


def test_a_guest_that_can_have_no_burst_is_told_while_it_is_limited(driver, target, monkeypatch):
    controller = CpuController(driver, {"BE"}, shares(cpu_burst=50))

    def list_missing(guest, wanted):
        return [f"no burst of {wanted.burst:g}"] if wanted.burst else []

    monkeypatch.setattr(driver, "missing_limits", list_missing)
    for limits, told in (({"cpu_quota": 2.0}, {"a": ("no burst of 1",)}), ({}, {})):
        controller.sync((target(allocation={"p": {"VCPU": 2}}, **limits),), ())
        assert controller.refused == told


def test_a_burst_follows_the_quota(driver, target):
    controller = CpuController(driver, {"BE"}, shares(cpu_burst=50))
    held = {"p": {"VCPU": 2}}
    controller.apply(target(allocation=held, cpu_quota=2.0))
    assert driver.limits["a"] == CpuLimits(200, 2.0, burst=1.0)
    controller.apply(target(allocation=held, cpu_quota=0.5))
    assert driver.limits["a"] == CpuLimits(200, 0.5, burst=0.25)
    controller.apply(target(allocation=held))
    assert driver.limits["a"] == CpuLimits(200)


def test_missing_files_of_the_kernel_are_reasons_of_refusal(driver, target):
    driver.without_limits = ["cpu_idle: the kernel has no cpu.idle here"]
    held = target(allocation={"p": {"VCPU": 2}})
    controller = CpuController(driver, {"BE"}, shares(cpu_idle=True))
    controller.sync((held,), ())
    assert controller.refused == {"a": ("cpu_idle: the kernel has no cpu.idle here",)}
    plain = CpuController(driver, {"BE"})
    plain.sync((held,), ())
    assert plain.refused == {}


def test_helpers_that_cannot_be_moved_are_refusals(driver, target):
    controller = CpusetController(driver)
    driver.stuck["a"] = ["its helper swtpm (30) stays on CPUs 0-1: Invalid argument"]
    controller.sync([target()], ())
    assert controller.refused == {"a": tuple(driver.stuck["a"])}
    driver.stuck.clear()
    controller.sync([target()], ())
    assert controller.refused == {}
    driver.running.clear()
    controller.sync([target()], ())
