"""Claims that end at a time: their notes, and the decisions at their ends. Pure functions.

A *note* has the end of the claim of a guest on this host, in seconds since the epoch by the clock of
Placement's database. Notes are on disk, so the agent acts while Placement is away, and after a restart.

Evictions
    A guest with ``on_end`` evict is asked to stop :data:`MARGIN` seconds and the grace period before its end.
    For example, a claim ends at 12:00:00, and the grace period is 60 seconds: the guest is asked at 11:58:58,
    and is killed at 11:59:58 if it still runs.

Doubt
    A claim may disappear before its end: another program has deleted it, or Placement has an older copy of
    its database. The note then stays until its end, unless the consumer holds an allocation. A claim with a
    lower generation and an earlier end than its note may be from an older copy, too, so the note keeps the
    later end. A guest is never evicted earlier than the last end that the agent was sure of.
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
"""Seconds between the end of the grace period and the end of the claim: a kill takes some time."""

_MAX_TIME: Final = 1e11
"""Upper limit of times in seconds since the epoch: the year 5138."""


class OnEnd(enum.StrEnum):
    """The action on a guest at the end of its claim."""

    NONE = "none"
    NOTIFY = "notify"
    EVICT = "evict"


class EndStage(enum.StrEnum):
    """The last event about the end of a claim: none so far, that it ends soon, or that it has ended."""

    QUIET = "quiet"
    SOON = "soon"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class TimedClaim:
    """A claim that ends.

    :ivar generation: the generation of its consumer.
    :ivar ends_at: the end in seconds since the epoch, by the clock of the database.
    """

    generation: int
    ends_at: float
    on_end: OnEnd


@dataclass(frozen=True, slots=True)
class TimedClaimList:
    """The claims on a host that end, by uuid of the consumer, and the time of the database at the answer."""

    now: float
    claims: Mapping[str, TimedClaim]


@dataclass(frozen=True, slots=True)
class EndNote:
    """The end of the claim of a guest on this host.

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
    """The times before an end, in seconds: of its notice, and of the grace period of an eviction."""

    notice: float
    grace: float

    def notice_time(self, note: EndNote) -> float:
        """The time of the event that the claim ends soon."""
        return note.claim.ends_at - self.notice

    def eviction_time(self, note: EndNote) -> float:
        """The time at which the guest is asked to stop."""
        return note.claim.ends_at - self.grace - MARGIN


class EndStep(enum.Enum):
    """A step at the end of a claim: an event before, the eviction, and the event after."""

    NOTICE = enum.auto()
    EVICT = enum.auto()
    OVER = enum.auto()


Notes = Mapping[str, EndNote]
"""Notes by uuid of the guest."""


def merge_list(
    notes: Notes,
    listed: TimedClaimList,
    seen: Mapping[str, str],
    present: Collection[str],
    holding: Collection[str],
) -> Notes:
    """The notes after a read of the claims that end.

    :param seen: the names of guests by uuid. The agent has seen an allocation on this host for each of them.
        Other claims are ignored.
    :param present: the uuids of guests that run here, or that may run here.
    :param holding: the uuids of noted guests without a listed claim that hold an allocation.
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
    """The steps that are due for a guest that runs.

    :param now: the time of the database.
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
    """The time of the next step after now; None if there is none.

    :param ahead: the seconds before an eviction at which the agent reads the claims once more.
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
    """Whether an eviction is due within ``ahead`` seconds, and the last read was before that.

    :param last: the time of the last read, by the clock of the database.
    """
    return any(
        note.claim.on_end is OnEnd.EVICT and last < rules.eviction_time(note) - ahead <= now for note in notes
    )


def time_text(seconds: float) -> str:
    """A time as messages show it, such as ``2026-11-28T12:00:00Z``."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> float:
    """The seconds since the epoch of a time of Placement, such as ``2026-11-28T12:00:00Z``.

    :raises ValueError: the text is not a time with a time zone.
    """
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text[:50]!r} has no time zone")
    return kept_json.read_number(time.timestamp(), _MAX_TIME)


def parse_action(text: str) -> OnEnd:
    """The action of a name; ``notify`` for a name that only later releases have, because it stops nothing."""
    try:
        return OnEnd(text)
    except ValueError:
        return OnEnd.NOTIFY


def dump_notes(notes: Notes) -> bytes:
    """The content of the file of notes."""
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
    """The notes in a file, by uuid of the guest.

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
