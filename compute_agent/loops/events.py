"""Writes events to their files, and reports processes of guests that the kernel killed for lack of memory."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

from oslo_config import cfg
from prometheus_client import CollectorRegistry, Counter

from compute_agent.drivers.base import MemoryTuning, OomKill
from compute_agent.events.event import AgentEvent, EventKind, EventRecorder
from compute_agent.events.store import FILE, EventStore
from compute_agent.host import kernel_files
from compute_agent.loops.base import AgentLoop, ReloadedConfiguration
from compute_agent.threads import NO_LOCK, PeriodicTask, ThreadSpec, log_failures

LOG = logging.getLogger(__name__)

MAX_PENDING: Final = 1000
"""Maximum number of events in memory while the file cannot be written; further events are lost."""

RETRY_SECONDS: Final = 30.0
"""Seconds between a failed write of events and the next attempt."""

EVENTS_THREAD: Final = ThreadSpec(
    "events",
    "when there is an event",
    "writes events to their file; the last thread to stop, as the worker records events until it ends",
    "that of the pending events",
    "files of the state folder",
)


class EventLog(AgentLoop):
    """Queues events without waiting, and writes them in a thread, which writes queued events before it stops.

    If writes fail for long, some events are lost.
    """

    def __init__(self, options: cfg.ConfigOpts, registry: CollectorRegistry) -> None:
        self._store = EventStore(Path(options.state_path) / FILE, *_store_limits(options))
        self._pending: deque[AgentEvent] = deque()
        self._lock = threading.Lock()
        self._thread = PeriodicTask(
            EVENTS_THREAD,
            self._write_unless_waiting,
            self._retry_pause,
            log_failures(LOG, "Events cannot be written"),
            keep=self._finish_writing,
        )
        self._retry_due = 0.0
        """The time of the next attempt after a failure, in monotonic seconds.

        New events also wait until this time.
        """
        self._lost = Counter(
            "compute_agent_events_lost",
            "Events that were lost, because their file could not be written.",
            registry=registry,
        )
        self.trouble = ""
        """The reason why events cannot be written now; empty while they can be written."""

    def add(self, event: AgentEvent) -> None:
        """Queue an event without waiting. Any thread may call this method."""
        with self._lock:
            if len(self._pending) < MAX_PENDING:
                self._pending.append(event)
            else:
                self._lost.inc()
        self._thread.wake()

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Use another configuration's limits on stored events, from the next event on."""
        self._store.max_events, self._store.max_bytes = _store_limits(conf.options)

    def flush(self) -> bool:
        """Write queued events; return whether all of them were written. The others stay in the queue."""
        with self._lock:
            events = tuple(self._pending)
        if not events:
            return True
        # Events are written without the lock, so that a slow disk does not delay the worker, which adds
        # events.
        try:
            kept = self._store.append(events)
        except OSError as error:
            if str(error) != self.trouble:
                LOG.warning(
                    "Events cannot be stored, so the agent keeps the latest of them in memory: %s", error
                )
            self.trouble = str(error)
            return False
        with self._lock:
            # Only the written events are removed, because new events may have been added at the end
            # meanwhile.
            for _ in range(kept):
                self._pending.popleft()
        if self.trouble:
            LOG.info("Events can be stored again")
        self.trouble = ""
        return kept == len(events)

    def _write_unless_waiting(self) -> None:
        if time.monotonic() < self._retry_due:
            return  # a new event has woken the thread; the event waits for the next attempt
        self._retry_due = time.monotonic() + RETRY_SECONDS  # the time is set before flush(), which can raise
        # An event that is added meanwhile wakes the thread for another round, and does not wait.
        if self.flush():
            self._retry_due = 0.0

    def _retry_pause(self, took: float) -> float | None:
        return max(0.0, self._retry_due - time.monotonic()) if self._retry_due else None

    def _finish_writing(self) -> None:
        try:
            self.flush()
        finally:
            self._store.close()


def _store_limits(options: cfg.ConfigOpts) -> tuple[int, int]:
    return options.events.max_events, options.events.max_mb * 10**6


_PAUSE: Final = 2.0
"""Seconds between two reads of the host's counter of kills."""
_KEPT: Final = 20
"""Maximum number of kills that ``status`` lists."""

_LOOKS: Final = 2
"""Number of times that all guests are read after a kill: the kernel counts a kill for the host first, and for
the guest's cgroup later."""

REASONS: Final = {
    True: "it reached its own limit (memory.max): allocate more MEMORY_MB, or find what uses the memory"
    " in the guest",
    False: "the host, or the NUMA nodes of its memory, had no memory left: see [DEFAULT]"
    " reserved_host_memory_mb and ram_allocation_ratio, or set a watermark for memory_usage",
}


def kills_on_host(vmstat: str) -> int | None:
    """Count the kills for lack of memory since boot, from /proc/vmstat; None before Linux 4.13."""
    try:
        words = kernel_files.read(vmstat).partition(b"\noom_kill ")[2].split(None, 1)
        return int(words[0]) if words else None
    except (OSError, ValueError):
        return None


OOM_THREAD: Final = ThreadSpec(
    "oom",
    _PAUSE,
    "reports guests that the kernel killed for lack of memory",
    NO_LOCK,
    "/proc/vmstat, then the driver",
)


class OomEvents(AgentLoop):
    """Logs, counts, records and lists processes of guests that the kernel killed for lack of memory."""

    def __init__(
        self, driver: MemoryTuning, recorder: EventRecorder, registry: CollectorRegistry, root: str = "/"
    ) -> None:
        """``root`` is the folder that contains ``proc``."""
        self._driver = driver
        self._vmstat = f"{root.rstrip('/')}/proc/vmstat"
        self._on_host: int | None = None
        self._looks_due = 0
        self._recorder = recorder
        self._kills = Counter(
            "compute_agent_oom_kills",
            "Processes of guests that the kernel killed for lack of memory: at the limit of the guest, or"
            " because the host had no memory left.",
            ["limit"],
            registry=registry,
        )
        # Both series exist from the start: Prometheus computes no increase for a series that begins with 1.
        for limit in ("guest", "host"):
            self._kills.labels(limit)
        self._recent: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._thread = PeriodicTask(
            OOM_THREAD,
            self.report_kills,
            lambda took: _PAUSE,
            log_failures(
                LOG, "The agent cannot tell whether the kernel killed guests because memory was short"
            ),
        )

    def list_rows(self) -> list[dict[str, Any]]:
        """Rows for ``status`` with the last kills, the oldest first."""
        return list(self._recent)

    def report_kills(self) -> None:
        """Report new kills. The guests' counters are read only if the counter of the host has changed."""
        on_host = kills_on_host(self._vmstat)
        # On a kernel without this counter, guests are read each time.
        if on_host is None or on_host != self._on_host:
            self._on_host, self._looks_due = on_host, _LOOKS
        if self._looks_due == 0:
            return
        # the counter is read before the decrement, so that a failed read is repeated
        kills = self._driver.oom_kills()
        self._looks_due -= 1
        for kill in kills:
            self._report_kill(kill)

    def _report_kill(self, kill: OomKill) -> None:
        reason = REASONS[kill.at_own_limit]
        message = "Guest %s: the kernel killed %d of its processes: %s"
        self._recorder.record_done(
            LOG.warning, EventKind.OOM_KILL, kill.guest, message, kill.kills, reason, reason=reason
        )
        self._kills.labels("guest" if kill.at_own_limit else "host").inc(kill.kills)
        self._recent.append(
            {
                "guest": kill.guest.uuid,
                "name": kill.guest.name,
                "kills": kill.kills,
                "reason": reason,
                "time": round(time.time(), 3),
            }
        )
