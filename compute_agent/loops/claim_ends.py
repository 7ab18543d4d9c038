"""Acts at the end times of claims: announces ends, evicts guests, and reports guests that still run.

A thread acts when claims end, even while Placement does not answer. Shortly before an eviction, this thread
reads the claims again, because a client may have extended the claim after the last report.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from compute_agent.drivers.base import RunningGuests
from compute_agent.events.event import EventKind, EventOutcome, EventRecorder
from compute_agent.loops.base import AgentLoop, ConfigurationInForce, ReloadedConfiguration
from compute_agent.loops.end_reader import EndReader
from compute_agent.loops.note_files import EndStore
from compute_agent.model.messages import named_few
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.report.answers import PlacementError
from compute_agent.report.bounded_session import round_deadline
from compute_agent.report.claim_ends import (
    EndNote,
    EndRules,
    EndStage,
    EndStep,
    OnEnd,
    due_steps,
    is_eviction_due,
    needs_read,
    next_time,
    time_text,
)
from compute_agent.report.client import PlacementClient
from compute_agent.threads import ONCE, PeriodicTask, ThreadSpec, log_failures, run_aside
from compute_agent.throttling.evictions import MAX_ENDS, GuestEvictor, StopGuest

LOG = logging.getLogger(__name__)

READ_AHEAD: Final = 5.0
"""When an eviction begins, the last attempt to read the claims is at most this number of seconds old. So an
attempt begins this number of seconds, minus one, before the eviction, and can last until the eviction begins.
"""

_UNREAD_SECONDS: Final = 30.0
"""Seconds from the start of the agent to its warning that Placement has not answered yet."""

_MAX_WAIT: Final = 5.0
"""The longest pause in seconds between two rounds, because a guest can start after the time of its
eviction.
"""
_EVICTION_WAIT: Final = 0.5
"""The pause in seconds while guests are being evicted."""

_FIRST_PAUSE: Final = 60.0
_MAX_PAUSE: Final = 600.0
"""The first and the longest pause in seconds after an eviction, if the guest still runs, or runs again."""

_MAX_NAMES: Final = 5
"""Maximum number of guests that a message names."""

ENDS_THREAD: Final = ThreadSpec(
    "claim ends",
    "at the next end of a claim, at most 5 seconds",
    "announces ends of claims, has guests evicted, and names guests that run on",
    "that of the notes of ends, which the thread of reports takes, too; never during a request",
    "the driver",
)
READ_THREAD: Final = ThreadSpec(
    "claim ends read",
    ONCE,
    "reads the claims with an end time again before an eviction",
    "that of the notes of ends; never during a request",
    "Placement, for at most 4 seconds",
)


@dataclass(frozen=True, slots=True)
class LastEviction:
    """The last eviction of a guest.

    :ivar reason: the reason why the guest still runs; empty if the guest has left.
    :ivar pause: the number of seconds until the next attempt, if the guest still runs, or runs again.
    :ivar until: the time of the next attempt, in monotonic seconds.
    :ivar is_back: whether the agent has logged that the guest was started again.
    """

    reason: str
    pause: float
    until: float
    is_back: bool = False


class EvictionWithdrawnError(Exception):
    """A guest need not leave any more, because its claim or its settings have changed meanwhile."""


class ClaimEnds(AgentLoop):
    """Acts at the ends of guests' claims. The thread of reports reads these claims.

    The next run of the agent continues evictions that are under way at a stop. Any thread may call
    :meth:`overdue_guests`.
    """

    def __init__(
        self,
        in_force: ConfigurationInForce,
        pipeline: GuestPipeline,
        driver: RunningGuests,
        store: EndStore,
        evictor: GuestEvictor,
        stop: StopGuest,
        recorder: EventRecorder,
        registry: CollectorRegistry,
        is_older: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with the notes that the previous run of the agent has stored.

        The object does nothing before the first read.

        :param evictor: evicts guests. Only this object may use it.
        :param stop: makes a guest leave.
        :param is_older: tells whether Placement has an older copy of its database.
        """
        self._in_force = in_force
        self._pipeline = pipeline
        self._store = store
        self._evictor = evictor
        self._stop = stop
        self._recorder = recorder
        self._clock = clock
        self._reader = EndReader(pipeline, driver, store, is_older, clock, self._wake_thread)
        # The lock is for the waiting guests, which several threads change.
        self._lock = threading.Lock()
        self._overdue = Gauge(
            "compute_agent_overdue_guests",
            "Guests that still run although their claims in Placement have ended.",
            registry=registry,
        )
        self._began = clock()
        self._said_unread = False
        self._tried = 0.0
        self._said_many = False
        self._evicting: dict[str, tuple[EndNote, float]] = {}
        """The evictions under way by uuid of the guest, and the times of the database at which they began."""
        self._ended: Mapping[str, LastEviction] = {}
        self._waiting: frozenset[str] = frozenset()
        """The uuids of guests that wait for their eviction. A thread that begins an eviction removes the
        guest.
        """
        self._thread = PeriodicTask(
            ENDS_THREAD,
            self.run_round,
            lambda took: self.next_pause(),
            log_failures(LOG, "Unexpected error while the agent acted at the ends of claims"),
            is_needed=self.is_needed,
            rest=lambda: self._overdue.set(0),
        )

    # Methods for other threads

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Use another configuration at once."""
        self._thread.wake()

    def is_needed(self) -> bool:
        """Whether any claim has an end time, or any eviction is under way."""
        return bool(self._store.notes or self._evicting)

    def is_leaving(self, uuid: str) -> bool:
        """Whether the claim of a guest has an end time at which the agent evicts the guest."""
        note = self._store.notes.get(uuid)
        return note is not None and note.claim.on_end is OnEnd.EVICT

    def overdue_guests(self) -> Mapping[str, str]:
        """The guests that still run after the ends of their claims: by uuid, a text that says what to do."""
        now = self._reader.database_time()
        views = {view.guest.uuid: view for view in self._pipeline.guest_views()}
        return {
            uuid: f"its claim ended at {time_text(note.claim.ends_at)};"
            f" {self._remedy_text(note, views[uuid])}"
            for uuid, note in self._store.notes.items()
            if uuid in views and views[uuid].migration is None
            # Before the first read, only ends that the previous run of the agent has seen are certain.
            if note.stage is EndStage.OVER or (now is not None and note.claim.ends_at <= now)
        }

    def read_ends(self, client: PlacementClient) -> bool:
        """Read the claims that have an end time; see :meth:`EndReader.read_ends`."""
        return self._reader.read_ends(client)

    def _wake_thread(self) -> None:
        self._thread.start()
        self._thread.wake()

    # For the thread of this object

    @property
    def _end_rules(self) -> EndRules:
        conf = self._in_force.current
        return EndRules(float(conf.options.guests.end_notice), conf.settings.evict_grace)

    def run_round(self) -> None:
        """Take each step that is due now for each claim."""
        self._settle_evictions()
        running = {view.guest.uuid: view for view in self._pipeline.guest_views() if view.migration is None}
        self._watch_returns(running)
        if self._reader.database_time() is None:
            self._warn_unread()
        else:
            self._read_before_eviction(running)
        # The clock is read again: a server that cannot list claims may have answered since the first look.
        if (now := self._reader.database_time()) is not None:
            for uuid, note in self._store.notes.items():
                if uuid in running:
                    self._take_steps(note, running[uuid], now)
        self._warn_of_queue()
        self._overdue.set(len(self.overdue_guests()))

    def _take_steps(self, note: EndNote, view: GuestView, now: float) -> None:
        _, since = self._evicting.get(note.guest_uuid, (note, None))
        steps = due_steps(note, self._end_rules, now, self._can_evict(view), since)
        for step in steps:
            # If the agent evicts the guest now, it does not also warn that the guest still runs.
            if step is not EndStep.OVER or EndStep.EVICT not in steps:
                self._take_step(step, note, view, now)

    def _warn_of_queue(self) -> None:
        """Log once that some guests have to wait until others have left."""
        count = len(self._evicting)
        if count > MAX_ENDS and not self._said_many:
            LOG.warning(
                "%d guests have to leave at the ends of their claims, and at most %d are stopped at the same"
                " time. If each of them needs the whole [qos] evict_grace, the last ones leave %.0f s late:"
                " choose a shorter evict_grace, or leave at least this time until the next window",
                count,
                MAX_ENDS,
                (count - 1) // MAX_ENDS * self._end_rules.grace,
            )
        self._said_many = count > MAX_ENDS

    def _watch_returns(self, running: Mapping[str, GuestView]) -> None:
        """Forget evictions of guests that have left, and log guests that were started again."""
        now = self._clock()
        self._ended = {
            uuid: last
            for uuid, last in self._ended.items()
            if uuid in running or (not last.reason and now < last.until)
        }
        for uuid, last in self._ended.items():
            if uuid in running and not (last.reason or last.is_back):
                self._ended = {**self._ended, uuid: replace(last, is_back=True)}
                self._recorder.record_done(
                    LOG.warning,
                    EventKind.CLAIM,
                    running[uuid].guest,
                    "Guest %s was evicted at the end of its claim, and was started again. The agent evicts it"
                    " again after a pause: claim again for the guest, or stop the program that starts it",
                )

    def next_pause(self) -> float:
        """The seconds until the next round."""
        now = self._reader.database_time()
        if self._evicting:
            return _EVICTION_WAIT
        due = (
            None
            if now is None
            else next_time(self._store.notes.values(), self._end_rules, now, READ_AHEAD - 1)
        )
        return _MAX_WAIT if now is None or due is None else min(due - now, _MAX_WAIT)

    def _warn_unread(self) -> None:
        names = [str(note) for note in self._store.notes.values() if note.claim.on_end is OnEnd.EVICT]
        is_late = self._clock() - self._began >= _UNREAD_SECONDS
        if names and is_late and not self._said_unread and not self._reader.is_missing:
            self._said_unread = True
            LOG.warning(
                "The claims with an end time have not been read since the start of the agent: %s. Until the"
                " agent has read them, it evicts no guest at the end of a claim, because clients may have"
                " extended the claims. The guests are: %s",
                self._reader.read_failure or "no report has asked for them yet",
                named_few(names, _MAX_NAMES),
            )

    def _read_before_eviction(self, running: Mapping[str, GuestView]) -> None:
        """Read the claims if an eviction is due soon; without an answer, the last read applies."""
        now, age = self._reader.database_time(), self._clock() - max(self._reader.asked, self._tried)
        notes = [
            note
            for uuid, note in self._store.notes.items()
            if uuid in running and self._can_evict(running[uuid])
        ]
        rules, ahead = self._end_rules, READ_AHEAD - 1
        if now is not None and needs_read(notes, rules, now, now - age, ahead, READ_AHEAD):
            self._try_read()

    def _try_read(self) -> None:
        """Read the claims within a short time. If no answer comes in time, the last known ends apply."""
        self._tried = self._clock()
        answer = run_aside(READ_THREAD, partial(self._read_again, self._in_force.current.client))
        try:
            # The wait has a time limit of its own, because the look-up of a host name has none.
            answer.result(READ_AHEAD - 1)
        except (FutureTimeoutError, PlacementError) as error:
            reason = str(error) or "no answer in time"
            LOG.info(
                "The agent cannot read the claims again before an eviction, so it keeps to their last known"
                " ends: %s",
                reason,
            )

    def _stop_guest(self, uuid: str) -> None:
        """Stop a guest if it still has to leave. The threads of evictions call this method.

        :raises EvictionWithdrawnError: the guest need not leave any more.
        """
        if self._clock() - max(self._reader.asked, self._tried) > READ_AHEAD:
            self._try_read()
        note, now = self._store.notes.get(uuid), self._reader.database_time()
        is_preserved = any(
            view.guest.uuid == uuid and view.guest.settings.preserve for view in self._pipeline.guest_views()
        )
        is_due = note is not None and now is not None and is_eviction_due(note, self._end_rules, now)
        if is_preserved or not is_due:
            raise EvictionWithdrawnError
        with self._lock:
            self._waiting -= {uuid}
        self._stop(uuid)

    def _read_again(self, client: PlacementClient) -> None:
        with round_deadline(READ_AHEAD - 1):
            self._reader.read_list(client)

    def _can_evict(self, view: GuestView) -> bool:
        last = self._ended.get(view.guest.uuid)
        return (
            not view.guest.settings.preserve
            and view.guest.uuid not in self._evicting
            and (last is None or last.until <= self._clock())
        )

    def _take_step(self, step: EndStep, note: EndNote, view: GuestView, now: float) -> None:
        end, guest = time_text(note.claim.ends_at), view.guest
        match step:
            case EndStep.NOTICE:
                is_evicted = note.claim.on_end is OnEnd.EVICT and not guest.settings.preserve
                fate = "is evicted then" if is_evicted else "has to leave by then"
                self._recorder.record_done(
                    LOG.warning,
                    EventKind.CLAIM,
                    guest,
                    "The claim of guest %s ends at %s, and the guest %s. To keep the guest, claim again with"
                    " a later end",
                    end,
                    fate,
                )
                self._reader.keep_stage(note, EndStage.SOON)
            case EndStep.EVICT:
                LOG.info(
                    "The agent asks guest %s to stop, because the claim of the guest ends at %s", guest, end
                )
                self._evicting[guest.uuid] = note, now
                with self._lock:
                    self._waiting |= {guest.uuid}
                self._evictor.begin_eviction(guest.uuid, self._stop_guest)
            case EndStep.OVER:
                self._recorder.record_event(
                    LOG.warning,
                    EventKind.CLAIM,
                    guest,
                    "The claim of guest %s ended at %s, and the guest still runs: %s",
                    guest,
                    end,
                    self._remedy_text(note, view),
                    reason=f"on_end: {note.claim.on_end}",
                )
                self._reader.keep_stage(note, EndStage.OVER)

    def _settle_evictions(self) -> None:
        """Record finished evictions; repeat failed ones, and those of restarted guests, after a pause."""
        for uuid, error in self._evictor.finished_evictions().items():
            note, _ = self._evicting.pop(uuid)
            with self._lock:
                self._waiting -= {uuid}
            if isinstance(error, EvictionWithdrawnError):
                LOG.info(
                    "The agent does not evict guest %s, because the claim or the settings of the guest have"
                    " changed",
                    note,
                )
                continue
            last, reason = self._ended.get(uuid), "" if error is None else str(error) or repr(error)
            pause = _FIRST_PAUSE if last is None else min(2 * last.pause, _MAX_PAUSE)
            self._ended = {**self._ended, uuid: LastEviction(reason, pause, self._clock() + pause)}
            if not reason:
                self._recorder.record_done(
                    LOG.info,
                    EventKind.EVICT,
                    note,
                    "Guest %s was evicted, because its claim ends at %s",
                    time_text(note.claim.ends_at),
                    reason="the end of its claim",
                )
            elif last is None or last.reason != reason:
                self._recorder.record_event(
                    LOG.warning,
                    EventKind.EVICT,
                    note,
                    "Guest %s cannot be evicted at the end of its claim, and the agent tries again: %s",
                    note,
                    reason,
                    reason="the end of its claim",
                    outcome=EventOutcome.FAILED,
                )

    def _remedy_text(self, note: EndNote, view: GuestView) -> str:
        """The text for operators about a guest that still runs after the end of its claim."""
        uuid = note.guest_uuid
        stop = f"stop it (compute-agent guest evict {uuid}), or claim again for it"
        if note.claim.on_end is OnEnd.EVICT:
            if view.guest.settings.preserve:
                return (
                    "it is preserved, and the agent does not evict it:"
                    f" compute-agent guest set {uuid} --no-preserve"
                )
            last = self._ended.get(uuid)
            if last is not None and last.reason:
                return f"its eviction failed ({last.reason}), and the agent tries again: {stop}"
            if uuid in self._waiting:
                return f"its eviction waits, because other guests are being evicted: {stop}"
            if uuid in self._evicting:
                return "it is being evicted"
            if last is not None:
                return f"it was started again, and the agent evicts it after a pause: {stop}"
            return "it is evicted soon"
        return stop
