"""Events of windows, and of claims with an action at their end, computed from the tables and the clock.

Nouns
    An *event* has a kind, a consumer and an *instant*: the time at which it happens, by the clock of the
    database. An instant is never before the write that causes it. So a reader that asks for consecutive
    intervals up to the present gets each event in one of the answers.

Invariants
    - The events correspond to the present bookings. If the time of a booking has been changed, the event of
      the former time is left out.
    - A deleted window has no events for times after its deletion. A window that was deleted before its start
      is cancelled, and has no other event.
    - The cost of a page is bounded by its limit, and by the number of bookings with times in its interval,
      which indexes find.

A claim is deleted from the tables when its amounts are released, or when a new claim of its consumer replaces
it. If the claim has already ended, :func:`note_ended` keeps the data for its events for :data:`MAX_AGE`
seconds.
"""

from __future__ import annotations

import json
import uuid as uuids
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from heapq import nsmallest
from typing import Any, Final

import sqlalchemy as sa

from placement.db import clock
from placement.db.database import WriteTransaction
from placement.db.tables import (
    RESERVATION,
    booked_windows,
    claim_expiries,
    consumers,
    ended_claims,
    is_same_text,
)
from placement.store.consumers import EXPIRING_CONSUMERS, find_roots
from placement.store.time_profile import MAX_PAST, EndAction, iso_time

MAX_AGE: Final = 7 * 86_400.0
"""Seconds after the end of a claim for which the service keeps the data for its events."""
# the number is above the 100 claims of one release, so that the number of old claims decreases
_FORGOTTEN: Final = 200
"""Maximum number of old claims of which one release deletes the data for events."""
# a window may begin up to MAX_PAST seconds in the past, and its booking takes some time
_LATE: Final = 2 * MAX_PAST
"""Maximum number of seconds by which a window may start before its booking."""
# the column has 64 KiB on MySQL
_MAX_ROOTS: Final = 1000
"""Maximum number of hosts of an ended claim that its events name."""
# any constant namespace serves; a change of the namespace would repeat each event of the last minute
_NAMESPACE: Final = uuids.UUID("0a8f2c1e-52f7-4a39-9d0c-6b1f3f6a7e24")


class TimeEventKind(StrEnum):
    """The kind of an event; events at the same instant are in the order of their kinds."""

    STARTS_SOON = "reservation.starts_soon"
    STARTED = "reservation.started"
    ENDS_SOON = "reservation.ends_soon"
    ENDED = "reservation.ended"
    CANCELLED = "reservation.cancelled"
    CLAIM_ENDS_SOON = "claim.ends_soon"
    CLAIM_ENDED = "claim.ended"


_KINDS: Final = list(TimeEventKind)


@dataclass(frozen=True, slots=True)
class TimeEvent:
    """An event of a consumer; all times are in seconds since 1970.

    ``starts_at`` and ``ends_at`` are the present times of the window or claim, without lead and cleaning
    time. For a claim, ``starts_at`` is None. ``hosts`` has the uuids of the root providers of its amounts.
    For a claim that is over, these are the hosts at its end. The field is empty for a window that is over.
    """

    kind: TimeEventKind
    instant: float
    consumer: str
    project_id: str
    consumer_type: str | None
    starts_at: float | None
    ends_at: float
    on_end: EndAction
    hosts: Sequence[str] = ()

    @property
    def event_id(self) -> str:
        """The id of the event, which is the same in each answer with this event."""
        return str(uuids.uuid5(_NAMESPACE, f"{self.kind} {self.consumer} {round(self.instant * 1e6)}"))

    def to_document(self) -> dict[str, Any]:
        """Return the event as a JSON document, as in answers and notifications."""
        return {
            "id": self.event_id,
            "kind": self.kind,
            "time": iso_time(self.instant),
            "consumer_uuid": self.consumer,
            "consumer_type": self.consumer_type,
            "project_id": self.project_id,
            "starts_at": None if self.starts_at is None else iso_time(self.starts_at),
            "ends_at": iso_time(self.ends_at),
            "on_end": self.on_end,
            "root_provider_uuids": list(self.hosts),
        }

    @property
    def position(self) -> EventPosition:
        """The position of the event in the order of events."""
        return EventPosition(self.instant, self.kind, self.consumer)


@dataclass(frozen=True, slots=True)
class EventPosition:
    """A position in the order of events: instant, kind and consumer."""

    instant: float
    kind: TimeEventKind
    consumer: str

    @property
    def sort_key(self) -> tuple[float, int, str]:
        """The key by which events are sorted."""
        return self.instant, _KINDS.index(self.kind), self.consumer


@dataclass(frozen=True, slots=True)
class EventInterval:
    """The events with an instant in ``[since, until)``, of one project or of all projects.

    ``notice`` is the number of seconds between an event of the kinds ``*_soon`` and the time that the event
    announces.
    """

    since: float
    until: float
    notice: float
    project_id: str | None = None


def list_events(
    conn: sa.Connection, interval: EventInterval, after: EventPosition | None, limit: int
) -> list[TimeEvent]:
    """Return the events of an interval, sorted, beginning after a position."""
    found, past = dict[str, TimeEvent](), set[str]()
    # without this lower bound, each further page would read the events of all pages before
    since = interval.since if after is None else max(interval.since, after.instant)
    # claims that were released between the statements are in both tables, and in the result once
    for kind, query, is_past in _QUERIES:
        values: dict[str, Any] = {
            "since": since,
            "until": interval.until,
            "notice": interval.notice,
            "limit": limit,
        }
        if interval.project_id is not None:
            query = query.where(is_same_text(query.selected_columns.project_id, sa.bindparam("project")))
            values["project"] = interval.project_id
        if after is not None:
            begin, consumer = _place_in(kind, after)
            instant, uuid = query.selected_columns.instant, query.selected_columns.uuid
            place = sa.bindparam("begin", type_=sa.Double)
            is_behind = uuid > sa.bindparam("consumer", type_=sa.String)
            query = query.where((instant > place) | ((instant == place) & is_behind))
            values |= {"begin": begin, "consumer": consumer}
        for event in _events_of(kind, conn.execute(query, values)):
            if is_past:
                past.add(event.event_id)
            found[event.event_id] = event
    page = nsmallest(limit, found.values(), key=lambda each: each.position.sort_key)
    # the consumer of a claim that is over may have a new claim on other hosts
    roots = find_roots(conn, {each.consumer for each in page if each.event_id not in past})
    return [
        each if each.event_id in past else replace(each, hosts=roots.get(each.consumer, ())) for each in page
    ]


def _place_in(kind: TimeEventKind, after: EventPosition) -> tuple[float, str]:
    """Return an instant and a consumer; events of this kind after these two are also after the position."""
    order = _KINDS.index(kind) - _KINDS.index(after.kind)
    # no uuid is before the empty text or behind the letter z
    return after.instant, after.consumer if order == 0 else "" if order > 0 else "z"


def _events_of(kind: TimeEventKind, rows: Iterable[Sequence[Any]]) -> Iterator[TimeEvent]:
    for instant, uuid, project_id, consumer_type, starts_at, ends_at, on_end, roots in rows:
        start = None if starts_at is None else float(starts_at)
        yield TimeEvent(
            kind,
            float(instant),
            uuid,
            project_id,
            consumer_type,
            start,
            float(ends_at),
            EndAction(on_end),
            json.loads(roots) if roots else (),
        )


def note_ended(tx: WriteTransaction, uuids_of_consumers: Sequence[str]) -> None:
    """Keep the data for events of those claims that have ended, before they are released or replaced.

    :param uuids_of_consumers: consumers that the caller has locked.
    """
    if not uuids_of_consumers:
        return
    ended = tx.conn.execute(_ENDING, {"uuids": uuids_of_consumers}).mappings().all()
    if not ended:
        return
    # the table may have rows of earlier claims of these consumers
    known = [each["uuid"] for each in ended]
    tx.conn.execute(sa.delete(ended_claims).where(ended_claims.c.uuid.in_(known)))
    roots = find_roots(tx.conn, known)
    rows = [{**each, "roots": json.dumps(roots.get(each["uuid"], [])[:_MAX_ROOTS])} for each in ended]
    tx.conn.execute(sa.insert(ended_claims), rows)


def forget_ended(tx: WriteTransaction, now: float) -> None:
    """Delete the data for events of some old claims; the caller has locked the bucket of expiries.

    :param now: the present time by the clock of the database.
    """
    old = tx.conn.execute(_OLD, {"before": now - MAX_AGE}).scalars().all()
    if old:
        tx.conn.execute(sa.delete(ended_claims).where(ended_claims.c.uuid.in_(old)))


def _larger_of(one: sa.ColumnElement[Any], other: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    # the name of this function differs between databases
    return sa.case((one > other, one), else_=other)


_since: Final = sa.bindparam("since", type_=sa.Double)
_until: Final = sa.bindparam("until", type_=sa.Double)
_notice: Final = sa.bindparam("notice", type_=sa.Double)
_w: Final = booked_windows.c
_e: Final = claim_expiries.c
_lead: Final = sa.select(sa.func.coalesce(sa.func.max(_w.lead_time), 0)).scalar_subquery()
_cleaning: Final = sa.select(sa.func.coalesce(sa.func.max(_w.cleaning_time), 0)).scalar_subquery()
_claim_cleaning: Final = sa.select(sa.func.coalesce(sa.func.max(_e.cleaning_time), 0)).scalar_subquery()

_start: Final = _w.starts_at + _w.lead_time
_end: Final = _w.expires_at - _w.cleaning_time
# a window may get a new end during its cleaning time; then this end is already in the past
_end_instant: Final = _larger_of(_end, _w.end_set_at)
_is_cancelled: Final = _w.ended_at < _start
_is_deleted: Final = _w.ended_at < _w.expires_at
_claim_end: Final = _e.expires_at - _e.cleaning_time


def _is_within(instant: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    return (instant >= _since) & (instant < _until)


def _query_events(
    instant: sa.ColumnElement[Any], uuid: sa.ColumnElement[str], *others: sa.ColumnElement[Any]
) -> sa.Select[Any]:
    """Return a query for events, with the columns that :func:`_events_of` reads."""
    return (
        sa.select(instant.label("instant"), uuid, *others)
        .where(_is_within(instant))
        .order_by(instant, uuid)
        .limit(sa.bindparam("limit", type_=sa.Integer))
    )


def _window_events(instant: sa.ColumnElement[Any], *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return _query_events(
        instant,
        _w.uuid,
        _w.project_id,
        sa.literal(RESERVATION).label("consumer_type"),
        _start.label("starts_at"),
        _end.label("ends_at"),
        _w.on_end,
        sa.null().label("roots"),
    ).where(*conditions)


def _claim_events(instant: sa.ColumnElement[Any], *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return (
        _query_events(
            instant,
            consumers.c.uuid,
            consumers.c.project_id,
            consumers.c.consumer_type,
            sa.null().label("starts_at"),
            _claim_end.label("ends_at"),
            _e.on_end,
            sa.null().label("roots"),
        )
        .select_from(EXPIRING_CONSUMERS)
        .where(
            _e.is_final,
            _e.on_end != EndAction.NONE.value,
            _e.expires_at >= _since,
            _e.expires_at < _until + _notice + _claim_cleaning,
            *conditions,
        )
    )


def _past_claim_events(instant: sa.ColumnElement[Any], *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    past = ended_claims.c
    return _query_events(
        instant,
        past.uuid,
        past.project_id,
        past.consumer_type,
        sa.null().label("starts_at"),
        past.ends_at,
        past.on_end,
        past.roots,
    ).where(past.ends_at >= _since, past.ends_at < _until + _notice, *conditions)


# these are conditions on plain columns, which indexes serve. Each condition selects at least the rows with
# instants in the interval
_starts_near: Final = (_w.starts_at >= _since - _LATE - _lead) & (_w.starts_at < _until + _notice)
_ends_near: Final = (_w.ended_at >= _since) & (_w.ended_at < _until + _notice + _cleaning)
_soon: Final = _larger_of(_start - _notice, _w.booked_at)
_ends_soon: Final = _larger_of(_end - _notice, _w.end_set_at)
_claim_soon: Final = _larger_of(_claim_end - _notice, _e.booked_at)
_past_soon: Final = _larger_of(ended_claims.c.ends_at - _notice, ended_claims.c.booked_at)
# the last value of each entry tells whether the claim is over, so that its consumer may hold other amounts
# now
_QUERIES: Final = (
    (TimeEventKind.STARTS_SOON, _window_events(_soon, _starts_near, ~_is_cancelled, _soon < _start), False),
    (
        TimeEventKind.STARTED,
        _window_events(_larger_of(_start, _w.booked_at), _starts_near, ~_is_cancelled),
        False,
    ),
    (
        TimeEventKind.ENDS_SOON,
        _window_events(_ends_soon, _ends_near, ~_is_deleted, _ends_soon < _end_instant),
        False,
    ),
    (
        TimeEventKind.ENDED,
        _window_events(
            sa.case((_w.ended_at < _end_instant, _w.ended_at), else_=_end_instant), _ends_near, ~_is_cancelled
        ),
        False,
    ),
    (TimeEventKind.CANCELLED, _window_events(_w.ended_at, _ends_near, _is_cancelled), False),
    # claims that have not been released come first: a claim that is released meanwhile is found afterwards
    (TimeEventKind.CLAIM_ENDS_SOON, _claim_events(_claim_soon, _claim_soon < _claim_end), False),
    (TimeEventKind.CLAIM_ENDED, _claim_events(_claim_end), False),
    (
        TimeEventKind.CLAIM_ENDS_SOON,
        _past_claim_events(_past_soon, _past_soon < ended_claims.c.ends_at),
        True,
    ),
    (TimeEventKind.CLAIM_ENDED, _past_claim_events(ended_claims.c.ends_at), True),
)
_ENDING: Final = (
    sa.select(
        consumers.c.uuid,
        consumers.c.project_id,
        consumers.c.consumer_type,
        _e.booked_at,
        _claim_end.label("ends_at"),
        _e.on_end,
    )
    .select_from(EXPIRING_CONSUMERS)
    .where(
        consumers.c.uuid.in_(sa.bindparam("uuids", expanding=True)),
        _e.is_final,
        _e.on_end != EndAction.NONE.value,
        # a guest may leave during the cleaning time, which follows the end of the claim
        _claim_end <= clock.ServerNow(),
    )
)
_OLD: Final = (
    sa.select(ended_claims.c.uuid)
    .where(ended_claims.c.ends_at < sa.bindparam("before", type_=sa.Double))
    .limit(_FORGOTTEN)
)
