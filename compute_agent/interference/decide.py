"""State and samples in, state and decisions out. Nothing has happened until somebody carries them out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from compute_agent.interference.baseline import WINDOW_SECONDS, SignalTrack
from compute_agent.interference.cases import (
    SETTLE_SECONDS,
    TRIAL_SECONDS,
    VERDICTS,
    CasePhase,
    CaseVerdict,
    InterferenceCase,
    VictimLevels,
    proceed,
)
from compute_agent.interference.reading import GuestReading, GuestSamples
from compute_agent.interference.signals import InterferenceSignal
from compute_agent.interference.suspects import find_suspects, may_be_limited
from compute_agent.interference.watch import InterferenceWatch
from compute_agent.model.resource import ThrottleControl
from compute_agent.qos.levers import ThrottleSteps

ASIDE_SECONDS: Final = 3600.0
"""For which a pair that was acquitted, or told in preview, is left alone."""

DAY: Final = 86400.0


class SignalKey(NamedTuple):
    """A signal of a guest on a domain."""

    guest: str
    signal: str
    domain: str


class SuspectPair(NamedTuple):
    """A victim and a suspect, of one watch."""

    watch: str
    victim: str
    suspect: str


@dataclass(frozen=True, slots=True)
class PairRecord:
    """What is remembered of a pair: until when it is left alone, and how often it was found guilty.

    ``verdicts`` are those of the day that began ``since``, with the first of them.
    """

    aside_until: float = 0.0
    verdicts: int = 0
    since: float = 0.0
    escalated: bool = False

    def guilty(self, time: float) -> PairRecord:
        """With another verdict."""
        if self.verdicts and time - self.since < DAY:
            return replace(self, verdicts=self.verdicts + 1)
        return PairRecord(self.aside_until, 1, time)


@dataclass(frozen=True, slots=True)
class InterferenceState:
    """All that outlives a round. Times are in monotonic seconds."""

    cases: tuple[InterferenceCase, ...] = ()
    pairs: Mapping[SuspectPair, PairRecord] = field(default_factory=dict)
    tracks: Mapping[SignalKey, SignalTrack] = field(default_factory=dict)

    def without(self, case: InterferenceCase) -> InterferenceState:
        """The state when a case could not be carried out: the pair is left alone for a while."""
        cases = tuple(one for one in self.cases if (one.suspect, one.knob) != (case.suspect, case.knob))
        return replace(self, cases=cases, pairs=_aside(self.pairs, case, case.since))


@dataclass(frozen=True, slots=True)
class CaseDecision:
    """What was decided about a case, which is as it is now; ``level`` is that of the victim's signal."""

    what: CaseVerdict
    case: InterferenceCase
    level: float | None = None

    @property
    def limit(self) -> float | None:
        """The limit that the suspect is to have from now on."""
        gone = self.what in (CaseVerdict.CLOSE, CaseVerdict.NOT_GUILTY)
        return None if gone else self.case.limit

    @property
    def acts(self) -> bool:
        """Whether it changes a limit."""
        return self.what not in (CaseVerdict.GUILTY, CaseVerdict.ESCALATE, CaseVerdict.PREVIEW)

    @property
    def takes(self) -> bool:
        """Whether it takes something from the suspect."""
        return self.what in (CaseVerdict.TRY, CaseVerdict.FURTHER, CaseVerdict.RELAPSE)


def advance(
    watches: Sequence[InterferenceWatch],
    steps: ThrottleSteps,
    state: InterferenceState,
    samples: Sequence[GuestSamples],
) -> tuple[InterferenceState, tuple[CaseDecision, ...]]:
    """What follows of the newest of ``samples``, which are those of ten minutes, oldest first."""
    now = samples[-1]
    tracks = observe(watches, state, now)
    pairs = {pair: one for pair, one in state.pairs.items() if _remembered(one, now.time)}
    state = InterferenceState(state.cases, pairs, tracks)
    state, decisions = _proceed(watches, steps, state, samples)
    state, more = _begin(watches, steps, state, samples)
    return state, (*decisions, *more)


def observe(
    watches: Sequence[InterferenceWatch], state: InterferenceState, now: GuestSamples
) -> dict[SignalKey, SignalTrack]:
    """The tracks with another sample; those of guests that are gone are forgotten."""
    signals = {watch.signal.name: watch.signal for watch in watches}
    disturbed = {case.victim for case in state.cases}
    found = {key: track for key, track in state.tracks.items() if key.guest in now.readings}
    for guest, reading in now.readings.items():
        learns = not reading.limited and guest not in disturbed
        for signal in signals.values():
            for domain, value in signal.values(reading).items():
                key = SignalKey(guest, signal.name, domain)
                track = found.get(key, SignalTrack())
                if reading.limited:
                    found[key] = track.forgetting()
                else:
                    found[key] = track.after(now.time, value, signal.least, signal.share, learns)
    return found


def _proceed(
    watches: Sequence[InterferenceWatch],
    steps: ThrottleSteps,
    state: InterferenceState,
    samples: Sequence[GuestSamples],
) -> tuple[InterferenceState, list[CaseDecision]]:
    """The cases that there are."""
    now = samples[-1]
    acting = {watch.name: watch for watch in watches if not watch.preview}
    tried = any(case.phase is CasePhase.TRIAL for case in state.cases)
    tries = not any(case.overdue(now.time) for case in state.cases)
    cases: list[InterferenceCase] = []
    pairs, decisions = dict(state.pairs), []
    for case in state.cases:
        victim, suspect = now.readings.get(case.victim), now.readings.get(case.suspect)
        watch = acting.get(case.watch)
        if suspect is None:
            continue  # nobody is limited any more
        if (
            watch is None
            or victim is None
            or watch.signal.lever.name != case.knob.lever
            or not may_be_limited(watch, victim, suspect, case.knob.domain)
        ):
            decisions.append(CaseDecision(CaseVerdict.CLOSE, replace(case, depth=0)))
            continue
        track = state.tracks.get(SignalKey(case.victim, watch.signal.name, case.knob.domain), SignalTrack())
        seen = _seen(case, watch.signal, track, samples)
        lower = watch.signal.lever.down(case.limit, suspect.facts.entitlements[case.knob], steps)
        waits = tried and case.phase is not CasePhase.TRIAL
        after, whats = proceed(case, seen, lower, now.time, waits, tries or case.overdue(now.time))
        level = track.level(now.time)
        if after is not None:
            cases.append(after)
            tried = tried or after.phase is CasePhase.TRIAL
        judged = (CaseVerdict.GUILTY, CaseVerdict.NOT_GUILTY)  # by what the trial began with
        decisions += [
            CaseDecision(what, case if what in judged or after is None else after, level) for what in whats
        ]
        if CaseVerdict.NOT_GUILTY in whats:
            pairs = _aside(pairs, case, now.time)
        if not VERDICTS.isdisjoint(whats):
            pair = _pair(case)
            record = pairs.get(pair, PairRecord()).guilty(now.time)
            if record.verdicts >= watch.escalate_after and watch.escalate and not record.escalated:
                decisions.append(CaseDecision(CaseVerdict.ESCALATE, after or case, level))
                record = replace(record, escalated=True)
            pairs[pair] = record
    return InterferenceState(tuple(cases), pairs, state.tracks), decisions


def _begin(
    watches: Sequence[InterferenceWatch],
    steps: ThrottleSteps,
    state: InterferenceState,
    samples: Sequence[GuestSamples],
) -> tuple[InterferenceState, list[CaseDecision]]:
    """New cases: one trial, unless there is one already; and what there would be of others in preview."""
    now, decisions = samples[-1], []
    pairs, cases = state.pairs, state.cases
    free = not any(case.phase is CasePhase.TRIAL or case.overdue(now.time) for case in cases)
    for watch, key, level in _victims(watches, state, now):
        if not watch.preview and not free:
            continue
        case = _case(watch, key, level, steps, InterferenceState(cases, pairs, state.tracks), samples)
        if case is None:
            continue
        if watch.preview:
            pairs = _aside(pairs, case, now.time)
            decisions.append(CaseDecision(CaseVerdict.PREVIEW, case, level))
        else:
            cases, free = (*cases, case), False
            decisions.append(CaseDecision(CaseVerdict.TRY, case, level))
    return InterferenceState(cases, pairs, state.tracks), decisions


def _victims(
    watches: Sequence[InterferenceWatch], state: InterferenceState, now: GuestSamples
) -> Iterator[tuple[InterferenceWatch, SignalKey, float]]:
    """Who is disturbed, by what, and how much; those that suffer most first."""
    found = []
    for watch in watches:
        for key, track in state.tracks.items():
            reading = now.readings[key.guest]
            if (
                key.signal == watch.signal.name
                and not reading.limited
                and (not watch.victims or reading.facts.qos_class in watch.victims)
                and track.lasts(now.time)
            ):
                level = track.level(now.time) or 0.0
                found.append((level / max(track.threshold, 1e-9), watch, key, level))
    for _, watch, key, level in sorted(found, key=lambda one: -one[0]):
        yield watch, key, level


def _case(
    watch: InterferenceWatch,
    key: SignalKey,
    level: float,
    steps: ThrottleSteps,
    state: InterferenceState,
    samples: Sequence[GuestSamples],
) -> InterferenceCase | None:
    """The case against the likeliest suspect that can be limited; None if there is none."""
    now, knob = samples[-1], ThrottleControl(watch.signal.lever.name, key.domain)
    if any(
        (case.victim == key.guest or case.knob == knob) and not case.settled(now.time) for case in state.cases
    ):
        return None  # who was found guilty of it comes first
    taken = {(case.suspect, case.knob) for case in state.cases}
    for suspect in find_suspects(watch, key.guest, key.domain, samples):
        limit = _first_limit(watch.signal, now.readings[suspect.guest], knob, steps)
        pair = SuspectPair(watch.name, key.guest, suspect.guest)
        aside = state.pairs.get(pair, PairRecord()).aside_until > now.time
        if limit is not None and not aside and (suspect.guest, knob) not in taken:
            return InterferenceCase(*pair, knob, suspect.correlation, level, (limit,), since=now.time)
    return None


def _first_limit(
    signal: InterferenceSignal, suspect: GuestReading, knob: ThrottleControl, steps: ThrottleSteps
) -> float | None:
    """A step down from what a suspect uses, if that is known: from all that it may, many change nothing.

    None at the floor; fewer steps than the signal begins with where it is reached before.
    """
    entitlement = suspect.facts.entitlements[knob]
    used, full = signal.amounts(suspect).get(knob.domain), entitlement.full
    if used is not None and entitlement.per_unit is not None:
        full = min(full, used / entitlement.per_unit)
    limit = signal.lever.down(full, entitlement, steps)
    for _ in range(signal.first_steps - 1):
        limit = (limit and signal.lever.down(limit, entitlement, steps)) or limit
    return limit


def _seen(
    case: InterferenceCase, signal: InterferenceSignal, track: SignalTrack, samples: Sequence[GuestSamples]
) -> VictimLevels:
    time = samples[-1].time
    latest = track.level(time), track.suffers(time), track.lasts(time)
    if case.phase is not CasePhase.TRIAL or time - case.since < TRIAL_SECONDS:
        return VictimLevels(None, None, *latest)
    key = SignalKey(case.victim, signal.name, case.knob.domain)
    begin = case.since + SETTLE_SECONDS
    middle = begin + WINDOW_SECONDS
    return VictimLevels(
        _mean(signal, key, samples, begin, middle),
        _mean(signal, key, samples, middle, middle + WINDOW_SECONDS),
        *latest,
    )


def _mean(
    signal: InterferenceSignal, key: SignalKey, samples: Iterable[GuestSamples], begin: float, end: float
) -> float | None:
    """The mean of a signal after ``begin`` and up to ``end``; None if it was not measured."""
    values = [
        value
        for sample in samples
        if begin < sample.time <= end and key.guest in sample.readings
        if (value := signal.values(sample.readings[key.guest]).get(key.domain)) is not None
    ]
    return sum(values) / len(values) if values else None


def _pair(case: InterferenceCase) -> SuspectPair:
    return SuspectPair(case.watch, case.victim, case.suspect)


def _aside(
    pairs: Mapping[SuspectPair, PairRecord], case: InterferenceCase, time: float
) -> dict[SuspectPair, PairRecord]:
    record = pairs.get(_pair(case), PairRecord())
    return {**pairs, _pair(case): replace(record, aside_until=time + ASIDE_SECONDS)}


def _remembered(record: PairRecord, time: float) -> bool:
    return record.aside_until > time or (record.verdicts > 0 and time - record.since < DAY)
