"""The main thread: waits for signals, and looks for what nothing reports by itself."""

from __future__ import annotations

import queue
import signal
import time
from typing import Final, Protocol

LOOK_SECONDS: Final = 1.0
"""How often configuration files and hardware are looked at for changes."""

PRUNE_SECONDS: Final = 600.0
"""How often logs of ended guests are looked for that have been kept long enough."""


class MainDuties(Protocol):
    """The duties of the main thread."""

    @property
    def reconcile_interval(self) -> float:
        """Seconds from one :meth:`reconcile` to the next."""
        ...

    def reload(self) -> None:
        """Read configuration and host again."""
        ...

    def reload_changes(self) -> None:
        """Look whether configuration or hardware changed since the last time, and apply that."""
        ...

    def reconcile(self) -> None:
        """Have the worker check all guests."""
        ...

    def shorten_guest_logs(self) -> None:
        """Shorten the logs of guests that are too large."""
        ...

    def prune_guest_logs(self) -> None:
        """Remove the logs of ended guests that have been kept long enough."""
        ...

    def stop(self) -> None:
        """Stop listening and working."""
        ...


class ReceivedSignals:
    """Signals that wait for the main thread. For any thread, and for handlers of signals."""

    def __init__(self) -> None:
        # SimpleQueue.put() may interrupt itself: a handler runs between any two steps of the main thread.
        self._queue: queue.SimpleQueue[int] = queue.SimpleQueue()

    def put(self, number: int) -> None:
        """Make the main thread act as if it had received this signal."""
        self._queue.put(number)

    def get(self, timeout: float) -> int | None:
        """The next signal, waited for ``timeout`` seconds at most; None without one."""
        try:
            return self._queue.get(timeout=max(0.0, timeout))
        except queue.Empty:
            return None


class MainLoop:
    """The main thread's work until a signal ends it. Python runs handlers of signals in that thread only."""

    def __init__(self, agent: MainDuties, received: ReceivedSignals) -> None:
        self._agent = agent
        self._received = received

    def catch_signals(self) -> None:
        """Have signals wait for serve_signals(). For the main thread, before the agent starts."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # Only queued: the handler runs between two steps of the main thread, which may hold a lock.
            signal.signal(number, lambda number, frame: self._received.put(number))

    def serve_signals(self) -> None:
        """Work until SIGTERM or SIGINT, then stop the agent; SIGHUP reloads. Call it after the start."""
        due = time.monotonic() + self._agent.reconcile_interval
        prune_due = time.monotonic()
        try:
            while True:
                received = self._received.get(min(due - time.monotonic(), LOOK_SECONDS))
                if received == signal.SIGHUP:
                    self._agent.reload()
                elif received is not None:
                    return
                else:
                    self._agent.reload_changes()
                    self._agent.shorten_guest_logs()
                    if time.monotonic() >= due:
                        self._agent.reconcile()
                        due = time.monotonic() + self._agent.reconcile_interval
                if time.monotonic() >= prune_due:
                    self._agent.prune_guest_logs()
                    prune_due = time.monotonic() + PRUNE_SECONDS
        finally:
            self._agent.stop()
