"""Reads the claims with an end time from Placement, and the time of Placement's database.

The thread of reports reads the claims, after it has read the allocations. The thread that acts at the ends of
claims reads them again shortly before an eviction.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from compute_agent.drivers.base import RunningGuests
from compute_agent.loops.note_files import EndStore
from compute_agent.model.messages import named_few
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.report.answers import NotFoundError, PlacementError, UnavailableError
from compute_agent.report.claim_ends import (
    MAX_DRIFT,
    DatabaseClock,
    EndNote,
    EndStage,
    clock_drift,
    follow_clock,
    merge_list,
    time_text,
)
from compute_agent.report.client import PlacementClient

LOG = logging.getLogger(__name__)

_LIST_SECONDS: Final = 300.0
"""The longest time between two reads on a host where no claim has an end time. The agent normally finds
a new claim with an end time when it finds the allocation of the guest.
"""

_MAX_NAMES: Final = 5
"""Maximum number of guests that a message names."""


class EndReader:
    """Reads the claims with an end time, and keeps notes about them. Two threads use the object."""

    def __init__(
        self,
        pipeline: GuestPipeline,
        driver: RunningGuests,
        store: EndStore,
        is_older: Callable[[], bool],
        clock: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        """Begin with the notes in the store.

        :param is_older: tells whether Placement has an older copy of its database.
        :param changed: called after each read.
        """
        self._pipeline = pipeline
        self._driver = driver
        self._store = store
        self._is_older = is_older
        self._clock = clock
        self._changed = changed
        # The lock is for the notes and for the times of reads, which two threads change.
        self._lock = threading.Lock()
        self._database: DatabaseClock | None = None
        """The clock of the database.

        None means that the agent has read no claims since its start, or that the server cannot list claims.
        """
        self.asked = 0.0
        """The time at which the request of the newest answer was sent, in monotonic seconds."""
        self._seen: frozenset[str] = frozenset()
        """The uuids of guests that had an allocation when the agent last read the claims."""
        self.read_failure = ""
        """The reason why the last read failed; empty if it did not."""
        self._unread: Mapping[str, str] = {}
        self.is_missing = False
        """Whether the server cannot list claims with an end time, as far as the last read shows."""

    def read_ends(self, client: PlacementClient) -> bool:
        """Read the claims that have an end time; return False if they cannot be read.

        If no guest has such a claim, most reports send no request for them.
        """
        seen = frozenset(self._names_here())
        is_due = self._database is None or self._clock() - self.asked >= _LIST_SECONDS
        if not (self._store.notes or seen != self._seen or (seen and is_due)):
            return True
        try:
            # A server that has listed claims before is not asked for its version again.
            if self._database is not None or client.lists_timed_claims():
                self.read_list(client)
                self.is_missing = False
            else:
                self._note_missing()
        except PlacementError as error:
            return self._accept_failure(client, error)
        return True

    def _accept_failure(self, client: PlacementClient, error: PlacementError) -> bool:
        """Log an error of a read, unless the error only means that there are no claims to read."""
        if isinstance(error, NotFoundError):
            with contextlib.suppress(PlacementError):
                if not client.lists_timed_claims():
                    self._note_missing()
                    return True
            # Before the first report, the host is not in Placement.
            if not self._store.notes:
                return True
        if str(error) != self.read_failure:
            # If Placement does not answer, the loop of reports has already logged that.
            log = LOG.info if isinstance(error, UnavailableError) else LOG.warning
            log("The claims with an end time cannot be read, so the last known ends apply: %s", error)
        self.read_failure = str(error)
        return False

    def _note_missing(self) -> None:
        """Record that the server cannot list claims, so that no eviction begins at the end of a claim."""
        with self._lock:
            self._database = None
        if not self.is_missing:
            self.is_missing = True
            # Without notes, this server has probably never had claims that end.
            log = LOG.warning if self._store.notes else LOG.info
            log(
                "This Placement does not list claims that end (GET /ext/v1/claims): the agent evicts no guest"
                " at the end of its claim"
            )

    def _names_here(self) -> dict[str, str]:
        """The names, by uuid, of guests with a known allocation here; empty before a guest has started."""
        names = dict.fromkeys(self._pipeline.unclaimed_holdings, "")
        for view in self._pipeline.guest_views():
            if view.allocation and view.migration is None:
                names[view.guest.uuid] = view.guest.name
        return names

    def read_list(self, client: PlacementClient) -> None:
        """Read the claims that have an end time.

        For guests with a note that have no such claim, read the allocations.

        :raises PlacementError: the claims cannot be read.
        """
        # A guest that gets its allocation during the request can be missing in the answer.
        names, asked = self._names_here(), self._clock()
        listed = client.timed_claims(self._pipeline.host_state.tree.root.uuid)
        answered = self._clock()
        gone = sorted(self._store.notes.keys() - listed.claims.keys() - listed.unread.keys())
        # The allocations are read after the list: an allocation that a guest has then does not end, or was
        # claimed since then.
        holding = {uuid for uuid in gone if client.get_allocations(uuid).resources}
        with self._lock:
            # If the answer to an earlier request comes after the answer to a later one, it is ignored.
            if self._database is not None and asked < self.asked:
                return
            former, before = self._database, self._store.notes
            earliest, latest = listed.now - answered, listed.now - asked
            self._database = follow_clock(former, earliest, latest)
            is_older = self._is_older()
            # With an older copy of the database, some claims get no note now, so the next report reads all
            # claims again.
            self.asked, self._seen = asked, frozenset(() if is_older else names)
            present = self._present_guests(before)
            notes = merge_list(before, listed, names, present, holding, is_older)
            self._store.keep_notes(notes)
        self.read_failure = ""
        """The reason why the last read failed; empty if it did not."""
        if notes and former is not None and former.jump is None:
            self._log_drift(clock_drift(former.offset, earliest, latest))
        for uuid, note in notes.items():
            self._log_change(before.get(uuid), note)
        self._log_unread({uuid: text for uuid, text in listed.unread.items() if uuid in {*names, *notes}})
        self._changed()

    def _log_drift(self, drift: float) -> None:
        if abs(drift) > MAX_DRIFT:
            LOG.warning(
                "The clock of Placement's database has changed by %.0f s since the last read. It decides when"
                " claims end: synchronise the clocks of all its nodes",
                drift,
            )

    def _log_unread(self, unread: Mapping[str, str]) -> None:
        """Log claims that cannot be read, but not the same claims twice."""
        if unread and unread != self._unread:
            LOG.warning(
                "Placement has sent invalid times for the claims of %d guests, so the agent keeps the last"
                " known ends of these claims: %s",
                len(unread),
                named_few([f"{uuid}: {text}" for uuid, text in unread.items()], _MAX_NAMES),
            )
        self._unread = unread

    def _present_guests(self, notes: Iterable[str]) -> frozenset[str]:
        """The uuids of guests that run, or perhaps run, on this host."""
        # As long as a driver has not listed its guests, any guest perhaps runs.
        if not self._pipeline.has_taken_over:
            return frozenset(notes)
        running = (guest.uuid for guest in self._pipeline.guests())
        return frozenset((*running, *self._driver.lost_guests()))

    def _log_change(self, before: EndNote | None, note: EndNote) -> None:
        end = time_text(note.claim.ends_at)
        if note.doubted is not None and (before is None or before.doubted is None):
            LOG.warning(
                "The claim of guest %s in Placement is stricter than before, perhaps because Placement has an"
                " older copy of its database. The agent keeps the former end, %s (on_end: %s). If the"
                " stricter claim is right, claim again for the guest, even with the same end",
                note,
                end,
                note.claim.on_end,
            )
        elif before is None or before.claim != note.claim:
            LOG.info("The claim of guest %s ends at %s (on_end: %s)", note, end, note.claim.on_end)

    def database_time(self) -> float | None:
        """The present time of the database; None if no claims with an end time could be read yet."""
        database = self._database
        return None if database is None else self._clock() + database.offset

    def keep_stage(self, note: EndNote, stage: EndStage) -> None:
        """Note the stage of a claim, unless the claim has changed meanwhile."""
        with self._lock:
            present = self._store.notes.get(note.guest_uuid)
            if present is not None and present.claim == note.claim:
                self._store.keep_notes({**self._store.notes, note.guest_uuid: replace(present, stage=stage)})
