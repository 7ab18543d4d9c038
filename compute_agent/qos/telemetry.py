"""What operators see of watermarks: events, and metrics for Prometheus."""

from __future__ import annotations

import collections
import enum
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from compute_agent.model.naming import called
from compute_agent.qos.actions import Act, Evict, Restore, SwitchScheduling, Throttle
from compute_agent.qos.snapshot import Series, Snapshot
from compute_agent.qos.state import QosState

LOG = logging.getLogger(__name__)

_REMEMBERED: Final = 1000


class Outcome(enum.StrEnum):
    """What came of an action."""

    DONE = "done"
    FAILED = "failed"
    PREVIEW = "preview"


@dataclass(frozen=True, slots=True)
class Event:
    """One action. ``time`` is in seconds since the epoch, ``reason`` why it failed."""

    time: float
    kind: str
    outcome: Outcome
    text: str
    guest: str = ""
    metric: str = ""
    reason: str = ""


class Telemetry:
    """The latest events, and counts of all. One thread writes; others may read."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._events: collections.deque[Event] = collections.deque(maxlen=_REMEMBERED)
        self._shown: set[Series] = set()
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

    @property
    def events(self) -> Sequence[Event]:
        """The latest events, oldest first."""
        return tuple(self._events)

    def record(self, action: Act, outcome: Outcome, reason: str = "", name: str = "") -> None:
        """Tell of an action; ``name`` is that of the guest."""
        kind = _kind(action)
        guest = "" if isinstance(action, SwitchScheduling) else action.guest
        metric = action.metric if isinstance(action, Evict | Throttle) else ""
        self._actions.labels(kind, metric, outcome).inc()
        text = str(action).replace(guest, called(name, guest), 1) if guest else str(action)
        self._events.append(Event(time.time(), kind, outcome, text, guest, metric, reason))
        if outcome is Outcome.FAILED:
            # What is tried in each round need not be told in each.
            again = self._failures.get((kind, guest)) == reason
            LOG.log(logging.DEBUG if again else logging.ERROR, "Failed: %s: %s", text, reason)
            self._failures[kind, guest] = reason
        else:
            self._failures.pop((kind, guest), None)
            LOG.info("%s: %s", "Preview" if outcome is Outcome.PREVIEW else "Watermark", text)

    def show(self, snapshot: Snapshot, state: QosState) -> None:
        """Set the gauges at the end of a round."""
        for series in self._shown - snapshot.host.keys():
            self._usage.remove(*series)
        for series, used in snapshot.host.items():
            self._usage.labels(*series).set(used)
        self._shown = set(snapshot.host)
        self._throttled.set(len({one.guest for one in state.throttles}))
        self._evicting.set(len(state.evictions))
        self._closed.set(bool(state.scheduling_off))


def _kind(action: Act) -> str:
    match action:
        case SwitchScheduling():
            return "disable_scheduling" if action.off else "enable_scheduling"
        case Evict():
            return "evict"
        case Throttle():
            return "throttle_down"
        case Restore():
            return "throttle_up"
