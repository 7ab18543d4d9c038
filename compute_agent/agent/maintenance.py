"""Maintenance mode: an operator's command keeps new guests away from this host until another command."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

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
"""The seconds for which a command waits until Placement has the change.

If the change takes longer, a later report completes it.
"""


class MaintenanceMode:
    """The operator's switch that keeps new guests away. An order is stored before it takes effect."""

    def __init__(
        self,
        said: HostMaintenance | None,
        keep_order: Callable[[HostMaintenance], None],
        reports: ReportLoop,
        registry: CollectorRegistry,
        recorder: EventRecorder | None = None,
    ) -> None:
        """Begin with the order that the previous run of the agent stored.

        :param said: the last stored order; None means that there is none.
        :param keep_order: stores an order. It is on disk when the function returns.
        """
        self._recorder = recorder or EventRecorder()
        self._said = said
        self._keep_order = keep_order
        self._reports = reports
        self._lock = threading.Lock()
        Gauge(
            "compute_agent_host_disabled",
            "1 if `compute-agent host disable` keeps new guests away from this host, otherwise 0.",
            registry=registry,
        ).set_function(lambda: self.is_on)

    @property
    def is_on(self) -> bool:
        """Whether maintenance keeps new guests away.

        Without an order in the state file, the traits of the root provider in Placement decide.
        """
        if self._said is not None:
            return self._said.off
        return DisableCause.MAINTENANCE in (self._reports.root_traits or ())

    def switch_host(self, off: bool, reason: str = "") -> dict[str, Any]:
        """Keep new guests away, or let them in again; return the resulting fields of ``status``.

        :param off: whether new guests are kept away.
        :param reason: the operator's reason, for ``status`` and the event.
        :raises RequestError: the order cannot be stored, or nova-compute owns the root provider.
        """
        if off and self._reports.is_beside:
            raise RequestError(f"nothing is changed: {DISABLE_SERVICE}")
        # The lock is held until the order is stored and passed to the reports. So two orders take effect in
        # the order in which they were stored.
        with self._lock:
            again = off and self._said is not None and self._said.off
            # A repeated order with another reason keeps the time of the first order.
            since = self._said.since if again and self._said is not None else time.time()
            said = HostMaintenance(off, reason, since)
            try:
                self._keep_order(said)
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
        # The lock is released before the wait, because another order must not wait while Placement does not
        # answer.
        if not self._reports.wait_for_switch(ANSWER_SECONDS):
            LOG.warning("The report to Placement that the host was %s is still pending", _switch_verb(off))
        return self.status_fields()

    def prepare_release(self) -> None:
        """Keep new guests away, before ``compute-agent release`` ends the agent.

        Nothing happens if new guests are kept away already, or if nova-compute owns the root provider.

        :raises RequestError: the order cannot be stored.
        """
        if not self._reports.is_beside and not self.is_on:
            self.switch_host(True, RELEASE_REASON)

    def status_fields(self) -> dict[str, Any]:
        """The fields of ``status``: the order, its reason and start, and the present state in Placement."""
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
    """Return the causes that can keep new guests away, each with whether it is active when the agent starts.

    A cause is left out if the state folder contains no information about it.

    :param scheduling_off: whether watermarks kept new guests away when the agent last ended; None if unknown.
    :param has_watermarks: whether the configuration has watermarks.
    """
    # Without watermarks, no loop would ever end the cause of the watermarks, so this cause ends at the start.
    by_watermarks = scheduling_off if has_watermarks else False
    by_operator = None if state.maintenance is None else state.maintenance.off
    causes = {DisableCause.WATERMARK: by_watermarks, DisableCause.MAINTENANCE: by_operator}
    return {cause: off for cause, off in causes.items() if off is not None}
