"""Maintenance mode: keeps new guests away from this host until an operator ends it."""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry, Gauge

from compute_agent.agent.protocol import RequestError
from compute_agent.events.event import EventKind, EventRecorder
from compute_agent.loops.reports import DISABLE_SERVICE, ReportLoop
from compute_agent.pipeline.state import AgentState
from compute_agent.report.root_provider import (
    RELEASE_REASON,
    Causes,
    DisableCause,
    HostMaintenance,
    in_words,
)

LOG = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 20.0
"""How long Placement is waited for; it is told later otherwise."""


class MaintenanceStore(Protocol):
    """Keeps what an operator said."""

    def keep_maintenance(self, said: HostMaintenance) -> None:
        """Keep it durably.

        :raises OSError:
        """
        ...


class MaintenanceMode:
    """The operator's switch.

    The order is stored before it takes effect, and survives restarts of the agent.
    """

    def __init__(
        self,
        said: HostMaintenance | None,
        store: MaintenanceStore,
        reports: ReportLoop,
        registry: CollectorRegistry,
        recorder: EventRecorder | None = None,
    ) -> None:
        """``said`` is what ``store`` kept last."""
        self._recorder = recorder or EventRecorder()
        self._said = said
        self._store = store
        self._reports = reports
        self._lock = threading.Lock()
        Gauge(
            "compute_agent_host_disabled",
            "Whether an operator keeps new guests away from this host (1): compute-agent host disable.",
            registry=registry,
        ).set_function(lambda: self.is_on)

    @property
    def is_on(self) -> bool:
        """Whether new guests are kept away for maintenance; Placement tells if the state file does not."""
        if self._said is not None:
            return self._said.off
        return DisableCause.MAINTENANCE in (self._reports.root_traits or ())

    def switch_host(self, off: bool, reason: str = "") -> dict[str, Any]:
        """Keep new guests away, or let them in again; the state that follows.

        :raises RequestError: the order cannot be stored, or only nova-compute may decide this.
        """
        if off and self._reports.is_beside:
            raise RequestError(f"nothing is changed: {DISABLE_SERVICE}")
        # Held until the reports know it, so that two orders take effect in the order in which they are kept.
        with self._lock:
            again = off and self._said is not None and self._said.off
            # Another reason does not change since when the host is disabled.
            since = self._said.since if again and self._said is not None else time.time()
            said = HostMaintenance(off, reason, since)
            try:
                self._store.keep_maintenance(said)
            except OSError as error:
                raise RequestError(
                    f"nothing is changed, because the change cannot be stored: {error}"
                ) from error
            self._said = said
            self._recorder.record_event(
                LOG.info,
                EventKind.DISABLE_SCHEDULING if off else EventKind.ENABLE_SCHEDULING,
                None,
                "The host was %s by an operator%s",
                _switch_verb(off),
                f": {reason}" if reason else "",
                reason=reason,
            )
            self._reports.switch_scheduling(DisableCause.MAINTENANCE, off)
        # Without the lock: while Placement is away, another order must not wait.
        if not self._reports.wait_for_switch(ANSWER_SECONDS):
            LOG.warning("The report to Placement that the host was %s is still pending", _switch_verb(off))
        return self.status_fields()

    def prepare_release(self) -> None:
        """Keep new guests away before a release ends the agent, unless that is done, or nova-compute's task.

        :raises RequestError: the order cannot be stored.
        """
        if not self._reports.is_beside and not self.is_on:
            self.switch_host(True, RELEASE_REASON)

    def status_fields(self) -> dict[str, Any]:
        """For ``status``: whether the host is disabled, why and since when; and what Placement knows."""
        said, traits = self._said, self._reports.root_traits
        since = None if said is None or not said.off else said.since
        return {
            "disabled": self.is_on,
            "disabled_reason": "" if said is None or not said.off else said.reason,
            "disabled_since": None
            if since is None
            else datetime.fromtimestamp(since, UTC).isoformat("T", "seconds"),
            "new_guests": "not known yet" if traits is None else in_words(traits),
        }


def _switch_verb(off: bool) -> str:
    return "disabled" if off else "enabled"


def causes_kept(state: AgentState, scheduling_off: bool | None, has_watermarks: bool) -> Causes:
    """Causes for which new guests were kept away when the agent ended, and still are.

    ``scheduling_off`` is what watermarks have left behind.
    """
    # Without watermarks nothing would ever end this cause, so it ends at the start.
    by_watermarks = scheduling_off if has_watermarks else False
    by_operator = None if state.maintenance is None else state.maintenance.off
    causes = {DisableCause.WATERMARK: by_watermarks, DisableCause.MAINTENANCE: by_operator}
    return {cause: off for cause, off in causes.items() if off is not None}
