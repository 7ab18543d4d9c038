"""Tests of the saved state of interference, which outlives the agent. An invalid state is refused."""

import json
from dataclasses import replace

import pytest

from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.interference.cases import CasePhase, InterferenceCase, SuspectPair
from compute_agent.throttling.interference.evidence import SignalBaseline, SignalTrack
from compute_agent.throttling.interference.state import (
    InterferenceState,
    PairRecord,
    SignalKey,
    state_from_json,
    state_to_json,
)

QUOTA = ThrottleControl("cpu_quota")
CASE = InterferenceCase("w", "v", "s", QUOTA, 0.5, 0.3, (3.2, 2.5), 2, CasePhase.HOLD, 90.0, 1, True, True)
FULL = InterferenceState(
    (CASE,),
    {SuspectPair("w", "v", "s"): PairRecord(700.0, 2, 50.0, True)},
    {SignalKey("v", "run_delay", ""): SignalTrack(SignalBaseline(0.1, 0.01, 40))},
)


def test_all_of_it_comes_back_by_another_clock():
    found = state_from_json(json.loads(json.dumps(state_to_json(FULL, 100.0))), 1100.0)
    assert found.guest_limits() == {"s": {QUOTA: 2.5}}
    assert found.cases == (replace(CASE, since=1090.0),)
    assert found.pairs == {SuspectPair("w", "v", "s"): PairRecord(1700.0, 2, 1050.0, True)}
    assert found.tracks == FULL.tracks


def test_an_ended_case_that_was_set_aside_stays_ended():
    record = PairRecord(50.0, 1, 50.0)
    state = InterferenceState(pairs={SuspectPair("w", "v", "s"): record})
    found = state_from_json(state_to_json(state, 100.0), 5.0)
    assert found.pairs[SuspectPair("w", "v", "s")].aside_until == -45.0


@pytest.mark.parametrize(
    "content",
    [
        '{"cases": [["a"]], "pairs": [], "baselines": []}',
        '{"cases": [], "pairs": [["a", "b", "c", "x", 1, 1, true]], "baselines": []}',
        '{"cases": [], "pairs": [], "baselines": [["a", "b", "c", NaN, 1, 1]]}',
        "{}",
        "[]",
        "null",
    ],
)
def test_other_content_is_refused(content):
    with pytest.raises((ValueError, LookupError, TypeError), match=r"."):
        state_from_json(json.loads(content), 0.0)


@pytest.mark.parametrize(("at", "value"), [(7, []), (7, [0.0]), (8, 3), (9, "x"), (10, -1), (3, 5), (5, "1")])
def test_a_case_that_makes_no_sense_is_refused(at, value):
    document = state_to_json(FULL, 100.0)
    document["cases"][0][at] = value
    with pytest.raises((ValueError, TypeError), match=r"."):
        state_from_json(document, 0.0)
