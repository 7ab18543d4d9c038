"""Claims with an end time: the notes about these claims, and the decisions at their end times.

All functions are pure.

A *note* records the end of the claim of a guest on this host, in seconds since the epoch by the clock of
Placement's database. Notes are stored on disk, so the agent acts on them while Placement does not answer, and
after a restart.

Evictions
    A guest with ``on_end`` evict must have left when its claim ends. So the agent asks the guest to stop
    earlier, by the grace period and :data:`MARGIN` seconds. For example, a claim ends at 12:00:00, and the
    grace period is 60 seconds. The agent asks the guest to stop at 11:58:58, and kills the guest at 11:59:58
    if it still runs.

Doubt
    A claim can disappear before its end, because another program has deleted it, or because an older copy of
    Placement's database was restored. The agent then keeps the note until the noted end time, unless the
    guest has an allocation without an end time. A claim with a lower generation than its note can come from
    an older copy as well. If this claim has an earlier end time or a stronger action, the note does not
    change. If the generation rises after that, a client has changed the claim, and the change counts. So the
    agent never evicts a guest because of an end time that is earlier than the last certain end time.

Clock
    If the clock of the database jumps forward, the agent continues with the former time until a second read
    confirms the jump. Otherwise, one node of the database with a wrong clock would make the agent evict all
    guests at once.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from compute_agent import kept_json
from compute_agent.kept_json import HostNote, NoteFormat
from compute_agent.model.messages import full_name
from compute_agent.report.answers import check_shape

_VERSION: Final = 1

_CLAIM: Final = {"consumer_generation": int, "ends_at": str, "on_end": str}
"""The shape of a claim in Placement's list of claims."""

MARGIN: Final = 2.0
"""Seconds between the end of the grace period and the end of the claim, because a kill takes some time."""

_MAX_TIME: Final = 253_402_300_799.0
"""The latest time in seconds since the epoch, the end of the year 9999. Later times count as this time."""

MAX_DRIFT: Final = 10.0
"""If the clock of the database moves forward by more seconds than this between two reads, it has jumped."""


class OnEnd(enum.StrEnum):
    """The action that the agent takes on a guest at the end of the guest's claim."""

    NONE = "none"
    NOTIFY = "notify"
    EVICT = "evict"


class EndStage(enum.StrEnum):
    """The last event about the end of a claim: none, the notice, or the end itself."""

    QUIET = "quiet"
    SOON = "soon"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class TimedClaim:
    """A claim with an end time.

    :ivar generation: the generation of the claim's consumer.
    :ivar ends_at: the end time in seconds since the epoch, by the clock of Placement's database.
    """

    generation: int
    ends_at: float
    on_end: OnEnd


@dataclass(frozen=True, slots=True)
class TimedClaimList:
    """The claims with an end time on a host, by uuid of the consumer, and the present time of the database.

    :ivar unread: for claims that cannot be read, the reasons by uuid of the consumer.
    """

    now: float
    claims: Mapping[str, TimedClaim]
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndNote(HostNote):
    """A note about the end of the claim of a guest on this host.

    :ivar name: the name of the guest; empty if the agent has not seen the guest run.
    :ivar stage: the last event about this end.
    :ivar is_absent: whether the last read has found neither the claim nor the guest.
    :ivar doubted: the generation of a claim that perhaps comes from an older copy; None if there is no such
        claim.
    """

    guest_uuid: str
    name: str
    claim: TimedClaim
    stage: EndStage = EndStage.QUIET
    is_absent: bool = False
    doubted: int | None = None

    @property
    def uuid(self) -> str:
        """The uuid of the guest, for events."""
        return self.guest_uuid

    def __str__(self) -> str:
        return full_name(self.name, self.guest_uuid)


@dataclass(frozen=True, slots=True)
class EndRules:
    """The seconds from the notice to the end of a claim, and the seconds of the grace period."""

    notice: float
    grace: float

    def notice_time(self, note: EndNote) -> float:
        """The time at which the agent records that a claim ends soon; without notices, the end itself."""
        if note.claim.on_end is OnEnd.EVICT and self.notice:
            return note.claim.ends_at - max(self.notice, self.grace + MARGIN)
        return note.claim.ends_at - self.notice

    def eviction_time(self, note: EndNote) -> float:
        """The time at which the agent asks the guest to stop."""
        return note.claim.ends_at - self.grace - MARGIN


class EndStep(enum.Enum):
    """A step at the end of a claim: the event before the end, the eviction, or the event after the end."""

    NOTICE = enum.auto()
    EVICT = enum.auto()
    OVER = enum.auto()


Notes = Mapping[str, EndNote]
"""Notes about ends of claims, by uuid of the guest."""


@dataclass(frozen=True, slots=True)
class DatabaseClock:
    """The clock of the database.

    :ivar offset: the time of the database minus monotonic seconds.
    :ivar jump: the offset at the last read, if it was a jump forward that no other read has confirmed.
    """

    offset: float
    jump: float | None = None


def clock_drift(offset: float, earliest: float, latest: float) -> float:
    """Return how far the clock has moved since ``offset`` was read; negative if the clock has gone back.

    The new offset is between ``earliest`` and ``latest``. If ``offset`` lies in this interval, too, the
    result is 0.
    """
    return max(earliest - offset, 0.0) or min(latest - offset, 0.0)


def follow_clock(clock: DatabaseClock | None, earliest: float, latest: float) -> DatabaseClock:
    """Return the clock after a read.

    :param clock: the clock after the last read; None at the first one.
    :param earliest: the offset if the database read its clock when the answer came.
    :param latest: the offset if the database read its clock when the request was sent.
    """
    if clock is None or clock_drift(clock.offset, earliest, latest) <= MAX_DRIFT:
        # The latest offset is used, because guests should be evicted early rather than late.
        return DatabaseClock(latest)
    if clock.jump is not None and abs(clock_drift(clock.jump, earliest, latest)) <= MAX_DRIFT:
        return DatabaseClock(latest)
    return replace(clock, jump=latest)


def merge_list(
    notes: Notes,
    listed: TimedClaimList,
    seen: Mapping[str, str],
    present: Collection[str],
    holding: Collection[str],
    is_older: bool = False,
) -> Notes:
    """Return the notes after the agent has read the claims that have an end time.

    :param seen: the names, by uuid, of guests for which the agent has seen an allocation on this host; claims
        of other guests are ignored.
    :param present: the uuids of guests that run, or perhaps run, on this host.
    :param holding: the uuids of guests that have a note and an allocation, but no listed claim.
    :param is_older: whether Placement has an older copy of its database. The function then makes no end time
        earlier, and no action stronger.
    """
    found = {}
    for uuid, claim in listed.claims.items():
        if uuid in notes:
            found[uuid] = _merge_claim(notes[uuid], seen.get(uuid, ""), claim, is_older)
        elif uuid in seen and not (is_older and claim.on_end is OnEnd.EVICT):
            found[uuid] = EndNote(uuid, seen[uuid], claim)
    for uuid, note in notes.items():
        # An allocation without an end time replaces the claim.
        if uuid in found or uuid in holding:
            continue
        if uuid in listed.unread:
            found[uuid] = replace(note, is_absent=False)
        # A guest that is only being restarted is absent at one read, and present at the next one.
        elif uuid in present or not note.is_absent:
            found[uuid] = replace(note, is_absent=uuid not in present)
    return found


def _merge_claim(note: EndNote, name: str, claim: TimedClaim, is_older: bool) -> EndNote:
    note = replace(note, name=name or note.name, is_absent=False)
    # After doubt, a rising generation proves that a client has changed the claim.
    is_changed = note.doubted is not None and claim.generation > note.doubted
    is_lower = claim.generation < note.claim.generation and not is_changed
    if _is_stricter(claim, note.claim) and (is_older or is_lower):
        return replace(note, doubted=claim.generation)
    same = (claim.ends_at, claim.on_end) == (note.claim.ends_at, note.claim.on_end)
    return replace(note, claim=claim, stage=note.stage if same else EndStage.QUIET, doubted=None)


def _is_stricter(claim: TimedClaim, known: TimedClaim) -> bool:
    actions = list(OnEnd)
    return claim.ends_at < known.ends_at or actions.index(claim.on_end) > actions.index(known.on_end)


def due_steps(
    note: EndNote, rules: EndRules, now: float, can_evict: bool, leaving_since: float | None = None
) -> list[EndStep]:
    """Return the steps that are due for a running guest.

    :param now: the time of Placement's database.
    :param can_evict: whether the guest can be evicted now; False while its eviction is under way.
    :param leaving_since: the time at which the guest's eviction began; None if no eviction is under way.
    """
    ends_at, steps = note.claim.ends_at, []
    # A guest that is leaving counts as overdue only if it needs longer than its grace period.
    over = ends_at if leaving_since is None else max(ends_at, leaving_since) + rules.grace
    announces = note.claim.on_end is not OnEnd.NONE
    if announces and note.stage is EndStage.QUIET and rules.notice_time(note) <= now < ends_at:
        steps.append(EndStep.NOTICE)
    if can_evict and is_eviction_due(note, rules, now):
        steps.append(EndStep.EVICT)
    if note.stage is not EndStage.OVER and over <= now:
        steps.append(EndStep.OVER)
    return steps


def is_eviction_due(note: EndNote, rules: EndRules, now: float) -> bool:
    """Return whether the guest has to leave now."""
    return note.claim.on_end is OnEnd.EVICT and rules.eviction_time(note) <= now


def next_time(notes: Iterable[EndNote], rules: EndRules, now: float, ahead: float) -> float | None:
    """Return the time of the next step after ``now``; None if no step follows.

    :param ahead: the seconds before an eviction at which the agent reads the claims again.
    """
    times = []
    for note in notes:
        times.append(note.claim.ends_at)
        if note.claim.on_end is not OnEnd.NONE:
            times.append(rules.notice_time(note))
        if note.claim.on_end is OnEnd.EVICT:
            times += [rules.eviction_time(note), rules.eviction_time(note) - ahead]
    return min((each for each in times if each > now), default=None)


def needs_read(
    notes: Iterable[EndNote], rules: EndRules, now: float, last: float, ahead: float, age: float
) -> bool:
    """Return whether the claims have to be read again before an eviction.

    :param notes: the notes of guests that can be evicted now.
    :param last: the time of the last attempt to read, by the clock of Placement's database.
    :param ahead: the seconds before an eviction at which the agent reads the claims again.
    :param age: the maximum age, in seconds, of the last attempt to read when an eviction begins.
    """
    times = [rules.eviction_time(note) for note in notes if note.claim.on_end is OnEnd.EVICT]
    return any(time - ahead <= now and last < max(time, now) - age for time in times)


def time_text(seconds: float) -> str:
    """Return a time in the format of messages, such as ``2026-11-28T12:00:00Z``."""
    return datetime.fromtimestamp(min(seconds, _MAX_TIME), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> float:
    """Return the seconds since the epoch of a time from Placement, such as ``2026-11-28T12:00:00Z``.

    :raises ValueError: the text is not a time with a time zone.
    """
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text[:50]!r} has no time zone")
    return kept_json.read_number(min(time.timestamp(), _MAX_TIME), _MAX_TIME)


def parse_action(text: str) -> OnEnd:
    """The action with this name; an action of a later release counts as ``notify``, which stops nothing."""
    try:
        return OnEnd(text)
    except ValueError:
        return OnEnd.NOTIFY


def parse_claim(row: Mapping[str, Any]) -> TimedClaim:
    """Return the claim in a row of the list of claims.

    :raises ValueError: the row is wrong.
    """
    check_shape(row, _CLAIM, "a claim")
    return TimedClaim(row["consumer_generation"], parse_time(row["ends_at"]), parse_action(row["on_end"]))


def _row_of(note: EndNote) -> dict[str, Any]:
    return {
        "uuid": note.guest_uuid,
        "name": note.name,
        "generation": note.claim.generation,
        "ends_at": note.claim.ends_at,
        "on_end": note.claim.on_end,
        "stage": note.stage,
        "doubted": note.doubted,
    }


def _read_row(guest_uuid: str, row: Any) -> EndNote:
    claim = TimedClaim(
        int(kept_json.read_number(row["generation"], 1 << 31)),
        kept_json.read_number(row["ends_at"], _MAX_TIME),
        OnEnd(row["on_end"]),
    )
    doubted = row.get("doubted")
    return EndNote(
        guest_uuid,
        kept_json.text(row["name"]),
        claim,
        EndStage(row["stage"]),
        doubted=None if doubted is None else int(kept_json.read_number(doubted, 1 << 31)),
        # Notes of an older version of the agent lack the host.
        machine=kept_json.text(row.get("machine", "")),
    )


END_NOTES: Final = NoteFormat(_VERSION, _row_of, _read_row)
"""The format of the file of notes about end times."""
