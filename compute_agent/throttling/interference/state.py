"""The state of interference between rounds (cases, pairs and baselines of guests), and its JSON form.

Times in the JSON are relative to the time of saving, in seconds, because a monotonic clock begins again at a
boot. So the time during which no agent runs does not count. If the agent ended during a trial, its next run
raises the limits of the case again, step by step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from compute_agent.kept_json import read_number, text
from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.interference.cases import MAX_RELAPSES, CasePhase, InterferenceCase, SuspectPair
from compute_agent.throttling.interference.evidence import HALF_LIFE, SignalBaseline, SignalTrack
from compute_agent.throttling.levers import GuestLimits

ASIDE_SECONDS: Final = 3600.0
"""Seconds without a new case for a pair of victim and suspect. The time begins with the verdict not guilty,
with a failure to set a limit, or with a report in preview.
"""

DAY_SECONDS: Final = 86400.0


class SignalKey(NamedTuple):
    """The key of a track: the uuid of a guest, the name of a signal, and a domain ("" for the host).

    A track has the usual level (baseline) and the recent values of a signal.
    """

    guest: str
    signal: str
    domain: str


@dataclass(frozen=True, slots=True)
class PairRecord:
    """The record of earlier cases with the same victim and suspect. Times are in monotonic seconds.

    - ``aside_until`` is the time until which no new case is opened for the pair.
    - ``verdicts`` is the number of guilty verdicts in a day. The day began at ``since``, with the first
      verdict.
    - ``escalated``: the command of the watch was called in that day.
    """

    aside_until: float = 0.0
    verdicts: int = 0
    since: float = 0.0
    escalated: bool = False

    def with_verdict(self, time: float) -> PairRecord:
        """The record with one more guilty verdict at ``time``."""
        # A day begins with its first verdict, because a sliding day would need a list of times.
        if self.verdicts and time - self.since < DAY_SECONDS:
            return replace(self, verdicts=self.verdicts + 1)
        # A new day, in which the command can be called again.
        return PairRecord(self.aside_until, 1, time)


@dataclass(frozen=True, slots=True)
class InterferenceState:
    """The state of interference between rounds: present cases, records of pairs, and tracks of signals."""

    cases: tuple[InterferenceCase, ...] = ()
    pairs: Mapping[SuspectPair, PairRecord] = field(default_factory=dict)
    tracks: Mapping[SignalKey, SignalTrack] = field(default_factory=dict)

    def guest_limits(self) -> GuestLimits:
        """The limits that the present cases have set, by uuid of the suspect and by ``ThrottleControl``."""
        found: GuestLimits = {}
        for case in self.cases:
            if case.limit is not None:
                found.setdefault(case.suspect, {})[case.knob] = case.limit
        return found

    def without_case(self, case: InterferenceCase) -> InterferenceState:
        """Drop a case after its limit could not be set, and open no new case for its pair for an hour."""
        # Cases are compared by suspect and ThrottleControl, because other fields may have changed since the
        # decision.
        cases = tuple(one for one in self.cases if (one.suspect, one.knob) != (case.suspect, case.knob))
        return replace(self, cases=cases, pairs=put_aside(self.pairs, case, case.since))


def put_aside(
    pairs: Mapping[SuspectPair, PairRecord], case: InterferenceCase, time: float
) -> dict[SuspectPair, PairRecord]:
    """Forbid new cases of the same victim and suspect until an hour after ``time``; return the records."""
    record = pairs.get(case.guest_pair, PairRecord())
    return {**pairs, case.guest_pair: replace(record, aside_until=time + ASIDE_SECONDS)}


def state_to_json(state: InterferenceState, now: float) -> dict[str, Any]:
    """The state as JSON values for the state file; ``now`` is the present time in monotonic seconds."""
    return {
        "cases": [
            [
                # Rows without keys keep the file small, because the file can have hundreds of baselines.
                *(*case.guest_pair, *case.knob, case.correlation, case.before),
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
            # Recent samples are not saved, because they would be outdated after a restart.
            [*key, track.baseline.mean, track.baseline.variance, track.baseline.count]
            for key, track in state.tracks.items()
        ],
    }


def state_from_json(document: Any, now: float) -> InterferenceState:
    """The state from the JSON values of the state file; ``now`` is in monotonic seconds.

    :raises ValueError: the document is not a state of interference. A document of another form also raises
        LookupError, TypeError or AttributeError.
    """
    return InterferenceState(
        tuple(_case_from_row(row, now) for row in document["cases"]),
        dict(_record_from_row(row, now) for row in document["pairs"]),
        dict(map(_track_from_row, document["baselines"])),
    )


def _case_from_row(row: Any, now: float) -> InterferenceCase:
    watch, victim, suspect, lever, domain, correlation, before, *more = row
    taken, depth, phase, age, relapses, guilty, exhausted = more
    steps = tuple(read_number(one, 1e6) for one in taken)
    # A limit of 0 would stop the suspect. If ``depth`` was above the number of limits, the case would have no
    # limit.
    if not steps or min(steps) <= 0 or not 0 <= _whole_count(depth) <= len(steps):
        raise ValueError(f"{taken!r}, {depth!r} are not limits")
    case = InterferenceCase(
        text(watch),
        text(victim),
        text(suspect),
        ThrottleControl(text(lever), text(domain)),
        read_number(correlation, 2),
        read_number(before, 1e15),
        steps,
        _whole_count(depth),
        CasePhase(phase),
        now - read_number(age, 100 * DAY_SECONDS),
        min(_whole_count(relapses), MAX_RELAPSES),
        guilty is True,
        exhausted is True,
    )
    # A trial needs the samples of the previous run of the agent, which are lost. So the limits of the case
    # are raised again, step by step.
    return case if case.phase is not CasePhase.TRIAL else replace(case, phase=CasePhase.RETURN, since=now)


def _record_from_row(row: Any, now: float) -> tuple[SuspectPair, PairRecord]:
    watch, victim, suspect, aside, verdicts, age, escalated = row
    # The number can be negative, for a time before now. The number is bounded, because a file can have any
    # number.
    aside = min(max(read_number(abs(aside), 1e12) * math.copysign(1, aside), -DAY_SECONDS), DAY_SECONDS)
    record = PairRecord(now + aside, _whole_count(verdicts), now - read_number(age, 1e12), escalated is True)
    return SuspectPair(text(watch), text(victim), text(suspect)), record


def _track_from_row(row: Any) -> tuple[SignalKey, SignalTrack]:
    guest, signal, domain, mean, variance, count = row
    baseline = SignalBaseline(
        read_number(mean, 1e15), read_number(variance, 1e30), min(_whole_count(count), HALF_LIFE)
    )
    return SignalKey(text(guest), text(signal), text(domain)), SignalTrack(baseline)


def _whole_count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise ValueError(f"{value!r} is not a count")
    return value
