"""Tests of the expected usage of a host if a guest used other amounts, or had left."""

from dataclasses import replace

import pytest

from compute_agent.model.resource import CPU_QUOTA, ThrottleControl
from compute_agent.usage.snapshot import GuestAllotment, GuestUsage, MetricSeries, UsageSnapshot

CPU, MEMORY, CACHE = (
    MetricSeries("cpu_usage"),
    MetricSeries("memory_usage"),
    MetricSeries("llc_occupancy", "0"),
)
BEFORE = UsageSnapshot(
    5.0,
    {CPU: 10.0, MEMORY: 100.0},
    {
        "a": GuestUsage("a", "BE", 0, usage={CPU: 4.0, CACHE: 7.0}),
        "b": GuestUsage("b", "BE", 0, usage={CPU: 1.0, MEMORY: 30.0}),
    },
)


def test_the_host_uses_as_much_more_or_less_as_the_guest_does():
    after = BEFORE.with_usage("a", {CPU: 1.5, MEMORY: 20.0, CACHE: 2.0})
    assert after.host == {CPU: 7.5, MEMORY: 120.0}  # the cache use of the guest was unknown
    assert after.guests["a"].usage == {CPU: 1.5, MEMORY: 20.0, CACHE: 2.0}
    assert after.guests["b"] == BEFORE.guests["b"]
    assert (after.time, BEFORE.host[CPU], BEFORE.guests["a"].usage[CPU]) == (5.0, 10.0, 4.0)


def test_other_usage_leaves_all_other_facts():
    allotments = {ThrottleControl(CPU_QUOTA): GuestAllotment(2.0, 1.0)}
    facts = GuestUsage("a", "BE", 3, 4, True, 5.0, allotments, {CPU: 1.0}, "web")
    expected = UsageSnapshot(5.0, {}, {"a": facts}).with_usage("a", {CPU: 2.0})
    assert expected.guests["a"] == replace(facts, usage={CPU: 2.0})


def test_a_guest_that_leaves_takes_its_use_of_these_metrics_with_it():
    gone = BEFORE.without_guest("b", {"memory_usage", "llc_occupancy"})
    assert gone.host == {CPU: 10.0, MEMORY: 70.0}
    assert gone.guests.keys() == {"a"}
    assert BEFORE.without_guest("b", {"cpu_usage", "memory_usage"}).host == {CPU: 9.0, MEMORY: 70.0}
    assert BEFORE.guests.keys() == {"a", "b"}


@pytest.mark.parametrize(("full", "granule"), [(1.0, 1.01), (1.0, 0.0), (1.0, -0.1), (0.0, 0.0)])
def test_a_granule_is_something_and_no_more_than_there_is(full, granule):
    with pytest.raises(ValueError, match="a granule of"):
        GuestAllotment(full, granule)


def test_all_there_is_may_be_one_granule():
    assert GuestAllotment(1.0, 1.0).full == 1.0


def test_a_series_of_a_domain_names_it():
    assert [str(CPU), str(CACHE)] == ["cpu_usage", "llc_occupancy of domain 0"]
