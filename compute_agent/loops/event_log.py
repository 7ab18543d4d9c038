"""The thread that writes events down."""

from __future__ import annotations

import logging
import threading
from collections import deque
from pathlib import Path
from typing import Final

from oslo_config import cfg
from prometheus_client import CollectorRegistry, Counter

from compute_agent.events.event import AgentEvent
from compute_agent.events.store import FILE, EventStore
from compute_agent.loops.base import ReloadedConfiguration

LOG = logging.getLogger(__name__)

MAX_PENDING: Final = 1000
"""Events that are kept in memory while they cannot be written; then the newest are lost."""

RETRY_SECONDS: Final = 30.0


class EventLog:
    """Takes events at once, and writes them in a thread of its own. Its troubles cost events alone."""

    def __init__(self, options: cfg.ConfigOpts, registry: CollectorRegistry) -> None:
        self._store = EventStore(Path(options.state_path) / FILE, *_limits(options))
        self._pending: deque[AgentEvent] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._lost = Counter(
            "compute_agent_events_lost",
            "Events that could not be kept, as their file could not be written.",
            registry=registry,
        )
        self.trouble = ""
        """Why events are not written now; empty if they are."""

    def add(self, event: AgentEvent) -> None:
        """Have an event written. For all threads; waits for nobody."""
        with self._lock:
            if len(self._pending) < MAX_PENDING:
                self._pending.append(event)
            else:
                self._lost.inc()
        self._wake.set()

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Keep as much as the configuration says now, from the next event on."""
        self._store.max_events, self._store.max_bytes = _limits(conf.options)

    def stop(self, timeout: float = 2.0) -> None:
        """Write what there is, and end; a disk that hangs is not waited for longer than ``timeout``."""
        self._stopped.set()
        self._wake.set()
        self._thread.join(timeout)

    def flush(self) -> None:
        """Write what is pending; what cannot be stays."""
        with self._lock:
            events = tuple(self._pending)
        if not events:
            return
        try:
            kept = self._store.append(events)
        except OSError as error:
            if str(error) != self.trouble:
                LOG.warning("Events cannot be kept for now: %s", error)
            self.trouble = str(error)
            return
        with self._lock:
            for _ in range(kept):
                self._pending.popleft()
        if self.trouble:
            LOG.info("Events are kept again")
        self.trouble = ""

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            stopping = self._stopped.is_set()
            try:
                self.flush()
            except Exception:
                LOG.exception("Events cannot be written")
            if stopping:
                self._store.close()
                return
            if self._pending:  # it failed: whatever comes meanwhile waits with it
                self._stopped.wait(RETRY_SECONDS)
                self._wake.set()


def _limits(options: cfg.ConfigOpts) -> tuple[int, int]:
    return options.events.max_events, options.events.max_mb * 10**6
