"""Claims that end at a time: the notes about these claims, and the decisions at their ends.

All functions are pure.

A *note* records the end of the claim of a guest on this host, in seconds since the epoch by the clock of
Placement's database. Notes are stored on disk, so the agent acts on them while Placement does not answer, and
after a restart.

Evictions
    The agent asks a guest with ``on_end`` evict to stop at the end of its claim, minus the grace period and
    :data:`MARGIN` seconds. For example, a claim ends at 12:00:00, and the grace period is 60 seconds. The
    agent asks the guest to stop at 11:58:58, and kills the guest at 11:59:58 if it still runs.

Doubt
    A claim may disappear before its end, because another program has deleted it, or because an older copy of
    Placement's database was restored. The agent then keeps the note until its end, unless the guest has an
    allocation without an end. A claim with a lower generation and an earlier end than its note may come from
    an older copy as well, so the note keeps the later end. The agent never evicts a guest before the last end
    that it knew for certain.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from compute_agent import kept_json
from compute_agent.model.messages import full_name, is_uuid

_VERSION: Final = 1

MARGIN: Final = 2.0
"""Seconds between the end of the grace period and the end of the claim, because a kill takes some time."""

_MAX_TIME: Final = 1e11
"""Upper limit of times in seconds since the epoch: the year 5138."""


class OnEnd(enum.StrEnum):
    """The action on a guest at the end of the guest's claim."""

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
    """A claim that ends at a time.

    :ivar generation: the generation of the claim's consumer.
    :ivar ends_at: the end in seconds since the epoch, by the clock of Placement's database.
    """

    generation: int
    ends_at: float
    on_end: OnEnd


@dataclass(frozen=True, slots=True)
class TimedClaimList:
    """The claims with an end on a host, by uuid of the consumer, and the database's time."""

    now: float
    claims: Mapping[str, TimedClaim]


@dataclass(frozen=True, slots=True)
class EndNote:
    """A note about the end of the claim of a guest on this host.

    :ivar name: the name of the guest; empty if the agent has not seen the guest run.
    :ivar stage: the last event about this end.
    :ivar is_absent: whether the last read has found neither the claim nor the guest.
    :ivar is_doubtful: whether the last read has found an earlier end with a lower generation.
    """

    guest_uuid: str
    name: str
    claim: TimedClaim
    stage: EndStage = EndStage.QUIET
    is_absent: bool = False
    is_doubtful: bool = False

    @property
    def uuid(self) -> str:
        """The uuid of the guest, for events."""
        return self.guest_uuid

    def __str__(self) -> str:
        return full_name(self.name, self.guest_uuid)


@dataclass(frozen=True, slots=True)
class EndRules:
    """The seconds before the end of a claim for the notice and for the grace period."""

    notice: float
    grace: float

    def notice_time(self, note: EndNote) -> float:
        """The time at which the agent records the event that the claim ends soon."""
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


def merge_list(
    notes: Notes,
    listed: TimedClaimList,
    seen: Mapping[str, str],
    present: Collection[str],
    holding: Collection[str],
) -> Notes:
    """Return the notes after the agent has read the claims that have an end.

    :param seen: the names, by uuid, of guests for which the agent has seen an allocation on this host; claims
        of other guests are ignored.
    :param present: the uuids of guests that run on this host, or that may run on it.
    :param holding: the uuids of guests that have a note and an allocation, but no listed claim.
    """
    found = {}
    for uuid, claim in listed.claims.items():
        if uuid in seen or uuid in notes:
            found[uuid] = _merge_claim(notes.get(uuid), uuid, seen.get(uuid, ""), claim)
    for uuid, note in notes.items():
        # An allocation without an end replaces the claim.
        if uuid in found or uuid in holding:
            continue
        # A guest that only starts again is absent at one read, and not at the next one.
        if uuid in present or not note.is_absent:
            found[uuid] = replace(note, is_absent=uuid not in present, is_doubtful=False)
    return found


def _merge_claim(note: EndNote | None, uuid: str, name: str, claim: TimedClaim) -> EndNote:
    if note is None:
        return EndNote(uuid, name, claim)
    note = replace(note, name=name or note.name, is_absent=False, is_doubtful=False)
    if claim.generation < note.claim.generation and claim.ends_at < note.claim.ends_at:
        return replace(note, is_doubtful=True)
    same = (claim.ends_at, claim.on_end) == (note.claim.ends_at, note.claim.on_end)
    return replace(note, claim=claim, stage=note.stage if same else EndStage.QUIET)


def due_steps(note: EndNote, rules: EndRules, now: float, can_evict: bool) -> list[EndStep]:
    """Return the steps that are due for a running guest.

    :param now: the time of Placement's database.
    :param can_evict: whether the guest may be evicted now; False while its eviction is under way.
    """
    ends_at, steps = note.claim.ends_at, []
    announces = note.claim.on_end is not OnEnd.NONE
    if announces and note.stage is EndStage.QUIET and rules.notice_time(note) <= now < ends_at:
        steps.append(EndStep.NOTICE)
    if note.claim.on_end is OnEnd.EVICT and can_evict and rules.eviction_time(note) <= now:
        steps.append(EndStep.EVICT)
    if note.stage is not EndStage.OVER and ends_at <= now:
        steps.append(EndStep.OVER)
    return steps


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


def needs_read(notes: Iterable[EndNote], rules: EndRules, now: float, last: float, ahead: float) -> bool:
    """Return whether an eviction is due within ``ahead`` seconds, after the last read of claims.

    :param last: the time of the last read, by the clock of Placement's database.
    """
    return any(
        note.claim.on_end is OnEnd.EVICT and last < rules.eviction_time(note) - ahead <= now for note in notes
    )


def time_text(seconds: float) -> str:
    """Return a time in the format of messages, such as ``2026-11-28T12:00:00Z``."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> float:
    """Return the seconds since the epoch of a time from Placement, such as ``2026-11-28T12:00:00Z``.

    :raises ValueError: the text is not a time with a time zone.
    """
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text[:50]!r} has no time zone")
    return kept_json.read_number(time.timestamp(), _MAX_TIME)


def parse_action(text: str) -> OnEnd:
    """Return the action with a name.

    A name that only later releases know counts as ``notify``, because this action stops nothing.
    """
    try:
        return OnEnd(text)
    except ValueError:
        return OnEnd.NOTIFY


def dump_notes(notes: Notes) -> bytes:
    """Return the content of the file for these notes."""
    rows = [
        {
            "uuid": note.guest_uuid,
            "name": note.name,
            "generation": note.claim.generation,
            "ends_at": note.claim.ends_at,
            "on_end": note.claim.on_end,
            "stage": note.stage,
        }
        for note in notes.values()
    ]
    return kept_json.dump(_VERSION, kept_json.checked_content(rows))


def parse_notes(content: bytes) -> Notes:
    """Return the notes in the content of a file, by uuid of the guest.

    :raises ValueError: the content is damaged, or of another version.
    """
    return kept_json.parse(_VERSION, content, _read_notes)


def _read_notes(document: Any) -> Notes:
    found = {}
    for row in kept_json.checked_data(document):
        uuid = kept_json.text(row["uuid"])
        if not is_uuid(uuid):
            raise ValueError(f"{uuid!r} is not a uuid")
        claim = TimedClaim(
            int(kept_json.read_number(row["generation"], 1 << 31)),
            kept_json.read_number(row["ends_at"], _MAX_TIME),
            OnEnd(row["on_end"]),
        )
        found[uuid] = EndNote(uuid, kept_json.text(row["name"]), claim, EndStage(row["stage"]))
    return found
