"""Whom nothing is taken from."""

import pytest

from compute_agent.qos.classes import DEFAULT_CLASSES, Classes, QosClass
from compute_agent.resctrl.share_spec import ShareSpec, WayRange

SHARES = {
    "LSR": ShareSpec(WayRange(0, 100), mb=100),
    "LS": ShareSpec(WayRange(0, 100), mb=100),
    "BE": ShareSpec(WayRange(0, 30), mb=100),
}
CLASSES = Classes({name: QosClass(name, rank) for name, rank in (("low", 0), ("top", 10), ("above", 11))}, 10)


@pytest.mark.parametrize(
    ("name", "protected"), [("low", False), ("top", False), ("above", True), ("nobody's", True)]
)
def test_guests_above_the_highest_class_are_never_acted_on(name: str, protected: bool) -> None:
    assert CLASSES.protects(name, dedicated=False) is protected
    assert CLASSES.protects(name, dedicated=True) is True


def test_a_class_that_nobody_has_configured_is_above_all_others() -> None:
    assert [CLASSES.rank(name) for name in ("low", "top", "above", "nobody's")] == [0, 10, 11, 12]


def test_without_configuration_all_but_best_effort_guests_may_use_all_of_a_cache() -> None:
    """As Koordinator has it."""
    assert DEFAULT_CLASSES == SHARES
