"""Pure functions that compute decisions and the next state of interference from new samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.interference.cases import (
    SETTLE_SECONDS,
    TRIAL_SECONDS,
    VERDICTS,
    CaseDecision,
    CasePhase,
    CaseVerdict,
    InterferenceCase,
    SuspectPair,
    VictimLevels,
    advance_case,
)
from compute_agent.throttling.interference.evidence import (
    WINDOW_SECONDS,
    SignalTrack,
    find_suspects,
    may_be_limited,
)
from compute_agent.throttling.interference.signals import (
    GuestSamples,
    InterferenceSignal,
    InterferenceWatch,
)
from compute_agent.throttling.interference.state import (
    DAY_SECONDS,
    InterferenceState,
    PairRecord,
    SignalKey,
    put_aside,
)
from compute_agent.throttling.levers import ThrottleSteps


def advance_state(
    watches: Sequence[InterferenceWatch],
    steps: ThrottleSteps,
    state: InterferenceState,
    samples: Sequence[GuestSamples],
) -> tuple[InterferenceState, tuple[CaseDecision, ...]]:
    """Compute the next state and the decisions; ``samples`` are of the last ten minutes, oldest first."""
    now = samples[-1]
    tracks = observe_signals(watches, state, now)
    pairs = {pair: one for pair, one in state.pairs.items() if _is_remembered(one, now.time)}
    state = InterferenceState(state.cases, pairs, tracks)
    # Open cases come first. If a trial ends now, another trial can begin in this round.
    state, decisions = _advance_cases(watches, steps, state, samples)
    state, more = _open_cases(watches, steps, state, samples)
    by_name = {watch.name: watch for watch in watches}
    return state, tuple(replace(one, watch=by_name.get(one.case.watch)) for one in (*decisions, *more))


def observe_signals(
    watches: Sequence[InterferenceWatch], state: InterferenceState, now: GuestSamples
) -> dict[SignalKey, SignalTrack]:
    """Add a sample to the tracks of guests' signals, and drop the tracks of guests that have ended."""
    # Each track is for a signal and not for a watch, so that two sections with the same signal share
    # baselines.
    signals = {watch.signal.name: watch.signal for watch in watches}
    disturbed = {case.victim for case in state.cases}
    found = {key: track for key, track in state.tracks.items() if key.guest in now.readings}
    for guest, reading in now.readings.items():
        # A baseline is the usual level, so samples do not count while the guest is limited or disturbed.
        learns = not reading.limited and guest not in disturbed
        for signal in signals.values():
            for domain, value in signal.values(reading).items():
                key = SignalKey(guest, signal.name, domain)
                track = found.get(key, SignalTrack())
                if reading.limited:
                    found[key] = track.without_recent()
                else:
                    found[key] = track.with_sample(now.time, value, signal.least, signal.share, learns)
    return found


def _advance_cases(
    watches: Sequence[InterferenceWatch],
    steps: ThrottleSteps,
    state: InterferenceState,
    samples: Sequence[GuestSamples],
) -> tuple[InterferenceState, list[CaseDecision]]:
    """Advance all cases of ``state``; return the next state and the decisions about the cases."""
    now = samples[-1]
    acting = {watch.name: watch for watch in watches if not watch.preview}
    tried = any(case.phase is CasePhase.TRIAL for case in state.cases)
    # While the raising of any limit is overdue, no other case may lower its limit.
    tries = not any(case.is_overdue(now.time) for case in state.cases)
    cases: list[InterferenceCase] = []
    pairs, decisions = dict(state.pairs), []
    for case in state.cases:
        victim, suspect = now.readings.get(case.victim), now.readings.get(case.suspect)
        watch = acting.get(case.watch)
        if suspect is None:
            continue  # the suspect has ended, so its limit does not exist any more
        if (
            watch is None
            or victim is None
            # After a reload, the section can have another signal, or the suspect can have another class.
            or watch.signal.lever.name != case.knob.lever
            or not may_be_limited(watch, victim, suspect, case.knob.domain)
        ):
            decisions.append(CaseDecision(CaseVerdict.CLOSE, replace(case, depth=0)))
            continue
        track = state.tracks.get(SignalKey(case.victim, watch.signal.name, case.knob.domain), SignalTrack())
        seen = _victim_levels(case, watch.signal, track, samples)
        # The next lower limit is computed here, because a case has no allotments and no sizes of steps.
        lower = watch.signal.lever.down(case.limit, suspect.facts.allotments[case.knob], steps)
        # After two changes at the same time, the agent could not know which change has helped.
        waits = tried and case.phase is not CasePhase.TRIAL
        after, verdicts = advance_case(case, seen, lower, now.time, waits, tries or case.is_overdue(now.time))
        level = track.mean_level(now.time)
        if after is not None:
            cases.append(after)
            # A further step is a trial, too, for which the remaining cases of this round have to wait.
            tried = tried or after.phase is CasePhase.TRIAL
        # A verdict is reported with the case before this step, because the next state can already have a
        # further limit.
        judged = (CaseVerdict.GUILTY, CaseVerdict.NOT_GUILTY)
        decisions += [
            CaseDecision(what, case if what in judged or after is None else after, level) for what in verdicts
        ]
        if CaseVerdict.NOT_GUILTY in verdicts:
            pairs = put_aside(pairs, case, now.time)
        if not VERDICTS.isdisjoint(verdicts):
            record = pairs.get(case.guest_pair, PairRecord()).with_verdict(now.time)
            # The command is called at most once a day for a pair, because the next verdict can come while the
            # command still runs.
            if record.verdicts >= watch.escalate_after and watch.escalate and not record.escalated:
                decisions.append(CaseDecision(CaseVerdict.ESCALATE, after or case, level))
                record = replace(record, escalated=True)
            pairs[case.guest_pair] = record
    return InterferenceState(tuple(cases), pairs, state.tracks), decisions


def _open_cases(
    watches: Sequence[InterferenceWatch],
    steps: ThrottleSteps,
    state: InterferenceState,
    samples: Sequence[GuestSamples],
) -> tuple[InterferenceState, list[CaseDecision]]:
    """Open at most one case, and none while a trial runs.

    Also report the cases that watches in preview would open.
    """
    now, decisions = samples[-1], []
    pairs, cases = state.pairs, state.cases
    # A host has one trial at a time, because the effects of two limits could not be distinguished.
    free = not any(case.phase is CasePhase.TRIAL or case.is_overdue(now.time) for case in cases)
    for watch, key, level in _find_victims(watches, state, now):
        if not watch.preview and not free:
            continue
        case = _open_case(watch, key, level, steps, InterferenceState(cases, pairs, state.tracks), samples)
        if case is None:
            continue
        if watch.preview:
            # The pair is left alone for an hour, as after the verdict not guilty. So preview reports the pair
            # once an hour, not in each round.
            pairs = put_aside(pairs, case, now.time)
            decisions.append(CaseDecision(CaseVerdict.PREVIEW, case, level))
        else:
            cases, free = (*cases, case), False
            decisions.append(CaseDecision(CaseVerdict.TRY, case, level))
    return InterferenceState(cases, pairs, state.tracks), decisions


def _find_victims(
    watches: Sequence[InterferenceWatch], state: InterferenceState, now: GuestSamples
) -> Iterator[tuple[InterferenceWatch, SignalKey, float]]:
    """The watch, the key of the track and the signal level of each suffering guest, the worst first."""
    found = []
    for watch in watches:
        for key, track in state.tracks.items():
            # observe_signals() has dropped the tracks of guests that this sample lacks.
            reading = now.readings[key.guest]
            if (
                key.signal == watch.signal.name
                and not reading.limited
                and (not watch.victims or reading.facts.qos_class in watch.victims)
                and track.suffers_lastingly(now.time)
            ):
                level = track.mean_level(now.time) or 0.0
                found.append((level / max(track.threshold, 1e-9), watch, key, level))
    # Victims are ordered by level / threshold, because levels of different signals have different units.
    for _, watch, key, level in sorted(found, key=lambda one: -one[0]):
        yield watch, key, level


def _open_case(
    watch: InterferenceWatch,
    key: SignalKey,
    level: float,
    steps: ThrottleSteps,
    state: InterferenceState,
    samples: Sequence[GuestSamples],
) -> InterferenceCase | None:
    """Open a case against the most likely suspect that can be limited; None if there is no such suspect."""
    now, knob = samples[-1], ThrottleControl(watch.signal.lever.name, key.domain)
    if any(
        (case.victim == key.guest or case.knob == knob) and not case.is_settled(now.time)
        for case in state.cases
    ):
        return None  # an open case can still limit its suspect further
    # Two cases with the same suspect and the same ThrottleControl would remove each other's limits.
    taken = {(case.suspect, case.knob) for case in state.cases}
    for suspect in find_suspects(watch, key.guest, key.domain, samples):
        limit = watch.signal.first_limit(now.readings[suspect.guest], knob, steps)
        pair = SuspectPair(watch.name, key.guest, suspect.guest)
        aside = state.pairs.get(pair, PairRecord()).aside_until > now.time
        if limit is not None and not aside and (suspect.guest, knob) not in taken:
            return InterferenceCase(*pair, knob, suspect.correlation, level, (limit,), since=now.time)
    return None


def _victim_levels(
    case: InterferenceCase, signal: InterferenceSignal, track: SignalTrack, samples: Sequence[GuestSamples]
) -> VictimLevels:
    time = samples[-1].time
    latest = track.mean_level(time), track.suffers_now(time), track.suffers_lastingly(time)
    # Only the end of a trial needs the means of its windows, which cost a pass over all samples.
    if case.phase is not CasePhase.TRIAL or time - case.since < TRIAL_SECONDS:
        return VictimLevels(None, None, *latest)
    key = SignalKey(case.victim, signal.name, case.knob.domain)
    begin = case.since + SETTLE_SECONDS
    middle = begin + WINDOW_SECONDS
    return VictimLevels(
        _mean_value(signal, key, samples, begin, middle),
        _mean_value(signal, key, samples, middle, middle + WINDOW_SECONDS),
        *latest,
    )


def _mean_value(
    signal: InterferenceSignal, key: SignalKey, samples: Iterable[GuestSamples], begin: float, end: float
) -> float | None:
    """A signal's mean after ``begin`` up to ``end`` (monotonic seconds); None without a value."""
    values = [
        value
        for sample in samples
        if begin < sample.time <= end and key.guest in sample.readings
        if (value := signal.values(sample.readings[key.guest]).get(key.domain)) is not None
    ]
    return sum(values) / len(values) if values else None


def _is_remembered(record: PairRecord, time: float) -> bool:
    return record.aside_until > time or (record.verdicts > 0 and time - record.since < DAY_SECONDS)
