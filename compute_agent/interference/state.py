"""The state as it is kept: what was learnt, and who is limited for whom.

Times are kept as seconds before or after the moment of saving, so that clocks that jump do no harm; the time
in which no agent ran does not count. A trial that an agent did not see the end of is given back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from compute_agent import kept_json
from compute_agent.interference.baseline import HALF_LIFE, SignalBaseline, SignalTrack
from compute_agent.interference.cases import MAX_RELAPSES, CasePhase, InterferenceCase
from compute_agent.interference.decide import DAY, InterferenceState, PairRecord, SignalKey, SuspectPair
from compute_agent.kept_json import number
from compute_agent.model.resource import ThrottleControl

FILE: Final = "interference.json"
"""In the state folder."""

VERSION: Final = 1

Limits = dict[str, dict[ThrottleControl, float]]


def limits(cases: Iterable[InterferenceCase]) -> Limits:
    """The limits in force, by guest."""
    found: Limits = {}
    for case in cases:
        if case.limit is not None:
            found.setdefault(case.suspect, {})[case.knob] = case.limit
    return found


def dump(state: InterferenceState, now: float) -> bytes:
    """The content of the file; ``now`` is in monotonic seconds."""
    document = {
        "cases": [
            [
                *(case.watch, case.victim, case.suspect, *case.knob, case.correlation, case.before),
                *(list(case.limits), case.depth, case.phase, now - case.since, case.relapses),
                *(case.guilty, case.exhausted),
            ]
            for case in state.cases
        ],
        "pairs": [
            [*pair, one.aside_until - now, one.verdicts, now - one.since, one.escalated]
            for pair, one in state.pairs.items()
        ],
        "baselines": [
            [*key, track.baseline.mean, track.baseline.variance, track.baseline.count]
            for key, track in state.tracks.items()
        ],
    }
    return kept_json.dump(VERSION, document)


def parse(content: bytes, now: float) -> InterferenceState:
    """The state of a file.

    :raises ValueError: it is something else.
    """
    return kept_json.parse(VERSION, content, lambda document: _state(document, now))


def _state(document: Any, now: float) -> InterferenceState:
    return InterferenceState(
        tuple(_case(row, now) for row in document["cases"]),
        dict(_record(row, now) for row in document["pairs"]),
        dict(map(_track, document["baselines"])),
    )


def _case(row: Any, now: float) -> InterferenceCase:
    watch, victim, suspect, lever, domain, correlation, before, *more = row
    taken, depth, phase, age, relapses, guilty, exhausted = more
    steps = tuple(number(one, 1e6) for one in taken)
    if not steps or min(steps) <= 0 or not 0 <= _whole(depth) <= len(steps):
        raise ValueError(f"{taken!r}, {depth!r} are no limits")
    case = InterferenceCase(
        _text(watch),
        _text(victim),
        _text(suspect),
        ThrottleControl(_text(lever), _text(domain)),
        number(correlation, 2),
        number(before, 1e15),
        steps,
        _whole(depth),
        CasePhase(phase),
        now - number(age, 100 * DAY),
        min(_whole(relapses), MAX_RELAPSES),
        guilty is True,
        exhausted is True,
    )
    return case if case.phase is not CasePhase.TRIAL else replace(case, phase=CasePhase.RETURN, since=now)


def _record(row: Any, now: float) -> tuple[SuspectPair, PairRecord]:
    watch, victim, suspect, aside, verdicts, age, escalated = row
    aside = min(max(number(abs(aside), 1e12) * math.copysign(1, aside), -DAY), DAY)
    record = PairRecord(now + aside, _whole(verdicts), now - number(age, 1e12), escalated is True)
    return SuspectPair(_text(watch), _text(victim), _text(suspect)), record


def _track(row: Any) -> tuple[SignalKey, SignalTrack]:
    guest, signal, domain, mean, variance, count = row
    baseline = SignalBaseline(number(mean, 1e15), number(variance, 1e30), min(_whole(count), HALF_LIFE))
    return SignalKey(_text(guest), _text(signal), _text(domain)), SignalTrack(baseline)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise ValueError(f"{value!r} is no count")
    return value
