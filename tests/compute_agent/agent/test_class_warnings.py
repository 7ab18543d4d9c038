"""Tests of warnings at the agent's start about QoS classes with realtime priorities or cores of their own."""

import pytest

from compute_agent.agent.config_warnings import class_warnings
from compute_agent.classes.guest_classes import parse_classes
from tests.compute_agent.builders import load_text

ALL, NONE = "Name:\tagent\nCapEff:\t000001ffffffffff\n", "Name:\tagent\nCapEff:\t0000000000800000\n"


@pytest.mark.parametrize(
    ("options", "limit", "status", "subjects"),
    [
        ("realtime_priority = 5", "", NONE, ["LSR] realtime_priority"]),
        ("realtime_priority = 5\nisolation = quiet", "", NONE, []),
        ("realtime_priority = 5\nisolation = alone", "the kernel: stops them", NONE, ["the kernel"]),
        ("core_scheduling = guest", "the kernel: stops them", ALL, []),
        ("core_scheduling = class", "", NONE, ["LSR] core_scheduling"]),
        ("core_scheduling = class", "", "", ["LSR] core_scheduling"]),
        ("core_scheduling = none", "", "", []),
    ],
)
def test_a_class_that_does_not_get_what_it_asks_for_is_a_warning(tmp_path, options, limit, status, subjects):
    classes = parse_classes(load_text(tmp_path, f"[qos_class:LSR]\n{options}\n")).classes
    found = [
        text.removeprefix("[qos_class:").split(":")[0] for text in class_warnings(classes, limit, status)
    ]
    assert found == subjects
