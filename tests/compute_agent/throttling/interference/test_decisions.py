"""Tests that a guest that disturbs another is found, tried, limited and released, and that other guests are
left alone.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.throttling.interference.cases import (
    HOLD_SECONDS,
    TRIAL_SECONDS,
    WAIT_SECONDS,
    CasePhase,
    InterferenceCase,
)
from compute_agent.throttling.interference.evidence import WINDOW_SECONDS
from compute_agent.throttling.interference.signals import SIGNALS, GuestReading
from compute_agent.throttling.interference.state import (
    DAY_SECONDS,
    InterferenceState,
    PairRecord,
    state_from_json,
    state_to_json,
)
from compute_agent.throttling.levers import ThrottleSteps
from tests.compute_agent.throttling.interference.rooms import QUOTA, Room, facts, watch

LEARN = 40


@pytest.fixture
def room():
    room = Room()
    room.rounds(LEARN)
    return room


def disturb(room, cores=4.0, **options):
    room.put("hog", 0.1, **options)
    room.rounds(LEARN)
    room.wants["hog"] = cores


def test_no_decision_without_a_disturbed_guest(room):
    room.rounds(300)
    assert room.decisions == []


def test_the_guilty_one_is_limited_until_its_victim_suffers_no_more_and_has_all_back_when_it_is_calm(room):
    disturb(room)
    assert room.rounds(30, lambda: room.limits) <= 6  # a minute
    (case,) = room.state.cases
    assert (case.victim, case.suspect, case.phase) == ("server", "hog", CasePhase.TRIAL)
    assert case.correlation > 0.8
    room.rounds(120, lambda: room.state.cases[0].phase is CasePhase.HOLD)
    assert room.told[:2] == ["try", "guilty"]
    held, since = room.limits["hog"], room.time
    room.wants["hog"] = 0.2
    room.rounds(100, lambda: room.limits.get("hog") != held)
    assert room.time - since >= HOLD_SECONDS
    room.rounds(60, lambda: not room.state.cases)
    given = [one.limit for _, one in room.decisions if one.what.value == "give back"]
    assert given[-1] is None
    assert given[:-1] == sorted(given[:-1])
    assert room.limits == {}


@pytest.mark.parametrize("late", [0.0, 0.1, 0.5, 0.9])
def test_a_trial_begins_from_a_level_that_has_nothing_of_the_calm_before(room, late):
    """The hog begins after this part of a sample."""
    disturb(room, 0.1 * late + 4.0 * (1 - late))
    room.round()
    of_both = room.time
    room.wants["hog"] = 4.0
    room.rounds(30, lambda: room.limits)
    (case,) = room.state.cases
    assert case.since - WINDOW_SECONDS >= of_both
    assert case.before == pytest.approx(0.695, abs=0.05)


def test_a_repeated_offender_is_held_longer_each_time(room):
    disturb(room)
    room.rounds(400)
    relapses = [time for time, one in room.decisions if one.what.value == "relapse"]
    assert len(relapses) >= 2
    gaps = [later - earlier for earlier, later in pairwise(relapses)]
    assert gaps == sorted(gaps)
    assert not room.state.pairs[next(iter(room.state.pairs))].escalated


def test_a_suspect_that_makes_no_difference_is_let_go_and_left_alone_for_an_hour(room):
    """The use of the suspect correlates with the server's signal, but something else disturbs the server."""
    room.put("alike", 0.3)
    room.rounds(LEARN)
    room.put("unseen", 8.0, protected=True)
    room.wants["alike"] = 2.5
    begun = room.rounds(30, lambda: room.limits)
    assert begun < 30
    assert room.limits.keys() == {"alike"}
    room.rounds(20, lambda: not room.limits)
    assert room.told == ["try", "not guilty"]
    room.rounds(300)
    assert room.told == ["try", "not guilty"]


@pytest.mark.parametrize(
    ("options", "watches"),
    [
        ({"protected": True}, watch()),
        ({"qos_class": "LS"}, watch()),
        ({}, watch(victims=frozenset({"LSR"}))),
    ],
)
def test_others_than_lower_unprotected_guests_are_never_limited(options, watches):
    room = Room(watches)
    room.rounds(LEARN)
    disturb(room, **options)
    room.rounds(60)
    assert room.limits == {}
    assert "guilty" not in room.told


def test_guests_of_a_class_that_consents_may_be_limited_for_each_other():
    room = Room(watch(consenting=frozenset({"LS"})))
    room.rounds(LEARN)
    disturb(room, qos_class="LS")
    room.rounds(30, lambda: "hog" in room.limits)


def test_guests_on_other_cpus_are_no_suspects(room):
    sample = room._sample

    def apart():
        found = sample()
        hog = found.readings.get("hog")
        if hog is not None:
            return replace(found, readings={**found.readings, "hog": replace(hog, cpus=frozenset({9}))})
        return found

    room._sample = apart
    disturb(room)
    room.rounds(60)
    assert "hog" not in room.limits


def test_preview_reports_and_limits_no_guest():
    room = Room(watch(preview=True))
    room.rounds(LEARN)
    disturb(room)
    room.rounds(60)
    assert room.limits == {}
    assert room.told == ["preview"]


def test_a_limited_guest_is_no_victim(room):
    disturb(room)
    room.foreign["server"] = 1.0
    room.rounds(60)
    assert room.decisions == []


def test_the_command_of_escalation_runs_once_after_enough_verdicts():
    room = Room(watch(escalate_after=2, escalate=lambda guest: None))
    room.rounds(LEARN)
    disturb(room)
    room.rounds(400)
    assert room.told.count("escalate") == 1
    assert room.told.index("escalate") > room.told.index("relapse")


def test_a_victim_that_goes_on_suffering_by_itself_does_not_have_its_neighbour_limited_for_ever(room):
    """The victim suffered less during its neighbour's trial, by chance or because it noticed the trial."""
    disturb(room, 2.5)
    room.rounds(30, lambda: room.limits)
    room.rounds(20, lambda: room.state.cases[0].guilty)
    room.delays["server"] = 0.6
    room.rounds(150)
    assert "relapse" not in room.told
    assert room.limits == {}


def test_a_trial_that_no_agent_saw_the_end_of_is_given_back_however_the_victim_is(room):
    disturb(room)
    room.rounds(30, lambda: room.limits)
    room.delays["server"] = 0.6
    room.state = state_from_json(state_to_json(room.state, room.time), room.time)
    room.samples = ()
    room.rounds(15, lambda: not room.limits)
    assert "relapse" not in room.told


def test_verdicts_are_counted_by_days_with_one_escalation_each():
    record = PairRecord()
    for time in (0.0, 0.9 * DAY_SECONDS, 1.8 * DAY_SECONDS):
        record = record.with_verdict(time)
    assert record.verdicts == 1
    record = replace(record.with_verdict(1.9 * DAY_SECONDS), escalated=True, aside_until=5 * DAY_SECONDS)
    assert (record.verdicts, record.since) == (2, 1.8 * DAY_SECONDS)
    assert record.with_verdict(2.9 * DAY_SECONDS) == PairRecord(5 * DAY_SECONDS, 1, 2.9 * DAY_SECONDS)


def test_giving_back_waits_for_trials_of_others_for_some_minutes_and_then_they_wait(room):
    """Each step against the hog helps, and the next step follows at once, so its trials have no end."""
    disturb(room, 60.0, vcpus=8.0)
    room.rounds(30, lambda: room.limits)
    held = InterferenceCase(
        "cpu", "server", "job", QUOTA, 0.5, 0.0, (0.5,), 1, CasePhase.HOLD, room.time - HOLD_SECONDS
    )
    room.state = replace(room.state, cases=(*room.state.cases, replace(held, exhausted=True)))
    begun, given = room.time, 0.0
    for number in range(60):
        room.delays["server"] = 0.68 * 0.82 ** (number // 7)
        room.round()
        given = given or ("job" not in room.limits and room.time - begun)
    assert WAIT_SECONDS <= given <= WAIT_SECONDS + TRIAL_SECONDS + 10
    times = [time - begun for time, one in room.decisions if one.what.value == "try further"]
    assert sum(time < given for time in times) >= 3
    assert times[-1] > given


@pytest.mark.parametrize(("vcpus", "limit"), [(8.0, 0.8 * 0.8**4 * 3.0), (20.0, 2.0)])
def test_a_signal_may_begin_with_several_steps_down_to_the_floor(vcpus, limit):
    suspect = GuestReading(facts("hog", vcpus=vcpus), cpu=3.0)
    found = SIGNALS["cpi"].first_limit(suspect, QUOTA, ThrottleSteps())
    assert found == pytest.approx(limit, abs=0.06)
    assert SIGNALS["cpi"].first_limit(replace(suspect, cpu=0.01), QUOTA, ThrottleSteps()) is None


@pytest.mark.parametrize("gone", ["server", "hog"])
def test_a_case_ends_with_either_of_the_two(room, gone):
    disturb(room)
    room.rounds(30, lambda: room.limits)
    room.remove(gone)
    room.round()
    assert room.limits == {}


def test_a_case_ends_with_its_section(room):
    disturb(room)
    room.rounds(30, lambda: room.limits)
    room.watches = (watch(preview=True),)
    room.round()
    assert room.limits == {}
    assert "close" in room.told


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 10**6), st.integers(1, 200), st.floats(0.5, 8))
def test_a_restart_at_any_time_leaves_nothing_limited_and_no_second_trial(seed, when, cores):
    room = Room(seed=seed)
    room.rounds(LEARN)
    disturb(room, cores)
    for _ in range(when):
        room.round()
        assert sum(case.phase is CasePhase.TRIAL for case in room.state.cases) <= 1
        assert {case.suspect for case in room.state.cases} <= {"hog", "job"}
    before = room.limits
    room.state = state_from_json(state_to_json(room.state, room.time), room.time)
    room.samples = ()
    assert room.limits == before
    assert all(case.phase is not CasePhase.TRIAL for case in room.state.cases)
    room.wants["hog"] = 0.1
    room.rounds(600, lambda: room.state.cases == ())
    assert room.limits == {}
    assert isinstance(room.state, InterferenceState)
