"""Tests of the switch that keeps new guests away, by traits of the root provider on the real service."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.report.answers import UnavailableError
from compute_agent.report.root_provider import DISABLED, MARKS, DisableCause, in_words, switched_traits
from tests.compute_agent.report.trees import ROOT, Memory, numa_tree

COMPUTE = "COMPUTE_NODE"
MARK, OTHER = DisableCause.WATERMARK.value, DisableCause.MAINTENANCE.value
KEEP_AWAY, LET_IN = {DisableCause.WATERMARK: True}, {DisableCause.WATERMARK: False}


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
    assert switched_traits(frozenset(before), {DisableCause.WATERMARK: off}) == after


@pytest.mark.parametrize(
    ("before", "watermark", "maintenance", "after"),
    [
        (set(), True, True, {DISABLED, MARK, OTHER}),
        ({DISABLED, MARK, OTHER}, False, True, {DISABLED, OTHER}),
        ({DISABLED, MARK, OTHER}, True, False, {DISABLED, MARK}),
        ({DISABLED, MARK, OTHER}, False, False, set()),
        ({DISABLED, MARK}, False, True, {DISABLED, OTHER}),
        # The trait of an unknown cause stays unchanged.
        ({DISABLED, OTHER}, True, None, {DISABLED, MARK, OTHER}),
        ({DISABLED, OTHER}, False, None, {DISABLED, OTHER}),
        ({DISABLED, OTHER}, None, None, {DISABLED, OTHER}),
        (set(), None, None, set()),
        # Nova's stays Nova's; and when Nova takes it away, ours comes.
        ({DISABLED}, True, True, {DISABLED}),
        ({DISABLED}, False, False, {DISABLED}),
        ({OTHER}, False, None, {DISABLED, OTHER}),
    ],
)
def test_several_causes_share_one_switch(before, watermark, maintenance, after):
    causes = {DisableCause.WATERMARK: watermark, DisableCause.MAINTENANCE: maintenance}
    known = {cause: off for cause, off in causes.items() if off is not None}
    assert switched_traits(frozenset(before) | {COMPUTE}, known) == after | {COMPUTE}


TRAITS = st.frozensets(st.sampled_from(["HW_A", DISABLED, *MARKS]))
WISHES = st.dictionaries(st.sampled_from(DisableCause), st.booleans())


@given(TRAITS, WISHES)
def test_whatever_there_was_others_keep_theirs_and_it_is_done_once(before, causes):
    after = switched_traits(before, causes)
    assert after - MARKS - {DISABLED} == before - MARKS - {DISABLED}
    assert switched_traits(after, causes) == after
    if any(causes.values()):
        assert DISABLED in after
    if DISABLED in before and not before & MARKS:
        assert after == before
    elif all(causes.get(cause) is False for cause in DisableCause):
        assert not after & {DISABLED, *MARKS}


@pytest.mark.parametrize(
    ("traits", "words"),
    [
        ({COMPUTE}, "let in"),
        ({DISABLED, MARK}, "kept away by watermark"),
        ({DISABLED, MARK, OTHER}, "kept away by watermark and maintenance"),
        ({DISABLED}, "kept away by COMPUTE_STATUS_DISABLED of another program"),
    ],
)
def test_the_program_that_keeps_new_guests_away_is_named(traits, words):
    assert in_words(frozenset(traits)) == words


@pytest.fixture
def reporter(client):
    reporter = Memory().reporter(client)
    reporter.report_tree(numa_tree())
    return reporter


def test_the_switch_is_turned_and_reports_leave_it_alone(reporter, client, live_placement):
    assert reporter.switch_scheduling(ROOT, KEEP_AWAY)
    assert client.get_traits(ROOT)[0] == {COMPUTE, DISABLED, MARK}
    live_placement.writes()
    reporter.report_tree(numa_tree())
    assert not reporter.switch_scheduling(ROOT, KEEP_AWAY)
    assert live_placement.writes() == []
    assert reporter.switch_scheduling(ROOT, LET_IN)
    assert client.get_traits(ROOT)[0] == {COMPUTE}


def test_an_agent_without_a_memory_turns_it_back(reporter, client):
    reporter.switch_scheduling(ROOT, KEEP_AWAY)
    other = Memory().reporter(client)
    other.report_tree(numa_tree())
    assert other.switch_scheduling(ROOT, LET_IN)
    assert client.get_traits(ROOT)[0] == {COMPUTE}


def test_a_service_that_was_disabled_in_nova_stays_disabled(reporter, client):
    traits, generation = client.get_traits(ROOT)
    client.set_traits(ROOT, traits | {DISABLED}, generation)
    # the agent notices the new traits when it reads the provider again
    assert not reporter.switch_scheduling(ROOT, KEEP_AWAY)
    reporter.report_tree(numa_tree())
    assert not reporter.switch_scheduling(ROOT, LET_IN)
    assert client.get_traits(ROOT)[0] == {COMPUTE, DISABLED}


def test_a_host_that_is_not_reported_yet_waits(client):
    assert not Memory().reporter(client).switch_scheduling(ROOT, KEEP_AWAY)


def test_an_absent_placement_is_told(reporter, live_placement):
    live_placement.stop()
    with pytest.raises(UnavailableError):
        reporter.switch_scheduling(ROOT, KEEP_AWAY)
