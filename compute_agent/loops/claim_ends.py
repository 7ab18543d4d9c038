"""Acts at the ends of claims: announces ends, evicts guests, and reports guests that still run.

The thread of reports reads the claims that have an end, after it has read the allocations. A thread of this
module acts at the ends, even while Placement does not answer. Shortly before an eviction, this thread reads
the claims again, because a client may have extended the claim after the last report.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from compute_agent import kept_json
from compute_agent.drivers.base import RunningGuests
from compute_agent.events.event import EventKind, EventOutcome, EventRecorder
from compute_agent.files import write_durably
from compute_agent.loops.base import STOP_SECONDS, AgentLoop, ConfigurationInForce, ReloadedConfiguration
from compute_agent.model.messages import named_few
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.report.answers import NotFoundError, PlacementError, UnavailableError
from compute_agent.report.bounded_http import round_deadline
from compute_agent.report.claim_ends import (
    EndNote,
    EndRules,
    EndStage,
    EndStep,
    Notes,
    OnEnd,
    TimedClaimList,
    due_steps,
    dump_notes,
    merge_list,
    needs_read,
    next_time,
    parse_notes,
    time_text,
)
from compute_agent.report.client import PlacementClient
from compute_agent.threads import ONCE, PeriodicTask, ThreadSpec, log_failures, run_aside
from compute_agent.throttling.executor import EvictionStarter

LOG = logging.getLogger(__name__)

FILE_NAME: Final = "claim_ends.json"

READ_AHEAD: Final = 5.0
"""Seconds before an eviction at which the agent reads the claims again. The request for them may take one
second less than this time.
"""

_LIST_SECONDS: Final = 300.0
"""The longest time between two reads on a host where no claim has an end. The agent normally finds such a
claim when it finds the allocation of the guest.
"""

_UNREAD_SECONDS: Final = 30.0
"""Seconds after the start of the agent, before it warns that Placement has not answered yet."""

_MAX_WAIT: Final = 5.0
"""The longest pause in seconds between two rounds, because a guest may start after the time of its
eviction.
"""
_EVICTION_WAIT: Final = 0.5
"""The pause in seconds while guests are being evicted."""

_MAX_DRIFT: Final = 10.0
"""A larger change of the clock of the database, in seconds between two reads, is logged. An answer may take
some seconds."""

_FIRST_PAUSE: Final = 60.0
_MAX_PAUSE: Final = 600.0
"""The first and the longest pause in seconds after a failed eviction."""

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
    "reads the claims that end once more before an eviction",
    "that of the notes of ends; never during a request",
    "Placement, for at most 4 seconds",
)


class EndStore:
    """The file with the notes about ends of claims, in the state folder of the agent.

    Only one thread at a time may use the object.
    """

    def __init__(self, folder: Path) -> None:
        """Read the notes from the file. A file that cannot be read is renamed.

        :raises UnsafeFileError: another user may have made the file.
        :raises OSError: the file cannot be renamed.
        """
        self._path = folder / FILE_NAME
        self._failure = ""
        self.notes: Notes = kept_json.load_state(self._path, parse_notes, {}, _report_damage)
        self._saved = dump_notes(self.notes)

    def keep_notes(self, notes: Notes) -> None:
        """Store the notes in the file. A failure is logged once; the notes then stay in memory only."""
        self.notes, content = dict(notes), dump_notes(notes)
        if content == self._saved:
            return
        try:
            write_durably(self._path, content)
        except OSError as error:
            if str(error) != self._failure:
                LOG.error("The notes of ends of claims cannot be written: %s; the agent tries again", error)
            self._failure = str(error)
        else:
            self._failure, self._saved = "", content


def _report_damage(path: Path, error: Exception) -> None:
    LOG.error(
        "The notes of ends of claims cannot be used and are kept as %s: %s. The agent does not evict guests"
        " whose claims ended while no agent ran",
        path,
        error,
    )


@dataclass(frozen=True, slots=True)
class FailedEviction:
    """An eviction that failed.

    :ivar pause: the number of seconds until the next attempt.
    :ivar until: the time of the next attempt, in monotonic seconds.
    """

    reason: str
    pause: float
    until: float


class ClaimEnds(AgentLoop):
    """The ends of the claims of guests on this host.

    The thread of reports calls :meth:`read_ends`; any thread may call :meth:`overdue_guests`.
    """

    def __init__(
        self,
        in_force: ConfigurationInForce,
        pipeline: GuestPipeline,
        driver: RunningGuests,
        store: EndStore,
        evictor: EvictionStarter,
        recorder: EventRecorder,
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with the notes that the previous run of the agent has stored.

        The object does nothing before the first read.

        :param evictor: evicts guests. Only this object may use it.
        """
        self._in_force = in_force
        self._pipeline = pipeline
        self._driver = driver
        self._store = store
        self._evictor = evictor
        self._recorder = recorder
        self._clock = clock
        self._overdue = Gauge(
            "compute_agent_overdue_guests",
            "Guests that still run although their claims in Placement have ended.",
            registry=registry,
        )
        # The lock is for the notes and for the times of reads, which two threads change.
        self._lock = threading.Lock()
        self._offset: float | None = None
        """The time of the database minus monotonic seconds.

        None means that the agent has read no claims since its start, or that the server cannot list claims.
        """
        self._asked = 0.0
        """The time of the request to which the newest answer belongs, in monotonic seconds."""
        self._seen: frozenset[str] = frozenset()
        """The uuids of guests that had an allocation when the agent last read the claims."""
        self._read_failure = ""
        self._said_missing = False
        # For the thread of this object
        self._began = clock()
        self._said_unread = False
        self._tried = 0.0
        self._evicting: dict[str, EndNote] = {}
        self._failures: Mapping[str, FailedEviction] = {}
        self._thread = PeriodicTask(
            ENDS_THREAD,
            self.run_round,
            lambda took: self.next_pause(),
            log_failures(LOG, "The ends of claims could not be handled"),
            is_needed=self.is_needed,
            rest=lambda: self._overdue.set(0),
        )

    # For other threads

    def start(self) -> None:
        """Start the thread, if any claim has an end."""
        self._thread.start()

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Use another configuration at once."""
        self._thread.wake()

    def stop(self) -> None:
        """Stop the thread. The next run of the agent continues evictions that are under way."""
        self._thread.stop(STOP_SECONDS)

    def is_needed(self) -> bool:
        """Whether any claim has an end, or any eviction is under way."""
        return bool(self._store.notes or self._evicting)

    def is_leaving(self, uuid: str) -> bool:
        """Whether a guest is evicted at the end of its claim."""
        note = self._store.notes.get(uuid)
        return note is not None and note.claim.on_end is OnEnd.EVICT

    def overdue_guests(self) -> Mapping[str, str]:
        """The guests that still run after the ends of their claims: by uuid, a text that says what to do."""
        now = self._database_time()
        if now is None:
            return {}
        views = {view.guest.uuid: view for view in self._pipeline.guest_views()}
        return {
            uuid: f"its claim ended at {time_text(note.claim.ends_at)};"
            f" {self._remedy_text(note, views[uuid])}"
            for uuid, note in self._store.notes.items()
            if note.claim.ends_at <= now and uuid in views and views[uuid].migration is None
        }

    # For the thread of reports

    def read_ends(self, client: PlacementClient) -> None:
        """Read the claims that have an end.

        If no guest has such a claim, most reports send no request for them.

        :raises UnavailableError: Placement does not answer.
        """
        seen = frozenset(self._names_here())
        is_due = self._offset is None or self._clock() - self._asked >= _LIST_SECONDS
        if not (self._store.notes or seen != self._seen or (seen and is_due)):
            return
        if not client.lists_timed_claims():
            self._note_missing()
            return
        self._said_missing = False
        self._read_list(client)

    def _note_missing(self) -> None:
        """Record that the server has no list of claims.

        Without this list, the agent cannot know whether a claim has become permanent.
        """
        with self._lock:
            self._offset = None
        if not self._said_missing:
            self._said_missing = True
            # Without notes, this server has probably never had claims that end.
            log = LOG.warning if self._store.notes else LOG.info
            log(
                "This Placement does not list claims that end (GET /ext/v1/claims): the agent evicts no guest"
                " at the end of its claim"
            )

    def _names_here(self) -> dict[str, str]:
        """The names, by uuid, of the guests for which the agent has seen an allocation on this host.

        A guest that has not started yet has an empty name.
        """
        names = dict.fromkeys(self._pipeline.unclaimed_holdings, "")
        for view in self._pipeline.guest_views():
            if view.allocation and view.migration is None:
                names[view.guest.uuid] = view.guest.name
        return names

    # For both threads that read

    def _read_list(self, client: PlacementClient) -> None:
        """Read the claims that have an end.

        For guests with a note that have no such claim, read the allocations.

        :raises UnavailableError: Placement does not answer.
        """
        asked = self._clock()
        try:
            listed = client.timed_claims(self._pipeline.host_state.tree.root.uuid)
            gone = sorted(self._store.notes.keys() - listed.claims.keys())
            # The allocations are read after the list: an allocation that a guest has then does not end, or
            # was claimed since then.
            holding = {uuid for uuid in gone if client.get_allocations(uuid).resources}
        except UnavailableError:
            raise
        except NotFoundError:
            # Before the first report, the host is not in Placement.
            return
        except PlacementError as error:
            if str(error) != self._read_failure:
                LOG.warning("The claims that end cannot be read, and the last known ends apply: %s", error)
            self._read_failure = str(error)
            return
        self._read_failure = ""
        self._use_list(asked, listed, holding)

    def _use_list(self, asked: float, listed: TimedClaimList, holding: set[str]) -> None:
        names = self._names_here()
        with self._lock:
            # A slow answer to an earlier request may come late.
            if self._offset is not None and asked < self._asked:
                return
            # The answer is from between the request and now. With the time of the request, the clock of the
            # database may appear fast, and guests are evicted early, not late.
            offset, former = listed.now - asked, self._offset
            self._asked, self._offset, self._seen = asked, offset, frozenset(names)
            before = self._store.notes
            notes = merge_list(before, listed, names, self._present_guests(before), holding)
            self._store.keep_notes(notes)
        if notes and former is not None and abs(offset - former) > _MAX_DRIFT:
            LOG.warning(
                "The clock of Placement's database has changed by %.0f s since the last read. It decides when"
                " claims end: synchronise the clocks of all its nodes",
                offset - former,
            )
        for uuid, note in notes.items():
            self._log_change(before.get(uuid), note)
        self._thread.start()
        self._thread.wake()

    def _present_guests(self, notes: Iterable[str]) -> frozenset[str]:
        """The uuids of guests that run on this host, or that may run on it."""
        # As long as a driver has not listed its guests, any guest may run.
        if not self._pipeline.has_taken_over:
            return frozenset(notes)
        running = (guest.uuid for guest in self._pipeline.guests())
        return frozenset((*running, *self._driver.lost_guests()))

    def _log_change(self, before: EndNote | None, note: EndNote) -> None:
        end = time_text(note.claim.ends_at)
        if note.is_doubtful and not (before and before.is_doubtful):
            LOG.warning(
                "The claim of guest %s has an earlier end than before, and a lower generation: Placement may"
                " have an older copy of its database. The agent keeps the end at %s; claim again to change"
                " it",
                note,
                end,
            )
        elif before is None or before.claim != note.claim:
            LOG.info("The claim of guest %s ends at %s (on_end: %s)", note, end, note.claim.on_end)

    def _database_time(self) -> float | None:
        offset = self._offset
        return None if offset is None else self._clock() + offset

    # For the thread of this object

    @property
    def _end_rules(self) -> EndRules:
        conf = self._in_force.current
        return EndRules(float(conf.options.guests.end_notice), conf.settings.evict_grace)

    def run_round(self) -> None:
        """Do each step that is due now."""
        self._settle_evictions()
        if self._database_time() is None:
            self._warn_unread()
            return
        running = {view.guest.uuid: view for view in self._pipeline.guest_views() if view.migration is None}
        self._failures = {uuid: it for uuid, it in self._failures.items() if uuid in running}
        self._read_before_eviction(running)
        now, rules = self._database_time(), self._end_rules
        # A server without the list may have answered meanwhile.
        if now is None:
            return
        for uuid, note in self._store.notes.items():
            if uuid in running:
                for step in due_steps(note, rules, now, self._can_evict(running[uuid])):
                    self._take_step(step, note, running[uuid])
        self._overdue.set(
            sum(note.claim.ends_at <= now and uuid in running for uuid, note in self._store.notes.items())
        )

    def next_pause(self) -> float:
        """The seconds until the next round."""
        now = self._database_time()
        if self._evicting:
            return _EVICTION_WAIT
        due = None if now is None else next_time(self._store.notes.values(), self._end_rules, now, READ_AHEAD)
        return _MAX_WAIT if now is None or due is None else min(due - now, _MAX_WAIT)

    def _warn_unread(self) -> None:
        names = [str(note) for note in self._store.notes.values() if note.claim.on_end is OnEnd.EVICT]
        is_late = self._clock() - self._began >= _UNREAD_SECONDS
        if names and is_late and not self._said_unread and not self._said_missing:
            self._said_unread = True
            LOG.warning(
                "Placement has not answered since the start of the agent. Until it answers, the agent evicts"
                " no guest at the end of its claim, because a claim may have been extended: %s",
                named_few(names, _MAX_NAMES),
            )

    def _read_before_eviction(self, running: Mapping[str, GuestView]) -> None:
        """Read the claims if an eviction is due soon.

        If no answer comes in time, the ends of the last read apply.
        """
        now = self._database_time()
        last = max(self._asked, self._tried) + (self._offset or 0.0)
        notes = [
            note
            for uuid, note in self._store.notes.items()
            if uuid in running and self._can_evict(running[uuid])
        ]
        if now is None or not needs_read(notes, self._end_rules, now, last, READ_AHEAD):
            return
        self._tried = self._clock()
        answer = run_aside(READ_THREAD, partial(self._read_again, self._in_force.current.client))
        try:
            # The wait has its own limit, because the look-up of a name has none.
            answer.result(READ_AHEAD - 1)
        except (FutureTimeoutError, PlacementError) as error:
            reason = str(error) or "no answer in time"
            LOG.info("The claims cannot be read again before an eviction: %s", reason)

    def _read_again(self, client: PlacementClient) -> None:
        with round_deadline(READ_AHEAD - 1):
            self._read_list(client)

    def _can_evict(self, view: GuestView) -> bool:
        failure = self._failures.get(view.guest.uuid)
        return (
            not view.guest.settings.preserve
            and view.guest.uuid not in self._evicting
            and (failure is None or failure.until <= self._clock())
        )

    def _take_step(self, step: EndStep, note: EndNote, view: GuestView) -> None:
        end, guest = time_text(note.claim.ends_at), view.guest
        match step:
            case EndStep.NOTICE:
                is_evicted = note.claim.on_end is OnEnd.EVICT and not guest.settings.preserve
                fate = "is evicted then" if is_evicted else "has to leave until then"
                self._recorder.record_done(
                    LOG.warning,
                    EventKind.CLAIM,
                    guest,
                    "The claim of guest %s ends at %s, and the guest %s. To keep it, claim again with a later"
                    " end",
                    end,
                    fate,
                )
                self._keep_stage(note, EndStage.SOON)
            case EndStep.EVICT:
                LOG.info("Guest %s is asked to leave, because its claim ends at %s", guest, end)
                self._evicting[guest.uuid] = note
                self._evictor.begin_eviction(guest.uuid)
            # A guest that is leaving is named only if its eviction fails.
            case EndStep.OVER if guest.uuid not in self._evicting:
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
                self._keep_stage(note, EndStage.OVER)

    def _keep_stage(self, note: EndNote, stage: EndStage) -> None:
        with self._lock:
            present = self._store.notes.get(note.guest_uuid)
            if present is not None and present.claim == note.claim:
                self._store.keep_notes({**self._store.notes, note.guest_uuid: replace(present, stage=stage)})

    def _settle_evictions(self) -> None:
        """Record the results of evictions that have finished. A failed eviction is repeated after a pause."""
        for uuid, error in self._evictor.finished_evictions().items():
            note = self._evicting.pop(uuid)
            if error is None:
                self._failures = {key: it for key, it in self._failures.items() if key != uuid}
                self._recorder.record_done(
                    LOG.info,
                    EventKind.EVICT,
                    note,
                    "Guest %s was evicted, because its claim ends at %s",
                    time_text(note.claim.ends_at),
                    reason="the end of its claim",
                )
                continue
            last, reason = self._failures.get(uuid), str(error)
            pause = _FIRST_PAUSE if last is None else min(2 * last.pause, _MAX_PAUSE)
            failure = FailedEviction(reason, pause, self._clock() + pause)
            self._failures = {**self._failures, uuid: failure}
            if last is None or last.reason != reason:
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
            if (failure := self._failures.get(uuid)) is not None:
                return f"its eviction failed, and the agent tries again ({failure.reason}): {stop}"
            return "it is being evicted"
        return stop
