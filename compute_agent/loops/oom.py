"""The thread that tells of guests which the kernel kills for want of memory."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter

from compute_agent.drivers.base import Driver, OomKill
from compute_agent.events.event import Kind
from compute_agent.events.recorder import Recorder
from compute_agent.loops.base import Configuration

LOG = logging.getLogger(__name__)

_PAUSE: Final = 2.0
_KEPT: Final = 20

REASONS: Final = {
    True: "it used all that it may have (memory.max): let it hold more MEMORY_MB, or see what it does with"
    " it",
    False: "the host, or the NUMA nodes of its memory, had none left: see [DEFAULT] reserved_host_memory_mb"
    " and ram_allocation_ratio, or set a watermark for memory_usage",
}


class OomEvents:
    """Log, event, metric and the list in ``status``."""

    def __init__(self, driver: Driver, recorder: Recorder, registry: CollectorRegistry) -> None:
        self._driver = driver
        self._recorder = recorder
        self._kills = Counter(
            "compute_agent_oom_kills",
            "Processes of guests that the kernel killed for want of memory, at their own limit or as the host"
            " had none left.",
            ["limit"],
            registry=registry,
        )
        for limit in ("guest", "host"):
            self._kills.labels(limit)
        self._recent: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oom", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopped.set()
        self._thread.join(_PAUSE)

    def reload(self, conf: Configuration) -> None:
        """No option changes it."""

    def document(self) -> list[dict[str, Any]]:
        """The last kills, oldest first."""
        return list(self._recent)

    def look(self) -> None:
        """Tell of what is new."""
        for kill in self._driver.oom_kills():
            self._tell(kill)

    def _tell(self, kill: OomKill) -> None:
        reason = REASONS[kill.at_own_limit]
        message = "Guest %s: the kernel killed %d of its processes: %s"
        self._recorder.tell(
            LOG.warning, Kind.OOM_KILL, kill.guest, message, kill.kills, reason, reason=reason
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

    def _run(self) -> None:
        while not self._stopped.wait(_PAUSE):
            try:
                self.look()
            except Exception:
                LOG.exception("Whether guests were killed for want of memory cannot be told")
