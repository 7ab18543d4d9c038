"""The history of windows: each booking with its promised amounts, within limits of age and number.

A booking writes a row of the history, and the deletion of a window marks this row. The end of a window needs
no write, because its state follows from the clock of the database. Each new booking also deletes some old
rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import sqlalchemy as sa

from placement.db import clock
from placement.db.batch import PreparedStatement, Values
from placement.db.database import WriteTransaction
from placement.db.tables import booked_windows as table
from placement.db.tables import is_same_text
from placement.store.time_profile import EndAction, TimeWindow, WindowMargins

MAX_AGE: Final = 90 * 86_400.0
"""Seconds for which the history keeps a window after the window's end."""
RECENT: Final = 7 * 86_400.0
"""Seconds after the end of a window for which readers can ask for its events, so that its row is kept."""
MAX_KEPT: Final = 1000
"""Maximum number of windows of a project that the history keeps for longer than :data:`RECENT` after their
end.
"""
# the number is limited, so that a project that books and cancels without an end cannot fill the table
MAX_RECENT: Final = 10_000
"""Maximum number of past windows of a project that the history keeps in all."""
# the number is above one, so that the history becomes shorter
_AT_ONCE: Final = 100
"""Maximum number of rows that one booking deletes in each of three steps: one step by age, two by number."""


class PastState(StrEnum):
    """The state of a window that is over; a cancelled window was deleted before its start."""

    ENDED = "ended"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """A window in the history; times are in seconds since 1970.

    ``held`` is the time for which the amounts were promised, including lead and cleaning time. ``resources``
    has the promised amounts by resource class. ``ended_at`` is the time at which the window was deleted; None
    if the window lasts until its end.
    """

    uuid: str
    project_id: str
    user_id: str
    group: str | None
    held: TimeWindow
    margins: WindowMargins
    resources: Mapping[str, int]
    on_end: EndAction = EndAction.NONE
    ended_at: float | None = None


def note_booking(tx: WriteTransaction, window: Values, resources: Mapping[str, int], now: float) -> None:
    """Record a new window in the history, and delete old rows; the caller has locked the bucket of expiries.

    :param window: the columns that describe the window.
    :param resources: the promised amounts.
    :param now: the present time by the clock of the database.
    """
    # the three queries are sent together, because no answer is read before the last one is queued
    answers = [
        tx.queue(_too_old, {"before": now - MAX_AGE}),
        *(
            tx.queue(_too_many, {"project": window["project_id"], "before": before, "kept": kept})
            for before, kept in ((now - RECENT, MAX_KEPT), (now, MAX_RECENT))
        ),
    ]
    if old := [uuid for answer in answers for uuid in answer.scalars]:
        tx.conn.execute(sa.delete(table).where(table.c.uuid.in_(old)))
    row = {
        **window,
        "resources": json.dumps(resources, sort_keys=True),
        "ended_at": window["expires_at"],
        "booked_at": now,
        "end_set_at": now,
    }
    tx.insert(table, [row])


def note_end(tx: WriteTransaction, uuid: str, expires_at: float) -> None:
    """Record a changed end time of a window, which includes the cleaning time of the window."""
    tx.conn.execute(
        sa.update(table)
        .where(table.c.uuid == uuid)
        .values(expires_at=expires_at, ended_at=expires_at, end_set_at=clock.ServerNow())
    )


def note_end_action(tx: WriteTransaction, uuid: str, on_end: EndAction) -> None:
    """Change the action at the end of a window."""
    tx.conn.execute(sa.update(table).where(table.c.uuid == uuid).values(on_end=on_end))


def note_deletion(tx: WriteTransaction, uuid: str) -> None:
    """Mark a window that is deleted before its end; a window that is over stays unchanged."""
    tx.queue(_mark_deleted, {"uuid": uuid})


def forget_window(tx: WriteTransaction, uuid: str) -> None:
    """Delete a window from the history, because a new reservation has the same uuid."""
    tx.queue(_forget, {"uuid": uuid})


def list_past(
    conn: sa.Connection,
    state: PastState,
    project_id: str | None,
    group: str | None,
    after: str | None,
    limit: int,
) -> list[WindowRecord]:
    """Return past windows of a project and a group, sorted by uuid, beginning after the uuid ``after``."""
    query = sa.select(table).where(_STATES[state]).order_by(table.c.uuid).limit(limit)
    if project_id is not None:
        query = query.where(is_same_text(table.c.project_id, project_id))
    if group is not None:
        query = query.where(table.c.claim_group == group)
    if after is not None:
        query = query.where(table.c.uuid > after)
    return [
        WindowRecord(
            row.uuid,
            row.project_id,
            row.user_id,
            row.claim_group,
            TimeWindow(row.starts_at, row.expires_at),
            WindowMargins(row.lead_time, row.cleaning_time),
            json.loads(row.resources),
            EndAction(row.on_end),
            row.ended_at if row.ended_at < row.expires_at else None,
        )
        for row in conn.execute(query)
    ]


_start: Final = table.c.starts_at + table.c.lead_time
_is_over: Final = table.c.ended_at <= clock.ServerNow()
_STATES: Final = {
    PastState.CANCELLED: _is_over & (table.c.ended_at < _start),
    PastState.ENDED: _is_over & (table.c.ended_at >= _start),
}
_mark_deleted: Final = PreparedStatement(
    sa.update(table)
    .where(table.c.uuid == sa.bindparam("uuid"), table.c.ended_at > clock.ServerNow())
    .values(ended_at=clock.ServerNow())
)
_forget: Final = PreparedStatement(sa.delete(table).where(table.c.uuid == sa.bindparam("uuid")))
_too_old: Final = PreparedStatement(
    sa.select(table.c.uuid).where(table.c.ended_at <= sa.bindparam("before", type_=sa.Double)).limit(_AT_ONCE)
)
# this selects the windows of a project that ended before a time, except the latest ones
_too_many: Final = PreparedStatement(
    sa.select(table.c.uuid)
    .where(
        table.c.project_id == sa.bindparam("project"),
        table.c.ended_at <= sa.bindparam("before", type_=sa.Double),
    )
    # the index has this order, so that the windows that are over come first
    .order_by(table.c.project_id.desc(), table.c.ended_at.desc())
    .offset(sa.bindparam("kept", type_=sa.Integer))
    .limit(_AT_ONCE)
)
