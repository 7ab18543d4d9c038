"""Tests of QoS classes: which of them watermarks never limit, and their ranks."""

import pytest

from compute_agent.classes.guest_classes import (
    DEFAULT_CLASSES,
    QosClass,
    QosClasses,
    parse_classes,
)
from compute_agent.controllers.base import GuestTarget
from compute_agent.controllers.cpu import CpuController
from compute_agent.drivers.base import CpuLimits
from compute_agent.model.guest import CpuAssignment
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import ConfigError
from compute_agent.resctrl.share_spec import ShareSpec, WayRange
from tests.compute_agent.builders import load_text
from tests.compute_agent.fakes import FakeDriver

SHARES = {
    "LSR": ShareSpec(WayRange(0, 100), mb=100),
    "LS": ShareSpec(WayRange(0, 100), mb=100),
    "BE": ShareSpec(WayRange(0, 30), mb=100),
}
CLASSES = QosClasses(
    {name: QosClass(name, rank) for name, rank in (("low", 0), ("top", 10), ("above", 11))}, 10
)


@pytest.mark.parametrize(
    ("name", "protected"), [("low", False), ("top", False), ("above", True), ("nobody's", True)]
)
def test_guests_above_the_highest_class_are_never_acted_on(name: str, protected: bool) -> None:
    assert CLASSES.is_protected(name, dedicated=False) is protected
    assert CLASSES.is_protected(name, dedicated=True) is True


def test_a_class_without_configuration_ranks_above_all_others() -> None:
    assert [CLASSES.rank_of(name) for name in ("low", "top", "above", "nobody's")] == [0, 10, 11, 12]


def test_without_configuration_all_but_best_effort_guests_may_use_all_of_a_cache() -> None:
    """Names, order and meaning are those of Koordinator."""
    assert DEFAULT_CLASSES == SHARES


@pytest.mark.parametrize(
    ("sections", "qos_class", "weight", "score"),
    [
        ("", "BE", 4, 500),
        ("", "LS", 400, 100),
        ("[qos_class:BATCH]\nrank = -5\n", "BATCH", 4, 500),
        ("[qos_class:BATCH]\nrank = 0\n", "BATCH", 4, 500),
        ("[qos_class:BATCH]\nrank = 1\n", "BATCH", 400, 100),
        ("[qos_class:BATCH]\nrank = 1\n[qos_class:BE]\nrank = 2\n", "BATCH", 4, 500),
        ("[qos_class:BATCH]\nrank = -5\noom_score_adj = 7\n", "BATCH", 4, 7),
        ("[qos_class:BE]\ncpu_weight = 5\n[qos_class:BATCH]\nrank = 0\ncpu_weight = 3\n", "BATCH", 12, 500),
        ("[qos_class:GOLD]\nrank = 30\ncpu_weight = 200\n", "GOLD", 800, 100),
    ],
)
def test_no_class_that_gives_way_before_best_effort_has_more_than_it(
    tmp_path, sections, qos_class, weight, score
):
    classes = parse_classes(load_text(tmp_path, sections))
    cpus = frozenset({0, 1})
    driver = FakeDriver(cpus)
    guest = driver.create_guest("a", "a", GuestSettings(qos_class=qos_class), ())
    target = GuestTarget(guest, CpuAssignment((cpus,), cpus), cpus, {"p": {"VCPU": 4}})
    shares = {name: one.cpu for name, one in classes.classes.items()}
    CpuController(driver, classes.best_effort, shares).apply(target)
    assert driver.limits["a"] == CpuLimits(weight)
    assert classes.classes[qos_class].memory.oom_score_adj == score


@pytest.mark.parametrize("rank", [-1, 0])
def test_a_class_that_ranks_no_higher_must_not_weigh_more_than_best_effort(tmp_path, rank):
    classes = load_text(tmp_path, f"[qos_class:BATCH]\nrank = {rank}\ncpu_weight = 2\n")
    with pytest.raises(ConfigError, match=r"\[qos_class:BATCH\] cpu_weight: 2 is above 1, the weight of BE"):
        parse_classes(classes)


def test_a_class_cannot_come_first_and_last(tmp_path):
    classes = load_text(tmp_path, "[qos_class:LS]\ncpu_idle = true\nrealtime_priority = 5\n")
    with pytest.raises(ConfigError, match=r"\[qos_class:LS\] cpu_idle and realtime_priority exclude each"):
        parse_classes(classes)
