"""The scheduling switch: traits of the root provider on the real service."""

import pytest

from compute_agent.report.errors import UnavailableError
from compute_agent.report.scheduling import DISABLED, MARK, switched
from tests.compute_agent.report.test_reporter import ROOT, Memory, numa_tree

COMPUTE = "COMPUTE_NODE"


@pytest.mark.parametrize(
    ("before", "off", "after"),
    [
        ({COMPUTE}, True, {COMPUTE, DISABLED, MARK}),
        ({COMPUTE, DISABLED, MARK}, True, {COMPUTE, DISABLED, MARK}),
        ({COMPUTE, DISABLED, MARK}, False, {COMPUTE}),
        ({COMPUTE}, False, {COMPUTE}),
        ({DISABLED}, True, {DISABLED}),
        ({DISABLED}, False, {DISABLED}),
        ({MARK}, True, {DISABLED, MARK}),
        ({MARK}, False, set()),
    ],
)
def test_only_what_carries_our_mark_is_taken_away(before, off, after):
    assert switched(frozenset(before), off) == after


@pytest.fixture
def reporter(client):
    reporter = Memory().reporter(client)
    reporter.report(numa_tree())
    return reporter


def test_the_switch_is_turned_and_reports_leave_it_alone(reporter, client, live_placement):
    assert reporter.switch_scheduling(ROOT, True)
    assert client.traits(ROOT)[0] == {COMPUTE, DISABLED, MARK}
    live_placement.writes()
    reporter.report(numa_tree())
    assert not reporter.switch_scheduling(ROOT, True)
    assert live_placement.writes() == []
    assert reporter.switch_scheduling(ROOT, False)
    assert client.traits(ROOT)[0] == {COMPUTE}


def test_an_agent_without_a_memory_turns_it_back(reporter, client):
    reporter.switch_scheduling(ROOT, True)
    other = Memory().reporter(client)
    other.report(numa_tree())
    assert other.switch_scheduling(ROOT, False)
    assert client.traits(ROOT)[0] == {COMPUTE}


def test_a_service_that_was_disabled_in_nova_stays_disabled(reporter, client):
    traits, generation = client.traits(ROOT)
    client.set_traits(ROOT, traits | {DISABLED}, generation)
    assert not reporter.switch_scheduling(ROOT, True)  # what is there meanwhile is found out by reading again
    reporter.report(numa_tree())
    assert not reporter.switch_scheduling(ROOT, False)
    assert client.traits(ROOT)[0] == {COMPUTE, DISABLED}


def test_a_host_that_is_not_reported_yet_waits(client):
    assert not Memory().reporter(client).switch_scheduling(ROOT, True)


def test_an_absent_placement_is_told(reporter, live_placement):
    live_placement.stop()
    with pytest.raises(UnavailableError):
        reporter.switch_scheduling(ROOT, True)
