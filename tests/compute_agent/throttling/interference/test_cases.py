"""Tests of the course of one case: the limit of a suspect for a victim."""

from dataclasses import replace

import pytest

from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.interference.cases import (
    HOLD_SECONDS,
    RETURN_SECONDS,
    TRIAL_SECONDS,
    WAIT_SECONDS,
    CasePhase,
    CaseVerdict,
    InterferenceCase,
    VictimLevels,
    advance_case,
)

CASE = InterferenceCase("w", "v", "s", ThrottleControl("cpu_quota"), 0.9, 1.0, (4.0,))


@pytest.mark.parametrize(
    ("first", "second", "lasts", "whats", "limits"),
    [
        (0.9, 0.9, False, (CaseVerdict.GUILTY,), (4.0,)),
        (0.9, 0.9, True, (CaseVerdict.GUILTY, CaseVerdict.FURTHER), (4.0, 3.0)),
        (0.91, 0.5, True, (CaseVerdict.NOT_GUILTY,), None),
        (0.5, 0.91, False, (CaseVerdict.NOT_GUILTY,), None),
        (None, 0.5, False, (CaseVerdict.NOT_GUILTY,), None),
    ],
)
def test_a_trial_is_judged_by_two_windows(first, second, lasts, whats, limits):
    after, told = advance_case(
        CASE, VictimLevels(first, second, suffers=lasts, lasts=lasts), 3.0, TRIAL_SECONDS
    )
    assert told == whats
    assert (None if after is None else after.limits) == limits


def test_a_case_is_not_judged_before_its_windows_end():
    assert advance_case(CASE, VictimLevels(0.1, 0.1), 3.0, TRIAL_SECONDS - 1) == (CASE, ())


def test_a_further_step_is_compared_with_the_one_before_and_undone_alone():
    guilty = replace(CASE, limits=(4.0, 3.0), depth=2, before=0.8, guilty=True)
    after, told = advance_case(guilty, VictimLevels(0.75, 0.75, suffers=True, lasts=True), 2.0, TRIAL_SECONDS)
    assert told == (CaseVerdict.GIVE_BACK,)
    assert (after.phase, after.limit) == (CasePhase.HOLD, 4.0)


def test_a_victim_that_suffers_again_while_one_is_held_costs_that_one_another_step():
    held = replace(CASE, phase=CasePhase.HOLD, guilty=True)
    after, told = advance_case(held, VictimLevels(latest=0.7, suffers=True, lasts=True), 3.0, 60.0)
    assert (told, after.limit, after.before, after.phase) == (
        (CaseVerdict.FURTHER,),
        3.0,
        0.7,
        CasePhase.TRIAL,
    )
    waiting, told = advance_case(
        held, VictimLevels(latest=0.7, suffers=True, lasts=True), 3.0, 60.0, waits=True
    )
    assert (waiting, told) == (held, ())
    floor, told = advance_case(held, VictimLevels(latest=0.7, suffers=True, lasts=True), None, 60.0)
    assert (floor.exhausted, told) == (True, ())
    assert [floor.is_settled(time) for time in (60.0, TRIAL_SECONDS)] == [False, True]


def test_suffering_in_a_part_of_the_window_takes_no_further_step():
    """The mean of the window includes quiet time before the disturbance, so it would prove nothing."""
    held = replace(CASE, phase=CasePhase.HOLD, guilty=True)
    assert advance_case(held, VictimLevels(latest=0.7, suffers=True), 3.0, 60.0) == (held, ())
    after, told = advance_case(CASE, VictimLevels(0.5, 0.5, suffers=True), 3.0, TRIAL_SECONDS)
    assert (after.phase, told) == (CasePhase.HOLD, (CaseVerdict.GUILTY,))


def test_a_limit_at_the_floor_is_held():
    after, told = advance_case(CASE, VictimLevels(0.5, 0.5, suffers=True, lasts=True), None, TRIAL_SECONDS)
    assert (after.phase, told) == (CasePhase.HOLD, (CaseVerdict.GUILTY,))


def test_limits_are_given_back_in_reverse_and_the_case_ends():
    case, time, seen = replace(CASE, limits=(4.0, 3.0), depth=2, phase=CasePhase.HOLD), 0.0, []
    while case is not None:
        time += 10
        case, told = advance_case(case, VictimLevels(), 2.0, time)
        seen += [(time, what, None if case is None else case.limit) for what in told]
    assert seen == [
        (HOLD_SECONDS, CaseVerdict.GIVE_BACK, 4.0),
        (HOLD_SECONDS + RETURN_SECONDS, CaseVerdict.GIVE_BACK, None),
        (HOLD_SECONDS + 2 * RETURN_SECONDS, CaseVerdict.CLOSE, None),
    ]


def test_a_victim_that_suffers_again_gets_the_last_step_again_and_longer():
    case = replace(CASE, limits=(4.0, 3.0), depth=1, phase=CasePhase.RETURN, guilty=True, before=0.5)
    after, told = advance_case(case, VictimLevels(latest=0.9, suffers=True), 2.0, RETURN_SECONDS)
    assert (told, after.limit, after.phase, after.relapses) == (
        (CaseVerdict.RELAPSE,),
        3.0,
        CasePhase.HOLD,
        1,
    )
    same, told = advance_case(after, VictimLevels(), 2.0, after.since + 2 * HOLD_SECONDS - 1)
    assert (same, told) == (after, ())


@pytest.mark.parametrize("guilty", [True, False])
def test_a_victim_that_suffers_no_more_than_when_one_was_held_does_so_by_something_else(guilty):
    case, time, told = replace(CASE, phase=CasePhase.HOLD, guilty=guilty, exhausted=True), HOLD_SECONDS, ()
    levels = iter([0.5, 0.54] if guilty else [0.5, 0.9])
    while case is not None:
        assert told != (CaseVerdict.RELAPSE,)
        case, told = advance_case(case, VictimLevels(latest=next(levels), suffers=True), None, time)
        time += RETURN_SECONDS
    assert told == (CaseVerdict.CLOSE,)


def test_no_limit_is_restored_during_the_trial_of_another_case():
    held = replace(CASE, phase=CasePhase.HOLD)
    assert advance_case(held, VictimLevels(), 3.0, 10 * HOLD_SECONDS, waits=True) == (held, ())


@pytest.mark.parametrize(
    ("phase", "relapses", "due"),
    [
        (CasePhase.HOLD, 0, HOLD_SECONDS),
        (CasePhase.HOLD, 2, 4 * HOLD_SECONDS),
        (CasePhase.RETURN, 2, RETURN_SECONDS),
    ],
)
def test_a_limit_due_long_ago_is_overdue(phase, relapses, due):
    case = replace(CASE, phase=phase, relapses=relapses)
    assert [case.is_overdue(due + WAIT_SECONDS + more) for more in (-1, 0)] == [False, True]
    assert not replace(CASE, phase=CasePhase.TRIAL).is_overdue(1e6)


def test_no_further_step_is_tried_while_something_of_others_is_overdue():
    after, told = advance_case(
        CASE, VictimLevels(0.5, 0.5, suffers=True, lasts=True), 3.0, TRIAL_SECONDS, tries=False
    )
    assert (after.phase, after.limits, told) == (CasePhase.HOLD, (4.0,), (CaseVerdict.GUILTY,))
    assert advance_case(
        after, VictimLevels(latest=0.5, suffers=True, lasts=True), 3.0, 200.0, tries=False
    ) == (
        after,
        (),
    )
    _, told = advance_case(after, VictimLevels(latest=0.5, suffers=True, lasts=True), 3.0, 200.0)
    assert told == (CaseVerdict.FURTHER,)
