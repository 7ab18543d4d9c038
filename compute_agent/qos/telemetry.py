"""What operators see of watermarks: events, and metrics for Prometheus."""

from __future__ import annotations

import logging
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from compute_agent.events.event import EventKind, EventOutcome, EventRecorder, NamedSubject
from compute_agent.model.messages import called
from compute_agent.qos.actions import Act, EvictAction, RestoreAction, SwitchScheduling, ThrottleAction
from compute_agent.qos.snapshot import MetricSeries, UsageSnapshot
from compute_agent.qos.state import QosState

LOG = logging.getLogger(__name__)


class ThrottleTelemetry:
    """Tells of actions, and counts them. One thread writes."""

    def __init__(
        self,
        registry: CollectorRegistry,
        recorder: EventRecorder | None = None,
        blame: Callable[[str, str], None] = lambda guest, metric: None,
    ) -> None:
        """``blame`` is told of each guest that was throttled or evicted, and for which metric.

        It must not wait.
        """
        self._recorder = recorder or EventRecorder()
        self._blame = blame
        self._shown: set[MetricSeries] = set()
        self._failures: dict[tuple[str, str], str] = {}
        self._actions = Counter(
            "compute_agent_watermark_actions",
            "Actions for the sake of watermarks, by what came of them.",
            ["action", "metric", "outcome"],
            registry=registry,
        )
        self._usage = Gauge(
            "compute_agent_watermark_usage",
            "Usage of the host as the watermarks see it, in the unit of the metric.",
            ["metric", "domain"],
            registry=registry,
        )
        self.round_failures = Counter(
            "compute_agent_watermark_round_failures", "Rounds that went wrong.", registry=registry
        )
        self._throttled = Gauge(
            "compute_agent_throttled_guests", "Guests that are throttled.", registry=registry
        )
        self._evicting = Gauge(
            "compute_agent_evicting_guests", "Guests that are being evicted.", registry=registry
        )
        self._closed = Gauge(
            "compute_agent_scheduling_disabled", "Whether new guests are kept away (1).", registry=registry
        )

    def evicted(self, guest: str, name: str) -> None:
        """Tell that a guest has left."""
        self._recorder.tell(LOG.info, EventKind.EVICT, NamedSubject(guest, name), "Guest %s was evicted")

    def record(self, action: Act, outcome: EventOutcome, reason: str = "", name: str = "") -> None:
        """Tell of an action; ``name`` is that of the guest."""
        kind = _kind(action)
        guest = "" if isinstance(action, SwitchScheduling) else action.guest
        metric = action.metric if isinstance(action, EvictAction | ThrottleAction) else ""
        self._actions.labels(kind, metric, outcome).inc()
        text = str(action).replace(guest, called(name, guest), 1) if guest else str(action)
        whom = NamedSubject(guest, name) if guest else None
        if outcome is EventOutcome.FAILED:
            # What is tried in each round need not be told in each.
            if self._failures.get((kind, guest)) == reason:
                LOG.debug("Failed: %s: %s", text, reason)
            else:
                self._recorder.record(
                    LOG.error, kind, whom, "Failed: %s: %s", text, reason, reason=reason, outcome=outcome
                )
            self._failures[kind, guest] = reason
        else:
            self._failures.pop((kind, guest), None)
            if metric and outcome is EventOutcome.DONE:
                self._blame(guest, metric)
            message = "Preview: %s" if outcome is EventOutcome.PREVIEW else "Watermark: %s"
            self._recorder.record(LOG.info, kind, whom, message, text, outcome=outcome)

    def show(self, snapshot: UsageSnapshot, state: QosState) -> None:
        """Set the gauges at the end of a round."""
        for series in self._shown - snapshot.host.keys():
            self._usage.remove(*series)
        for series, used in snapshot.host.items():
            self._usage.labels(*series).set(used)
        self._shown = set(snapshot.host)
        self._throttled.set(len({one.guest for one in state.throttles}))
        self._evicting.set(len(state.evictions))
        self._closed.set(bool(state.scheduling_off))


def _kind(action: Act) -> EventKind:
    match action:
        case SwitchScheduling():
            return EventKind.DISABLE_SCHEDULING if action.off else EventKind.ENABLE_SCHEDULING
        case EvictAction():
            return EventKind.EVICT
        case ThrottleAction():
            return EventKind.THROTTLE_DOWN
        case RestoreAction():
            return EventKind.THROTTLE_UP
