"""The state outlives the agent, and what is not one is refused."""

import json
from dataclasses import replace

import pytest

from compute_agent.interference.baseline import SignalBaseline, SignalTrack
from compute_agent.interference.cases import CasePhase, InterferenceCase
from compute_agent.interference.decide import InterferenceState, PairRecord, SignalKey, SuspectPair
from compute_agent.interference.state import dump, limits, parse
from compute_agent.model.resource import ThrottleControl

QUOTA = ThrottleControl("cpu_quota")
CASE = InterferenceCase("w", "v", "s", QUOTA, 0.5, 0.3, (3.2, 2.5), 2, CasePhase.HOLD, 90.0, 1, True, True)
FULL = InterferenceState(
    (CASE,),
    {SuspectPair("w", "v", "s"): PairRecord(700.0, 2, 50.0, True)},
    {SignalKey("v", "run_delay", ""): SignalTrack(SignalBaseline(0.1, 0.01, 40))},
)


def test_all_of_it_comes_back_by_another_clock():
    found = parse(dump(FULL, 100.0), 1100.0)
    assert limits(found.cases) == {"s": {QUOTA: 2.5}}
    assert found.cases == (replace(CASE, since=1090.0),)
    assert found.pairs == {SuspectPair("w", "v", "s"): PairRecord(1700.0, 2, 1050.0, True)}
    assert found.tracks == FULL.tracks


def test_what_was_set_aside_and_is_over_stays_over():
    record = PairRecord(50.0, 1, 50.0)
    found = parse(dump(InterferenceState(pairs={SuspectPair("w", "v", "s"): record}), 100.0), 5.0)
    assert found.pairs[SuspectPair("w", "v", "s")].aside_until == -45.0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b'{"version": 2}',
        b'{"version": 1}',
        b"[" * 100_000,
        b'{"version": 1, "cases": [[1]], "pairs": [], "baselines": []}',
        b'{"version": 1, "cases": [], "pairs": [["a", "b", "c", "x", 1, 1, true]], "baselines": []}',
        b'{"version": 1, "cases": [], "pairs": [], "baselines": [["a", "b", "c", NaN, 1, 1]]}',
    ],
)
def test_other_content_is_refused(content):
    with pytest.raises(ValueError, match=r"."):
        parse(content, 0.0)


@pytest.mark.parametrize(("at", "value"), [(7, []), (7, [0.0]), (8, 3), (9, "x"), (10, -1), (3, 5), (5, "1")])
def test_a_case_that_makes_no_sense_is_refused(at, value):
    document = json.loads(dump(FULL, 100.0))
    document["cases"][0][at] = value
    with pytest.raises(ValueError, match=r"."):
        parse(json.dumps(document).encode(), 0.0)
