"""What operators see of interference: events, metrics for Prometheus, and a list."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from compute_agent.events.event import EventKind, EventOutcome, EventRecorder, NamedSubject
from compute_agent.interference.cases import CaseVerdict, InterferenceCase
from compute_agent.interference.decide import CaseDecision, InterferenceState, PairRecord, SignalKey
from compute_agent.interference.reading import GuestSamples
from compute_agent.interference.watch import InterferenceWatch
from compute_agent.model.messages import called

LOG = logging.getLogger(__name__)


class InterferenceTelemetry:
    """Tells of decisions, and counts them. tell() is for several threads."""

    def __init__(self, registry: CollectorRegistry, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._names: dict[str, str] = {}
        self._decisions = Counter(
            "compute_agent_interference_decisions",
            "Decisions about guests that disturb others, by section and by what came of it.",
            ["section", "decision", "outcome"],
            registry=registry,
        )
        self._disturbed = Gauge(
            "compute_agent_interference_disturbed_guests",
            "Guests that suffer more than they mostly do, by section.",
            ["section"],
            registry=registry,
        )
        self._limited = Gauge(
            "compute_agent_interference_limited_guests",
            "Guests that are limited for the sake of another one.",
            registry=registry,
        )
        self.round_failures = Counter(
            "compute_agent_interference_round_failures",
            "Rounds of interference that went wrong.",
            registry=registry,
        )

    def tell(
        self, decision: CaseDecision, watch: InterferenceWatch | None, sample: GuestSamples, failure: str = ""
    ) -> None:
        """Tell of a decision: of what is done to the suspect, of a verdict to the victim."""
        case, what = decision.case, decision.what
        outcome = (
            EventOutcome.PREVIEW
            if what is CaseVerdict.PREVIEW
            else EventOutcome.FAILED
            if failure
            else EventOutcome.DONE
        )
        self._decisions.labels(case.watch, what.value, outcome).inc()
        suspect, victim = self._named(case.suspect, sample), self._named(case.victim, sample)
        shown = _limit(decision.limit, case)
        match what:
            case CaseVerdict.TRY | CaseVerdict.FURTHER | CaseVerdict.RELAPSE:
                kind, whom = EventKind.THROTTLE_DOWN, suspect
                text = f"limit {suspect} to {shown} for {victim} ({case.watch})"
            case CaseVerdict.GIVE_BACK:
                kind, whom = EventKind.THROTTLE_UP, suspect
                text = f"give {suspect} back {shown}, limited for {victim} ({case.watch})"
            case CaseVerdict.CLOSE:
                kind, whom = EventKind.THROTTLE_UP, suspect
                text = f"{suspect} has {shown} again that was taken for {victim} ({case.watch})"
            case CaseVerdict.PREVIEW:
                kind, whom = EventKind.VERDICT, victim
                text = f"{suspect} may disturb {victim}, limit it to {shown} ({case.watch})"
            case CaseVerdict.ESCALATE:
                kind, whom = EventKind.VERDICT, victim
                text = f"escalate_command for {suspect}, which disturbs {victim} ({case.watch})"
            case _:
                kind, whom = EventKind.VERDICT, victim
                text = f"{suspect} is {what} of disturbing {victim} ({case.watch})"
        why = _why(decision, watch)
        if failure:
            self._recorder.record(
                LOG.error, kind, whom, "Failed: %s: %s", text, failure, reason=failure, outcome=outcome
            )
        else:
            message = "Preview: %s: %s" if outcome is EventOutcome.PREVIEW else "Interference: %s: %s"
            self._recorder.record(LOG.info, kind, whom, message, text, why, reason=why, outcome=outcome)

    def show(
        self, state: InterferenceState, watches: Sequence[InterferenceWatch], sample: GuestSamples
    ) -> None:
        """Set the gauges at the end of a round."""
        self._names = {guest: one.facts.name for guest, one in sample.readings.items()}
        self._limited.set(len({case.suspect for case in state.cases if case.limit is not None}))
        self._disturbed.clear()
        for watch in watches:
            disturbed = {
                key.guest
                for key, track in state.tracks.items()
                if key.signal == watch.signal.name and track.lasts(sample.time)
            }
            self._disturbed.labels(watch.name).set(len(disturbed))

    def document(
        self, state: InterferenceState, watches: Sequence[InterferenceWatch], now: float
    ) -> list[dict[str, Any]]:
        """A row for each case, and then for each pair that is remembered.

        ``before`` and ``level`` are the victim's signal in words, ``limit`` is in the lever's unit.
        """
        by_name = {watch.name: watch for watch in watches}
        cases = [self._case_row(case, by_name.get(case.watch), state, now) for case in state.cases]
        open_pairs = {(case.watch, case.victim, case.suspect) for case in state.cases}
        return cases + [
            self._row(*pair, _remembered(record, now))
            for pair, record in sorted(state.pairs.items())
            if tuple(pair) not in open_pairs
        ]

    def _case_row(
        self, case: InterferenceCase, watch: InterferenceWatch | None, state: InterferenceState, now: float
    ) -> dict[str, Any]:
        row = self._row(case.watch, case.victim, case.suspect, f"{case.phase}, {now - case.since:.0f} s")
        row |= {"correlation": round(case.correlation, 2), "limit": _limit(case.limit, case)}
        if watch is not None:
            track = state.tracks.get(SignalKey(case.victim, watch.signal.name, case.knob.domain))
            level = None if track is None else track.level(now)
            row["before"] = watch.signal.shown(case.before)
            row["level"] = "" if level is None else watch.signal.shown(level)
        return row

    def _row(self, section: str, victim: str, suspect: str, now: str) -> dict[str, Any]:
        return {
            "section": section,
            "victim": called(self._names.get(victim, ""), victim),
            "suspect": called(self._names.get(suspect, ""), suspect),
            "correlation": None,
            "limit": "",
            "before": "",
            "level": "",
            "state": now,
        }

    def _named(self, guest: str, sample: GuestSamples) -> NamedSubject:
        reading = sample.readings.get(guest)
        return NamedSubject(guest, self._names.get(guest, "") if reading is None else reading.facts.name)


def _why(decision: CaseDecision, watch: InterferenceWatch | None) -> str:
    """What the victim suffers, and how the suspect goes with it."""
    case = decision.case
    if watch is None:
        return "its section is gone, or does not act"
    parts = [f"it {watch.signal.words}: {watch.signal.shown(case.before)}"]
    if decision.level is not None and decision.what not in (CaseVerdict.TRY, CaseVerdict.PREVIEW):
        parts.append(f"now {watch.signal.shown(decision.level)}")
    return ", ".join((*parts, f"correlation {case.correlation:.2f}"))


def _limit(limit: float | None, case: InterferenceCase) -> str:
    return f"all of {case.knob}" if limit is None else f"{limit:.3g} of {case.knob}"


def _remembered(record: PairRecord, now: float) -> str:
    return ", ".join(_facts(record, now)) or "forgotten"


def _facts(record: PairRecord, now: float) -> Iterator[str]:
    if record.aside_until > now:
        yield f"left alone for {(record.aside_until - now) / 60:.0f} min"
    if record.verdicts:
        yield f"guilty {record.verdicts} times"
    if record.escalated:
        yield "escalated"
