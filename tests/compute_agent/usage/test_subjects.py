"""Tests of guests of drivers as watermarks see them."""

import pytest

from compute_agent.classes.guest_classes import parse_classes
from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.resource import BLOCKIO, ThrottleControl
from compute_agent.usage.snapshot import GuestAllotment
from compute_agent.usage.subjects import build_subject
from tests.compute_agent.builders import load_options
from tests.compute_agent.throttling.watermarks.builders import QUOTA


@pytest.mark.parametrize(
    ("qos_class", "dedicated", "rank", "protected"),
    [
        ("BE", False, 0, False),
        ("BE", True, 0, True),
        ("LS", False, 10, True),
        ("unheard of", False, 21, True),
    ],
)
def test_class_and_dedicated_cpus_protect(qos_class, dedicated, rank, protected):
    guest = Guest("u", "process", "n", 42, GuestSettings(vcpus=3, qos_class=qos_class, priority=7))
    ways = {ThrottleControl("cache_ways", "0"): GuestAllotment(11.0, 1.0, 2.0**20)}
    subject = build_subject(
        guest, parse_classes(load_options()), dedicated=dedicated, started=5.0, others=ways
    )
    facts = subject.facts
    assert (facts.rank, facts.protected, facts.priority, facts.started) == (rank, protected, 7, 5.0)
    assert facts.allotments == {
        QUOTA: GuestAllotment(3.0),
        ThrottleControl(BLOCKIO): GuestAllotment(100.0, 1.0, None),
        **ways,
    }
    assert (subject.cgroup, subject.pids) == ("", (42,))
