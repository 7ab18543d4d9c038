"""Telemetry of throttling: each action and decision is logged, recorded as an event, and counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from compute_agent.events.event import EventKind, EventOutcome, EventRecorder, NamedSubject
from compute_agent.throttling.interference.cases import (
    VERDICTS,
    CaseDecision,
    CaseVerdict,
    InterferenceCase,
)
from compute_agent.throttling.interference.signals import InterferenceWatch
from compute_agent.throttling.interference.state import InterferenceState, PairRecord, SignalKey
from compute_agent.throttling.watermarks.sections import WatermarkAction, WatermarkSection
from compute_agent.throttling.watermarks.state import (
    EvictAction,
    ReclaimAction,
    RestoreAction,
    SwitchScheduling,
    ThrottleAction,
    WatermarkAct,
    WatermarkState,
)
from compute_agent.usage.snapshot import UsageSnapshot

LOG = logging.getLogger(__name__)

ThrottlingAct = WatermarkAct | CaseDecision
"""The type of an action of watermarks or a decision of interference."""

Blame = Callable[[str, str, str], None]
"""The type of a function that records that a guest was limited or evicted because it used too much.

Its arguments are the guest's uuid, the metric, and the name of the signal of interference ("" for a
watermark).
"""


class ThrottleTelemetry:
    """Reports and counts the actions of both triggers; several threads may use it at the same time."""

    def __init__(
        self,
        registry: CollectorRegistry,
        recorder: EventRecorder | None = None,
        blame: Blame = lambda guest, metric, cause: None,
    ) -> None:
        """Create the metrics in ``registry``.

        ``blame`` is called for each guest that was throttled, evicted or found guilty. The function must not
        wait, because it is called within a round.
        """
        self._recorder = recorder or EventRecorder()
        self._blame = blame
        self._lock = threading.Lock()
        #: Names of guests by trigger and uuid. Each trigger removes names that it does not need any more.
        self._names: dict[str, Mapping[str, str]] = {}
        #: For each gauge, the labels that have a value now.
        self._shown: dict[Gauge, set[tuple[str, ...]]] = {}
        #: The last reported reason of a failure, by kind of event and uuid of the guest ("" for the host).
        self._failures: dict[tuple[str, str], str] = {}
        self._actions = Counter(
            "compute_agent_watermark_actions",
            "Actions of watermarks, by outcome.",
            ["action", "metric", "outcome"],
            registry=registry,
        )
        self._usage = Gauge(
            "compute_agent_watermark_usage",
            "Usage of the host that is compared with watermarks, in the unit of the metric.",
            ["metric", "domain"],
            registry=registry,
        )
        self._threshold = Gauge(
            "compute_agent_watermark_threshold",
            "Threshold of a watermark, in the unit of the metric, by section and action.",
            ["section", "metric", "domain", "action"],
            registry=registry,
        )
        self.watermark_failures = Counter(
            "compute_agent_watermark_round_failures", "Rounds of watermarks that failed.", registry=registry
        )
        self._throttled = Gauge(
            "compute_agent_throttled_guests", "Guests that watermarks limit now.", registry=registry
        )
        self._evicting = Gauge(
            "compute_agent_evicting_guests", "Guests that are being evicted.", registry=registry
        )
        self._closed = Gauge(
            "compute_agent_scheduling_disabled",
            "1 if a watermark keeps new guests away from this host, otherwise 0.",
            registry=registry,
        )
        self._decisions = Counter(
            "compute_agent_interference_decisions",
            "Decisions about guests that disturb others, by section and outcome.",
            ["section", "decision", "outcome"],
            registry=registry,
        )
        self._disturbed = Gauge(
            "compute_agent_interference_disturbed_guests",
            "Guests that are disturbed more than usual, by section.",
            ["section"],
            registry=registry,
        )
        self._limited = Gauge(
            "compute_agent_interference_limited_guests",
            "Guests that are limited to protect another guest.",
            registry=registry,
        )
        self.interference_failures = Counter(
            "compute_agent_interference_round_failures",
            "Rounds of interference that failed.",
            registry=registry,
        )

    def name_guests(self, owner: str, names: Mapping[str, str], staying: Iterable[str] = ()) -> None:
        """Replace the names that ``owner`` reported, by uuid.

        Guests in ``staying`` keep their names if ``names`` lacks them.
        """
        with self._lock:
            before = self._names.get(owner, {})
            kept = {guest: before[guest] for guest in staying if guest in before}
            self._names[owner] = {**kept, **names}

    def subject_of(self, guest: str) -> NamedSubject:
        """The uuid and the name of a guest, as log lines and events show them."""
        with self._lock:
            # An empty name is skipped, because another trigger can know the name.
            name = next((names[guest] for names in self._names.values() if names.get(guest)), "")
        return NamedSubject(guest, name)

    def record_evicted(self, guest: str) -> None:
        """Log, count and record as an event that an evicted guest has left the host."""
        self._recorder.record_done(LOG.info, EventKind.EVICT, self.subject_of(guest), "Guest %s was evicted")

    def record_action(self, action: ThrottlingAct, outcome: EventOutcome, reason: str = "") -> None:
        """Log and count an action, and record it as an event; ``reason`` explains why an action failed."""
        if isinstance(action, CaseDecision):
            self._record_decision(action, outcome, reason)
        else:
            self._record_watermark(action, outcome, reason)

    def show_watermarks(
        self, snapshot: UsageSnapshot, state: WatermarkState, watermarks: Iterable[WatermarkSection] = ()
    ) -> None:
        """Set the gauges of the watermarks at the end of a round."""
        self._show_values(
            self._usage, {(one.metric, one.domain): used for one, used in snapshot.host.items()}
        )
        self._show_values(self._threshold, dict(_threshold_values(snapshot, watermarks)))
        # The gauge counts guests, not limits: one guest can have limits of several levers.
        self._throttled.set(len({one.guest for one in state.throttles}))
        self._evicting.set(len(state.evictions))
        self._closed.set(bool(state.scheduling_off))
        present = {"", *snapshot.guests, *state.evicting_guests}
        self._failures = {key: why for key, why in self._failures.items() if key[1] in present}

    def show_interference(
        self, state: InterferenceState, watches: Sequence[InterferenceWatch], time: float
    ) -> None:
        """Set the gauges of interference at the end of a round."""
        self._limited.set(len({case.suspect for case in state.cases if case.limit is not None}))
        # Otherwise the series of a removed section would keep its last value.
        self._disturbed.clear()
        for watch in watches:
            disturbed = {
                key.guest
                for key, track in state.tracks.items()
                if key.signal == watch.signal.name and track.suffers_lastingly(time)
            }
            self._disturbed.labels(watch.name).set(len(disturbed))

    def _show_values(self, gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
        """Set a gauge to ``values`` (by labels), and remove the series that have no value any more."""
        # A series without a new value is removed, because its old value would look like a measured value.
        for labels in self._shown.get(gauge, set()) - values.keys():
            gauge.remove(*labels)
        for labels, value in values.items():
            gauge.labels(*labels).set(value)
        self._shown[gauge] = set(values)

    def list_cases(
        self, state: InterferenceState, watches: Sequence[InterferenceWatch], now: float
    ) -> list[dict[str, Any]]:
        """Rows for ``compute-agent`` commands: one for each open case, then one for each remembered pair.

        All values except ``correlation`` are text. ``before`` is the victim's signal before the latest step,
        and ``level`` its present signal. ``limit`` is the suspect's limit in the lever's unit.
        """
        by_name = {watch.name: watch for watch in watches}
        cases = [self._case_row(case, by_name.get(case.watch), state, now) for case in state.cases]
        # The pair of an open case has no row of its own, because the row of the case has more facts.
        open_pairs = {case.guest_pair for case in state.cases}
        return cases + [
            self._pair_row(*pair, ", ".join(_remembered_facts(record, now)) or "forgotten")
            for pair, record in sorted(state.pairs.items())
            if pair not in open_pairs
        ]

    def _case_row(
        self, case: InterferenceCase, watch: InterferenceWatch | None, state: InterferenceState, now: float
    ) -> dict[str, Any]:
        phase = f"{case.phase}, {now - case.since:.0f} s"
        row = self._pair_row(*case.guest_pair, phase)
        row |= {"correlation": round(case.correlation, 2), "limit": format_limit(case.limit, case)}
        if watch is not None:
            track = state.tracks.get(SignalKey(case.victim, watch.signal.name, case.knob.domain))
            level = None if track is None else track.mean_level(now)
            row["before"] = watch.signal.format_value(case.before)
            row["level"] = "" if level is None else watch.signal.format_value(level)
        return row

    def _pair_row(self, section: str, victim: str, suspect: str, now: str) -> dict[str, Any]:
        return {
            "section": section,
            "victim": str(self.subject_of(victim)),
            "suspect": str(self.subject_of(suspect)),
            "correlation": None,
            "limit": "",
            "before": "",
            "level": "",
            "state": now,
        }

    def _record_watermark(self, action: WatermarkAct, outcome: EventOutcome, reason: str) -> None:
        kind = _event_kind(action)
        guest = "" if isinstance(action, SwitchScheduling) else action.guest
        metric = "" if isinstance(action, SwitchScheduling | RestoreAction) else action.metric
        # A repeated failure is logged once, but counted each time, so that the rate shows that it continues.
        self._actions.labels(kind, metric, outcome).inc()
        subject = self.subject_of(guest) if guest else None
        # The text of an action names the guest by uuid; the log shows the name of the guest as well.
        text = str(action).replace(guest, str(subject), 1) if guest else str(action)
        if outcome is EventOutcome.FAILED:
            # A failing action is tried again in each round, so a failure is reported only if its reason is
            # new.
            if self._failures.get((kind, guest)) == reason:
                LOG.debug("The action failed again for the same reason: %s: %s", text, reason)
            else:
                self._record_failure(kind, subject, text, reason)
            self._failures[kind, guest] = reason
            return
        self._failures.pop((kind, guest), None)
        # Blame is reported only if the guest was really throttled or evicted.
        if isinstance(action, EvictAction | ThrottleAction) and outcome is EventOutcome.DONE:
            self._blame(guest, metric, "")
        message = "Preview: %s" if outcome is EventOutcome.PREVIEW else "Watermark: %s"
        self._recorder.record_event(LOG.info, kind, subject, message, text, outcome=outcome)

    def _record_decision(self, decision: CaseDecision, outcome: EventOutcome, failure: str) -> None:
        case = decision.case
        self._decisions.labels(case.watch, decision.what.value, outcome).inc()
        suspect, victim = self.subject_of(case.suspect), self.subject_of(case.victim)
        kind, text = _decision_text(decision, suspect, victim)
        # A changed limit is an event of the suspect, and a verdict is an event of the victim.
        subject = victim if kind is EventKind.VERDICT else suspect
        if failure:
            self._record_failure(kind, subject, text, failure)
            return
        why = _decision_reason(decision)
        message = "Preview: %s: %s" if outcome is EventOutcome.PREVIEW else "Interference: %s: %s"
        self._recorder.record_event(LOG.info, kind, subject, message, text, why, reason=why, outcome=outcome)
        # Only a verdict blames a guest, because a trial can end with the verdict not guilty.
        if decision.what in VERDICTS and decision.watch is not None:
            self._blame(case.suspect, decision.watch.signal.lever.metric, decision.watch.signal.name)

    def _record_failure(self, kind: EventKind, subject: NamedSubject | None, text: str, reason: str) -> None:
        self._recorder.record_event(
            LOG.error,
            kind,
            subject,
            "An action on a guest or the host failed: %s: %s",
            text,
            reason,
            reason=reason,
            outcome=EventOutcome.FAILED,
        )


def _threshold_values(
    snapshot: UsageSnapshot, watermarks: Iterable[WatermarkSection]
) -> Iterator[tuple[tuple[str, ...], float]]:
    """The thresholds of watermarks in the metric's unit, by section, metric, domain and action."""
    for watermark in watermarks:
        for series in snapshot.host:
            for action in WatermarkAction if series.metric == watermark.metric else ():
                amount = watermark.threshold_amount(action, snapshot, series.domain)
                if amount is not None:
                    yield (watermark.name, series.metric, series.domain, action.value), amount


def format_limit(limit: float | None, case: InterferenceCase) -> str:
    """The limit of a case as text, such as ``3.2 of cpu_quota``; for no limit, ``all of cpu_quota``."""
    return f"all of {case.knob}" if limit is None else f"{limit:.3g} of {case.knob}"


def _event_kind(action: WatermarkAct) -> EventKind:
    match action:
        case SwitchScheduling():
            return EventKind.DISABLE_SCHEDULING if action.off else EventKind.ENABLE_SCHEDULING
        case EvictAction():
            return EventKind.EVICT
        case ReclaimAction():
            return EventKind.RECLAIM
        case ThrottleAction():
            return EventKind.THROTTLE_DOWN
        case RestoreAction():
            return EventKind.THROTTLE_UP


def _decision_text(
    decision: CaseDecision, suspect: NamedSubject, victim: NamedSubject
) -> tuple[EventKind, str]:
    case, shown = decision.case, format_limit(decision.limit, decision.case)
    match decision.what:
        case CaseVerdict.TRY | CaseVerdict.FURTHER | CaseVerdict.RELAPSE:
            return EventKind.THROTTLE_DOWN, f"limit {suspect} to {shown} for {victim} ({case.watch})"
        case CaseVerdict.GIVE_BACK:
            return EventKind.THROTTLE_UP, f"give {suspect} back {shown}, limited for {victim} ({case.watch})"
        case CaseVerdict.CLOSE:
            text = f"{suspect} has {shown} again that was taken for {victim} ({case.watch})"
            return EventKind.THROTTLE_UP, text
        case CaseVerdict.PREVIEW:
            text = f"{suspect} may disturb {victim}, limit it to {shown} ({case.watch})"
        case CaseVerdict.ESCALATE:
            text = f"escalate_command for {suspect}, which disturbs {victim} ({case.watch})"
        case _:
            text = f"{suspect} is {decision.what} of disturbing {victim} ({case.watch})"
    return EventKind.VERDICT, text


def _decision_reason(decision: CaseDecision) -> str:
    """The reason for a decision as text: the victim's signal before and now, and the correlation."""
    case, watch = decision.case, decision.watch
    if watch is None:
        return "its section is gone, or does not act"
    parts = [f"it {watch.signal.words}: {watch.signal.format_value(case.before)}"]
    # A trial begins at the present level, so the present level equals ``before`` and is left out.
    if decision.level is not None and decision.what not in (CaseVerdict.TRY, CaseVerdict.PREVIEW):
        parts.append(f"now {watch.signal.format_value(decision.level)}")
    return ", ".join((*parts, f"correlation {case.correlation:.2f}"))


def _remembered_facts(record: PairRecord, now: float) -> Iterator[str]:
    if record.aside_until > now:
        yield f"left alone for {(record.aside_until - now) / 60:.0f} min"
    if record.verdicts:
        yield f"guilty {record.verdicts} times"
    if record.escalated:
        yield "escalated"
