"""Claims allocations for guests without allocations, and gives the claims back when guests are gone for good.

The agent claims only for guests that other programs start, such as containers. The thread of reports calls
:meth:`GuestClaims.settle_claims` after each read of allocations. If Placement fails during this call, the
report counts as failed, and is repeated after the usual pause.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from compute_agent.drivers import procfs
from compute_agent.events.event import EventKind, EventOutcome, EventRecorder, NamedSubject
from compute_agent.loops.base import ConfigurationInForce
from compute_agent.loops.note_files import ClaimStore
from compute_agent.model.guest import Allocation, ConsumerAllocations, Guest
from compute_agent.model.messages import DriverError
from compute_agent.pipeline.events import AllocationsRead, RoomRefused
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.report.answers import (
    ConcurrentUpdateError,
    ConflictError,
    NotFoundError,
    PlacementError,
    UnavailableError,
)
from compute_agent.report.audit import UNKNOWN_OWNER
from compute_agent.report.capacity import total_amounts
from compute_agent.report.client import PlacementClient
from compute_agent.report.guest_claims import (
    CLAIM_TYPE,
    ClaimNote,
    claim_query,
    claimed_amounts,
    is_own_claim,
)
from compute_agent.report.history import ConsumerOwner
from compute_agent.threads import NO_LOCK, ONCE, ThreadSpec, run_aside

LOG = logging.getLogger(__name__)

# The first and the longest pause in seconds after a refusal.
_FIRST_PAUSE: Final = 30.0
_MAX_PAUSE: Final = 600.0

ASK_SECONDS: Final = 5.0
"""Maximum seconds of each report in which drivers are asked about guests that do not run."""

NO_ROOM_THREAD: Final = ThreadSpec(
    "guest without room",
    ONCE,
    "stops a guest for which Placement has no room, if [guests] no_room = stop",
    NO_LOCK,
    "the driver of the guest",
)


class ClaimableGuests(Protocol):
    """A driver of guests that other programs start."""

    settle_seconds: float
    """Seconds after the start of a guest in which the agent makes no claim for the guest."""

    def wanted_memory(self, guest: Guest) -> int:
        """The memory in MiB to claim for a guest, or 0 for no memory."""
        ...

    def subject_key(self, guest: Guest) -> str:
        """The id that the guest has in the program that runs the guest, such as a container engine."""
        ...

    def is_gone(self, key: str, guest_uuid: str) -> bool:
        """Whether a guest that does not run will never come back under this uuid.

        :raises DriverError: the program that runs the guests does not answer.
        """
        ...

    def stop(self, guest: Guest, timeout: float) -> None:
        """Stop the guest: by request, and by force after ``timeout`` seconds."""
        ...


@dataclass(frozen=True, slots=True)
class ClaimRefusal:
    """A claim that Placement has refused.

    :ivar guest: the guest for which the claim was refused. If the guest is started again, the agent claims at
        once.
    :ivar pause: the pause in seconds before the next attempt.
    :ivar until: the time of the next attempt in monotonic seconds.
    """

    guest: Guest
    reason: str
    pause: float
    until: float


class GuestClaims:
    """The claims of the agent, made by the thread of reports; any thread may read the refusals."""

    def __init__(
        self,
        in_force: ConfigurationInForce,
        pipeline: GuestPipeline,
        drivers: Mapping[str, ClaimableGuests],
        store: ClaimStore,
        recorder: EventRecorder,
        clock: Callable[[], float] = time.monotonic,
        is_leaving: Callable[[str], bool] = lambda uuid: False,
    ) -> None:
        """Start with the notes that the previous run of the agent has stored.

        :param drivers: the drivers with guests for which the agent claims, by name.
        :param is_leaving: returns whether the last known claim of a guest has an end time at which the agent
            has to evict the guest. The end time can be past or future. The agent makes no new claim for such
            a guest.
        """
        self._in_force = in_force
        self._pipeline = pipeline
        self._drivers = drivers
        self._store = store
        self._recorder = recorder
        self._clock = clock
        self._is_leaving = is_leaving
        self._refusals: Mapping[str, ClaimRefusal] = {}
        self._gone: dict[str, float] = {}
        """The time at which a guest was first found gone, by uuid."""
        self._asked = ""
        """The uuid of the absent guest about which a driver was asked last."""
        self._checked: dict[str, int] = {}
        """The main process of each guest with a claim of the needed amounts, by uuid of the guest."""
        self._since: float | None = None
        """The time of the agent's first claims, in seconds since boot; None if it has made none so far."""
        self._failure = ""
        """The reason why notes cannot be written; empty if the last notes were written."""
        self._settled: float | None = None
        """The time in monotonic seconds at which the next guest has run long enough for a claim; None if
        there is no such guest."""
        if store.foreign:
            LOG.warning(
                "The state folder has claims of another host, such as that of guest %s (%d in all), and the"
                " agent gives none of them back. If the folder was copied, give this host a name, a state"
                " folder and a /etc/machine-id of its own. If this host replaces the other one or was"
                " renamed, see compute-agent audit, and remove the allocations by hand",
                next(iter(store.foreign.values())),
                len(store.foreign),
            )
        for name in sorted({note.driver for note in store.notes.values()} - drivers.keys()):
            LOG.warning(
                "The agent does not give back its claims for guests of driver %s, because [guests] drivers"
                " does not name it any more. Name it again, or remove the allocations, which compute-agent"
                " audit lists",
                name,
            )

    # For any thread

    def is_awaited(self, guest: Guest) -> bool:
        """Whether the agent would make a claim for this guest if the guest had no allocation."""
        return bool(self._in_force.current.options.guests.claim) and guest.driver in self._drivers

    @property
    def is_needed(self) -> bool:
        """Whether this agent makes claims, or has made claims that it has to give back some time."""
        return bool(self._drivers) and bool(self._store.notes or self._in_force.current.options.guests.claim)

    def refusal_reasons(self) -> Mapping[str, str]:
        """The reasons why guests have no allocation, by uuid."""
        return {uuid: refusal.reason for uuid, refusal in self._refusals.items()}

    def foreign_claims(self) -> list[str]:
        """The guests with notes of claims of another host, in words."""
        return sorted(map(str, self._store.foreign.values()))

    def claimed_guests(self) -> frozenset[str]:
        """The uuids of guests with a claim of the agent, whether they run or not.

        Guests of drivers that ``[guests] drivers`` does not name are left out.
        """
        return frozenset(uuid for uuid, note in self._store.notes.items() if note.driver in self._drivers)

    # For the thread of reports

    @property
    def settling_seconds(self) -> float | None:
        """Seconds until the next guest has run long enough for a claim; None if there is no such guest."""
        return None if self._settled is None else max(self._settled - self._clock(), 0.0)

    def settle_claims(self, client: PlacementClient) -> None:
        """Give back the claims of guests that are gone, and claim for guests without an allocation.

        If a note cannot be written, the guest gets no claim, but the report continues, because reports
        confirm the claims of other guests.

        :raises UnavailableError: Placement does not answer.
        """
        views = {view.guest.uuid: view for view in self._pipeline.guest_views()}
        # A refusal is forgotten if another program has allocated for the guest meanwhile.
        self._refusals = {
            uuid: it
            for uuid, it in self._refusals.items()
            if uuid in views and (not views[uuid].allocation or uuid in self._store.notes)
        }
        self._checked = {uuid: pid for uuid, pid in self._checked.items() if uuid in views}
        self._end_claims(client, views)
        self._settled = None
        if not self._in_force.current.options.guests.claim:
            self._since = None
            return
        if self._since is None:
            self._since = time.clock_gettime(time.CLOCK_BOOTTIME)
        wishes = {uuid: wish for uuid, view in views.items() if (wish := self._find_wish(view)) is not None}
        before = self._store.notes
        # The notes are on disk before the first claim. If a claim exists, its note keeps the amounts until
        # the claim changes. If a container was made again, it has another key, so the note gets the new key.
        notes = {
            uuid: replace(before[uuid], name=wish.name, driver=wish.driver, key=wish.key)
            if views[uuid].allocation
            else wish
            for uuid, wish in wishes.items()
        }
        is_noted = self._save_notes({**before, **notes})
        for uuid, wish in wishes.items():
            if not is_noted:
                self._note_refusal(views[uuid], self._failure)
            elif views[uuid].allocation:
                self._adjust_claim(client, views[uuid], wish, notes[uuid])
            else:
                self._hold_allocation(client, views[uuid], wish, before.get(uuid))

    def _end_claims(self, client: PlacementClient, views: Mapping[str, GuestView]) -> None:
        """Give back the claims of guests that have been gone for at least ``[guests] claim_grace``.

        A slow container engine must not delay the report. So one report asks about absent guests for some
        seconds only, and the next report continues with the next guest.
        """
        absent = sorted(
            (note for uuid, note in self._store.notes.items() if uuid not in views),
            key=lambda note: (note.guest_uuid <= self._asked, note.guest_uuid),
        )
        missing = {note.guest_uuid for note in absent}
        self._gone = {uuid: since for uuid, since in self._gone.items() if uuid in missing}
        until = self._clock() + ASK_SECONDS
        for note in absent:
            if self._clock() >= until:
                return
            self._asked = note.guest_uuid
            if not self._is_over(note):
                self._gone.pop(note.guest_uuid, None)
            elif self._clock() - self._gone.setdefault(note.guest_uuid, self._clock()) >= self._claim_grace:
                self._give_back(client, note)

    @property
    def _claim_grace(self) -> float:
        return float(self._in_force.current.options.guests.claim_grace)

    def _is_over(self, note: ClaimNote) -> bool:
        """Whether a guest is gone for good; False if the program that runs the guest does not answer."""
        driver = self._drivers.get(note.driver)
        try:
            return driver is not None and driver.is_gone(note.key, note.guest_uuid)
        except DriverError as error:
            LOG.debug("Whether guest %s is gone is not known: %s", note, error)
            return False

    def _give_back(self, client: PlacementClient, note: ClaimNote) -> None:
        subject = NamedSubject(note.guest_uuid, note.name)
        try:
            record = client.get_allocations(note.guest_uuid)
            if record.resources:
                if self._is_own(note, record):
                    client.set_allocations(replace(record, resources={}))
                    self._try_refused_again()
                    self._recorder.record_done(
                        LOG.info, EventKind.CLAIM, subject, "Guest %s is gone, and its claim is given back"
                    )
                else:
                    LOG.warning(
                        "Guest %s is gone. Its allocation stays, because another program has changed it", note
                    )
        except UnavailableError:
            raise
        except PlacementError as error:
            LOG.warning("The claim of guest %s is not given back yet: %s", note, error)
            return
        self._forget_note(note)

    def _try_refused_again(self) -> None:
        """End the pauses of refused guests, because there can be room for them now.

        The same report tries them, after all claims of gone guests. A further refusal doubles the pause.
        """
        now = self._clock()
        self._refusals = {uuid: replace(it, until=now) for uuid, it in self._refusals.items()}

    def _is_own(self, note: ClaimNote, record: ConsumerAllocations) -> bool:
        return is_own_claim(note, record, self._pipeline.host_state.own_part(record.resources))

    def _forget_note(self, note: ClaimNote) -> None:
        self._gone.pop(note.guest_uuid, None)
        self._save_notes({uuid: it for uuid, it in self._store.notes.items() if uuid != note.guest_uuid})

    def _save_notes(self, notes: Mapping[str, ClaimNote]) -> bool:
        """Store the notes; return whether they are on disk."""
        try:
            self._store.keep_notes(notes)
        except OSError as error:
            failure = f"the note of its claim cannot be written: {error}"
            if failure != self._failure:
                LOG.error("The notes of claims cannot be written: %s; the agent tries again", error)
            self._failure = failure
            return False
        self._failure = ""
        return True

    def _find_wish(self, view: GuestView) -> ClaimNote | None:
        """Build the note of the claim that a guest needs now; None if the guest needs no new claim."""
        guest, options = view.guest, self._in_force.current.options.guests
        driver = self._drivers.get(guest.driver)
        known, refusal = self._store.notes.get(guest.uuid), self._refusals.get(guest.uuid)
        if driver is None or view.allocation is None or view.migration is not None:
            return None
        # Either the allocation is not a claim of the agent, or the claim fits the guest.
        if view.allocation and (known is None or self._checked.get(guest.uuid) == guest.pid):
            return None
        if refusal is not None and refusal.guest.is_same_run(guest) and self._clock() < refusal.until:
            return None
        # If the agent made another claim, the guest would not be evicted.
        if not view.allocation and self._is_leaving(guest.uuid):
            self._note_refusal(view, "it is evicted at the end of its former claim")
            return None
        if not view.allocation and self._is_settling(guest, driver.settle_seconds):
            return None
        try:
            memory = driver.wanted_memory(guest)
        except DriverError as error:
            LOG.debug("The memory of guest %s is not known: %s", guest, error)
            return None
        amounts = claimed_amounts(guest.claimed_settings, options.claim_dedicated, memory)
        owner = ConsumerOwner(
            options.claim_project or UNKNOWN_OWNER, options.claim_user or UNKNOWN_OWNER, CLAIM_TYPE
        )
        note = ClaimNote(guest.uuid, guest.name, guest.driver, driver.subject_key(guest), owner, amounts)
        return note if known is None or not view.allocation else replace(note, owner=known.owner)

    def _is_settling(self, guest: Guest, seconds: float) -> bool:
        """Whether the run of a guest is younger than ``seconds``; if so, note the time of its claim."""
        start = _start_of(guest)
        left = 0.0 if start is None else start + seconds - time.clock_gettime(time.CLOCK_BOOTTIME)
        if left > 0:
            settled = self._clock() + left
            self._settled = settled if self._settled is None else min(self._settled, settled)
        return left > 0

    def _adjust_claim(
        self, client: PlacementClient, view: GuestView, wish: ClaimNote, known: ClaimNote
    ) -> None:
        """Change the claim of a guest if it does not have the amounts that the guest needs.

        :param wish: the note of the claim that the guest needs.
        :param known: the present note. After a crash, Placement has either the claim from before the change
            in this note, or the changed claim.
        """
        if known == wish:
            self._note_success(view)
            return
        try:
            record = client.get_allocations(wish.guest_uuid)
        except UnavailableError:
            raise
        except PlacementError as error:
            self._note_refusal(view, str(error))
            return
        present = total_amounts(record.resources)
        if not self._is_own(known, record):
            self._note_success(view)
            return
        known = replace(known, amounts=present, former={})
        note = wish if present == wish.amounts else replace(wish, former=present)
        if not self._save_notes({**self._store.notes, note.guest_uuid: note}):
            self._note_refusal(view, self._failure)
        elif note.former:
            self._hold_allocation(client, view, note, known, record.generation)
        else:
            self._note_success(view)

    def _hold_allocation(
        self,
        client: PlacementClient,
        view: GuestView,
        note: ClaimNote,
        known: ClaimNote | None,
        generation: int | None = None,
    ) -> None:
        """Make a claim for a guest, or change its claim.

        :param known: the note of an earlier claim of the guest.
        :param generation: the generation of the consumer; None for a new consumer.
        """
        as_of = time.monotonic()
        try:
            allocation = self._claim_place(client, note, generation)
        except UnavailableError:
            # The claim may have been made, so the note stays.
            raise
        except PlacementError as error:
            if _is_certain(error):
                self._handle_refusal(view, note, error, known)
            else:
                # The note stays here, too. A later report finds the claim, or its change, if it was made.
                self._note_refusal(view, str(error))
            return
        self._note_success(view)
        self._pipeline.submit(
            AllocationsRead({note.guest_uuid: allocation}, as_of, owners={note.guest_uuid: note.owner})
        )
        self._recorder.record_done(
            LOG.info,
            EventKind.CLAIM,
            view.guest,
            "Guest %s has a claim of the agent: %s",
            self._pipeline.host_state.in_words(allocation),
        )

    def _claim_place(self, client: PlacementClient, note: ClaimNote, generation: int | None) -> Allocation:
        """Make the claim, or find the claim of an earlier request that got no answer."""
        tree = self._pipeline.host_state.tree
        query = claim_query(note.amounts, tree)
        try:
            return client.claim_place(note.as_consumer(generation), query, tree.root.uuid)
        except ConcurrentUpdateError:
            record = client.get_allocations(note.guest_uuid)
            # A claim with the amounts from before a change does not count as success.
            if self._is_own(replace(note, former={}), record):
                return record.resources
            raise

    def _note_success(self, view: GuestView) -> None:
        """Record that the guest needs no other claim until its next start."""
        self._refusals = {uuid: it for uuid, it in self._refusals.items() if uuid != view.guest.uuid}
        self._checked[view.guest.uuid] = view.guest.pid

    def _handle_refusal(
        self, view: GuestView, note: ClaimNote, error: PlacementError, known: ClaimNote | None
    ) -> None:
        if note.former and known is not None:
            # Placement keeps the former claim, so the note describes this claim again.
            self._save_notes({**self._store.notes, note.guest_uuid: replace(known, key=note.key)})
        else:
            self._forget_note(note)
        is_first = self._note_refusal(view, _refusal_text(error, bool(note.former)))
        if not _has_no_room(error):
            return
        self._pipeline.submit(RoomRefused(view.guest.uuid))
        options = self._in_force.current.options.guests
        if options.no_room == "stop" and is_first and known is None and self._has_just_started(view.guest):
            run_aside(
                NO_ROOM_THREAD,
                partial(self._stop_guest, view.guest, options.stop_timeout),
                f"-{view.guest.uuid}",
            )

    def _has_just_started(self, guest: Guest) -> bool:
        """Whether the run of a guest began after the agent made its first claims."""
        start = _start_of(guest)
        return self._since is not None and start is not None and start >= self._since

    def _note_refusal(self, view: GuestView, reason: str) -> bool:
        """Record that a guest gets no claim; return whether this is the first refusal since its start."""
        guest, last = view.guest, self._refusals.get(view.guest.uuid)
        is_first = last is None or not last.guest.is_same_run(guest)
        pause = _FIRST_PAUSE if last is None or is_first else min(2 * last.pause, _MAX_PAUSE)
        self._refusals = {
            **self._refusals,
            guest.uuid: ClaimRefusal(guest, reason, pause, self._clock() + pause),
        }
        if last is None or last.reason != reason:
            self._recorder.record_event(
                LOG.warning,
                EventKind.CLAIM,
                guest,
                "Guest %s does not get its claim, and the agent tries again: %s",
                guest,
                reason,
                reason=reason,
                outcome=EventOutcome.FAILED,
            )
        return is_first

    def _stop_guest(self, guest: Guest, timeout: float) -> None:
        try:
            self._drivers[guest.driver].stop(guest, timeout)
        except DriverError as error:
            LOG.error("Guest %s does not fit on this host, and cannot be stopped: %s", guest, error)
            return
        self._recorder.record_done(
            LOG.warning, EventKind.STOP, guest, "Guest %s was stopped, because Placement has no room for it"
        )


def _start_of(guest: Guest) -> float | None:
    """The start of the run of a guest in seconds since boot; None if the guest has ended."""
    return procfs.seconds_at_start(guest.pid) if guest.run is None else guest.run[1]


def _is_certain(error: PlacementError) -> bool:
    """Whether an error proves that Placement has made no claim. An answer 500 may come after the commit."""
    return error.status is not None and 400 <= error.status < 500


def _has_no_room(error: PlacementError) -> bool:
    return isinstance(error, ConflictError) and not isinstance(error, ConcurrentUpdateError)


def _refusal_text(error: PlacementError, is_change: bool) -> str:
    if isinstance(error, ConcurrentUpdateError):
        if is_change:
            return "another program has changed its allocation at the same time"
        return (
            "its uuid belongs to a consumer in Placement that is not the agent's: choose another uuid, or"
            " remove that consumer's allocation"
        )
    if isinstance(error, NotFoundError):
        return "this Placement has no claims in one call (POST /ext/v1/claims): allocate for its uuid by hand"
    return str(error)
