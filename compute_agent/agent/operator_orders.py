"""Orders of operators: maintenance of the host, and limits and evictions of single guests.

In maintenance mode, no new guests come to this host until another command. Each command is recorded as an
event. Limits and evictions use the same code as those by watermarks. A limit ends with the agent. An eviction
does not: the next run of the agent continues it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry, Gauge

from compute_agent.agent.protocol import RequestError
from compute_agent.events.event import EventKind, EventOutcome, EventRecorder
from compute_agent.loops.base import AgentLoop
from compute_agent.loops.note_files import EvictionNote, EvictionStore
from compute_agent.loops.reports import DISABLE_SERVICE, ReportLoop
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError
from compute_agent.model.resource import CPU_QUOTA, ThrottleControl
from compute_agent.pipeline.state import AgentState
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.report.root_provider import (
    RELEASE_REASON,
    Causes,
    DisableCause,
    HostMaintenance,
    in_words,
)
from compute_agent.threads import ONCE, PeriodicTask, ThreadSpec, log_failures, run_aside
from compute_agent.throttling.arbiter import LimitArbiter
from compute_agent.throttling.evictions import EvictionInterruptedError, GuestEvictions

LOG = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 20.0
"""The seconds for which a command waits until Placement has the change.

If the change takes longer, a later report completes it.
"""


class KeepOrder(Protocol):
    """Stores the last order of an operator: to keep new guests away, or to let them in."""

    def __call__(self, said: HostMaintenance, /) -> None:
        """Store the operator's order. It is on disk when this function returns.

        :raises OSError: the file cannot be written.
        """
        ...


class MaintenanceMode:
    """The operator's switch that keeps new guests away. An order is stored before it takes effect."""

    def __init__(
        self,
        said: HostMaintenance | None,
        keep_order: KeepOrder,
        reports: ReportLoop,
        registry: CollectorRegistry,
        recorder: EventRecorder | None = None,
    ) -> None:
        """Begin with the order that the previous run of the agent stored.

        :param said: the last stored order; None means that there is none.
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


OWNER: Final = "by hand"
"""The name under which the arbiter of limits keeps the limits that operators set."""


MANUAL_EVICTION_THREAD: Final = ThreadSpec(
    "evict by hand",
    ONCE,
    "stops one guest as an operator asked, and gives its allocation back as soon as Placement takes it",
    "that of the guests that are evicted by hand",
    "the driver or the operator's command; the worker; Placement",
)


_PAUSE: Final = 1.0
"""Seconds between two checks whether all drivers have listed their guests after the start of the agent."""

RESUME_THREAD: Final = ThreadSpec(
    "evictions resumed",
    _PAUSE,
    "after the start of the agent, continues the evictions by hand of the last one, and ends",
    "that of the guests that are evicted by hand",
    "nothing",
)


class ManualThrottling(AgentLoop):
    """Limits and evicts guests for an operator. Any thread may call the methods.

    The thread continues the evictions of the previous run, as soon as the running guests are known.
    """

    def __init__(
        self,
        limits: LimitArbiter,
        evictions: GuestEvictions,
        recorder: EventRecorder,
        pipeline: GuestPipeline,
        store: EvictionStore,
        boot: str,
        lost_guests: Callable[[], Mapping[str, str]],
    ) -> None:
        """Begin with the evictions that the previous run of the agent has not finished.

        :param boot: the id of the present boot.
        :param lost_guests: returns the guests that perhaps run, for drivers that cannot list their guests
            now.
        """
        self._limits = limits
        self._evictions = evictions
        self._recorder = recorder
        self._pipeline = pipeline
        self._store = store
        self._boot = boot
        self._lost_guests = lost_guests
        # The lock protects the notes in the store as well as ``_evicting``.
        self._lock = threading.Lock()
        self._evicting: set[str] = set()
        self._unresumed = set(store.notes)
        self._thread = PeriodicTask(
            RESUME_THREAD,
            self.resume_evictions,
            lambda took: _PAUSE,
            log_failures(LOG, "Unexpected error while the agent continued evictions"),
            is_needed=lambda: bool(self._unresumed),
        )

    def resume_evictions(self) -> None:
        """Continue the evictions of the previous run; do nothing before the running guests are known.

        A guest that was started again, or that is preserved now, is not evicted.
        """
        if not self._pipeline.has_taken_over:
            return
        running, lost = {guest.uuid: guest for guest in self._pipeline.guests()}, self._lost_guests()
        for uuid in sorted(self._unresumed - lost.keys()):
            self._unresumed.discard(uuid)
            note, guest = self._store.notes.get(uuid), running.get(uuid)
            if note is None or uuid in self._evicting:
                continue
            if guest is not None and ((note.pid, note.boot) != (guest.pid, self._boot)):
                LOG.info("Guest %s was started again, so the agent does not continue its eviction", guest)
                self._forget_eviction(uuid)
            elif guest is not None and guest.settings.preserve:
                LOG.info(
                    "Guest %s has the setting preserve now, so the agent does not continue its eviction",
                    guest,
                )
                self._forget_eviction(uuid)
            else:
                LOG.info("The agent continues the eviction of guest %s after the restart", note)
                self._begin_eviction(note)

    def limit_cpus(self, guest: Guest, cores: float | None) -> None:
        """Limit the CPU use of a guest, or remove the limit that an operator set earlier.

        If a watermark has set a stricter limit, that limit stays in force.

        :param cores: the limit in CPUs; None removes the limit.
        :raises RequestError: the guest is preserved, or cannot be limited.
        :raises TimeoutError: the worker has not answered in time.
        """
        _check_preserved(guest)
        try:
            self._limits.set_limit(OWNER, guest.uuid, ThrottleControl(CPU_QUOTA), cores)
        except DriverError as error:
            raise RequestError(str(error)) from error
        if cores is None:
            message = "Guest %s no longer has the CPU limit that an operator set"
            self._recorder.record_done(LOG.info, EventKind.THROTTLE_UP, guest, message, reason=OWNER)
            return
        message = "Guest %s is limited to %g CPUs by an operator"
        self._recorder.record_done(LOG.info, EventKind.THROTTLE_DOWN, guest, message, cores, reason=OWNER)

    def evict_guest(self, guest: Guest) -> None:
        """Start the eviction of a guest in a thread. An event records the outcome.

        :raises RequestError: the guest is preserved, or is being evicted already.
        """
        _check_preserved(guest)
        note = EvictionNote(guest.uuid, guest.name, guest.driver, guest.pid, self._boot)
        if not self._begin_eviction(note):
            raise RequestError(f"guest {guest} is being evicted already")
        LOG.info("An operator evicts guest %s by a command", guest)

    def _begin_eviction(self, note: EvictionNote) -> bool:
        """Begin an eviction; return False if it has begun already."""
        with self._lock:
            if note.uuid in self._evicting:
                return False
            self._evicting.add(note.uuid)
            # The note is on disk before the guest is asked to leave.
            self._keep_notes({**self._store.notes, note.uuid: note})
        # The eviction has its own thread, because it can take longer than the client waits for an answer.
        run_aside(MANUAL_EVICTION_THREAD, partial(self._see_off, note), f"-{note.uuid}")
        return True

    def _forget_eviction(self, uuid: str) -> None:
        with self._lock:
            self._evicting.discard(uuid)
            self._keep_notes({key: note for key, note in self._store.notes.items() if key != uuid})

    def _keep_notes(self, notes: Mapping[str, EvictionNote]) -> None:
        try:
            self._store.keep_notes(notes)
        except OSError as error:
            # The disk is perhaps full because of this guest, so the eviction continues without the note.
            LOG.warning(
                "The notes of evictions cannot be written, so the agent would forget the evictions in a"
                " crash: %s",
                error,
            )

    def _see_off(self, guest: EvictionNote) -> None:
        try:
            self._evictions.stop_guest(guest.uuid)
            self._evictions.give_back(guest.uuid)
        except EvictionInterruptedError:
            return  # the note stays for the next run of the agent
        # Every failure is caught: this is a thread's outermost function, and the event has to record the
        # outcome.
        except Exception as error:
            message, outcome = "Guest %s cannot be evicted: %s", EventOutcome.FAILED
            self._recorder.record_event(
                LOG.warning, EventKind.EVICT, guest, message, guest, error, reason=OWNER, outcome=outcome
            )
        else:
            self._recorder.record_done(LOG.info, EventKind.EVICT, guest, "Guest %s was evicted", reason=OWNER)
        self._forget_eviction(guest.uuid)


def _check_preserved(guest: Guest) -> None:
    if guest.settings.preserve:
        raise RequestError(
            f"guest {guest} is preserved: compute-agent guest set {guest.uuid} --no-preserve lets the agent"
            " act"
        )
