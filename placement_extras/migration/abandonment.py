"""Gives an adopted database back to OpenStack Placement.

The kept tables of OpenStack Placement get their old names, and our tables are removed. On PostgreSQL and
SQLite this is one transaction. On MySQL our tables are first renamed, so that no worker writes to them. On
MySQL a row also records the progress, and a second run continues from the recorded step. The outcome lists
the content that is lost, because the tables of OpenStack Placement cannot store it.

Only :mod:`placement_extras.migration.commands` uses this module, which works without a command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import sqlalchemy as sa

from placement.db import adoption, migration
from placement.db.adoption import KEPT, AdoptionRecord, AdoptionStage
from placement.db.tables import (
    RESERVATION,
    WINDOW_HOLD,
    booked_windows,
    claim_expiries,
    consumer_groups,
    consumers,
    ended_claims,
    planned_allocations,
    provider_attributes,
    reservations,
    window_promises,
)
from placement.exceptions import Conflict, ServiceError
from placement.store.consumers import ConsumerOwnership
from placement.store.time_profile import iso_time
from placement_extras.migration import relations
from placement_extras.migration.adoption import (
    ASIDE,
    OURS,
    STOCK,
    cancel_abandonment,
    own_table_names,
    restore_stock,
)
from placement_extras.migration.content import (
    CUSTOM_PREFIX,
    PortableContent,
    compare_content,
    describe_changes,
    own_content,
    read_portable,
)
from placement_extras.migration.importer import shorten_list
from placement_extras.migration.stock_database import StockContent, read_stock
from placement_extras.migration.stock_writer import carry_back

# MySQL stores a FLOAT in 4 bytes and prints 6 significant digits, so our allocation ratios are rounded before
# they are compared
_FLOAT_DIGITS: Final = 6
# maximum number of uuids in a note. A note is one line, but a cloud can have thousands of reservations.
_MAX_NAMED: Final = 10


def expressible_content(after: PortableContent, source: StockContent) -> tuple[PortableContent, list[str]]:
    """Return the content that the tables of OpenStack Placement can store, and notes about other content."""
    notes: list[str] = []
    things = dict(after.by_table)
    # holds keep room free for windows; they are left out, because OpenStack Placement has no windows
    holds = {uuid for (uuid,), (*_, kind, _generation) in things["consumers"].items() if kind == WINDOW_HOLD}
    if holds:
        things["consumers"] = {key: each for key, each in things["consumers"].items() if key[0] not in holds}
        things["allocations"] = {
            key: each for key, each in things["allocations"].items() if key[0] not in holds
        }
    reserved = [key for key, (*_, kind, _generation) in things["consumers"].items() if kind == RESERVATION]
    if reserved:
        notes.append(
            f"reservations: OpenStack Placement has none, so {len(reserved)} consumers keep the reserved"
            " amounts until their allocations are deleted:"
            f" {', '.join(uuid for (uuid,) in reserved[:_MAX_NAMED])}"
            + (" ..." if len(reserved) > _MAX_NAMED else "")
        )
    if not source.has_types:  # the schema is older than Xena
        typed = [key for key, (*_, kind, _generation) in things["consumers"].items() if kind is not None]
        if typed:
            notes.append(f"consumer types: the old schema has none, so {len(typed)} consumers lose theirs")
        things["consumers"] = {
            key: (project, user, None, generation)
            for key, (project, user, _, generation) in things["consumers"].items()
        }
    # in other databases a FLOAT has 8 bytes, which hold our values exactly
    if source.conn.dialect.name not in ("sqlite", "postgresql"):
        rounded = {
            key: (*units, float(f"{ratio:.{_FLOAT_DIGITS}g}"))
            for key, (*units, ratio) in things["inventories"].items()
        }
        for key in sorted(key for key, value in rounded.items() if value != things["inventories"][key]):
            was, now = things["inventories"][key][-1], rounded[key][-1]
            notes.append(f"allocation ratio of {key[1]} of {key[0]}: {was!r} becomes {now!r}")
        things["inventories"] = rounded
    known = set(source.classes.values())
    for name in sorted({name for _, name in things["inventories"]} - known):
        if not name.startswith(CUSTOM_PREFIX):
            notes.append(
                f"resource class {name}: OpenStack Placement has none of this name, so it stays as a"
                " custom class"
            )
    return replace(after, by_table=things), notes


class AbandonWay(StrEnum):
    """The way in which an abandonment treats changes that were made after the adoption."""

    REFUSE = "refuse"
    """Abandon the adoption only if nothing has changed since."""
    CARRY_BACK = "carry back"
    """Write the changes back into the tables of OpenStack Placement."""
    DISCARD = "discard"
    """Discard the changes."""


@dataclass(frozen=True, slots=True)
class AbandonOutcome:
    """Result of an abandonment.

    :param changes: a line for each change since the adoption.
    :param notes: a line for each kind of content that is lost or changed, because the tables of OpenStack
        Placement cannot store it.
    :param is_discarded: whether the changes are dropped; otherwise, they are carried back.
    """

    changes: Sequence[str] = ()
    notes: Sequence[str] = ()
    is_discarded: bool = False


def abandon_adoption(
    url: str, owner: ConsumerOwnership, way: AbandonWay = AbandonWay.REFUSE
) -> AbandonOutcome:
    """Give an adopted database back to OpenStack Placement.

    :param owner: project and user of consumers that had no row in OpenStack Placement. It has to be the same
        as in the adoption.
    :param way: what happens to the changes since the adoption.
    :raises Conflict: the database was not adopted, old tables or rights are missing, or the old tables refuse
        a row; or ``way`` is ``AbandonWay.REFUSE`` and a change exists. The database is then unchanged.
    :raises Unavailable: the database does not answer, or another program uses its tables.
    """
    with migration.exclusive_connection(url) as conn:
        record = adoption.find_record(conn)
        if record is None:
            raise Conflict(
                "The database was not adopted from OpenStack Placement, or its old tables were removed with"
                " 'placement-manage db drop-stock': there is nothing to go back to."
            )
        if record.stage is AdoptionStage.DROPPING:
            raise Conflict(
                "Some of the old tables are removed already, so the database cannot go back:"
                " 'placement-manage db drop-stock' removes the rest. Nothing is changed."
            )
        relations.require_rights(conn, (*OURS, *(KEPT + name for name in STOCK)))
        if record.stage is AdoptionStage.ADOPTING:
            # the adoption was not complete, so no client has written to our tables
            restore_stock(conn)
            return AbandonOutcome()
        if relations.is_transactional(conn):
            # our tables are locked before their content is compared, because a write after the comparison
            # would be lost
            relations.lock_tables(conn, own_table_names(relations.table_names(conn)))
            outcome = _resolve_changes(conn, owner, way)
            restore_stock(conn)
            return outcome
        return _by_steps(conn, owner, way, record)


def _by_steps(
    conn: sa.Connection, owner: ConsumerOwnership, way: AbandonWay, record: AdoptionRecord
) -> AbandonOutcome:
    if record.stage is AdoptionStage.ADOPTED:
        if way is AbandonWay.REFUSE:
            # contents are compared before tables are renamed. A rename interrupts running workers, but a
            # refused abandonment must not.
            _resolve_changes(conn, owner, way)
        record = AdoptionRecord(AdoptionStage.ABANDONING, record.revision, way)
        adoption.write(conn, record)
        relations.commit_step(conn)
    outcome = AbandonOutcome()
    if record.way != adoption.CARRIED:
        ours = own_table_names(relations.table_names(conn))
        relations.rename_tables(conn, {name: ASIDE + name for name in ours})
        # a second run without an option treats the changes in the way that the first run has recorded
        chosen = AbandonWay(record.way) if way is AbandonWay.REFUSE else way
        try:
            outcome = _resolve_changes(conn, owner, chosen, ASIDE)
        except ServiceError:
            # the rollback removes the written rows. MySQL has already committed the renames, so the tables
            # are renamed again.
            conn.exec_driver_sql("ROLLBACK")
            cancel_abandonment(conn, record)
            raise
        # one transaction writes the rows and this record, so that a second run does not write the rows again
        adoption.write(conn, AdoptionRecord(AdoptionStage.ABANDONING, record.revision, adoption.CARRIED))
        relations.commit_step(conn)
    restore_stock(conn, ASIDE)
    return outcome


def _resolve_changes(
    conn: sa.Connection, owner: ConsumerOwnership, way: AbandonWay, prefix: str = ""
) -> AbandonOutcome:
    """Refuse, carry back or discard the changes since the adoption.

    :param prefix: prefix of the names of our tables.
    :raises Conflict: ``way`` refuses changes and one exists, or the old tables differ from ours after the
        changes were carried back.
    """
    source = read_stock(conn, owner, KEPT)
    before, after = read_portable(source), read_portable(own_content(conn, prefix))
    carried, notes = expressible_content(after, source)
    notes += _lost_content(conn, prefix)
    changes = compare_content(before, carried)
    words = describe_changes(changes, before, carried)
    if not changes or way is AbandonWay.DISCARD:
        return AbandonOutcome(tuple(words), is_discarded=True)
    if way is AbandonWay.REFUSE:
        raise Conflict(
            f"{len(words)} changes since the adoption would be lost:\n{shorten_list(words)}\n"
            "'placement-manage db abandon --carry-back' writes them into the old tables;"
            " '--discard' drops them."
        )
    carry_back(source, before, carried)
    # the old tables are read again, because the type or collation of a column can change a written value
    arrived = read_portable(read_stock(conn, owner, KEPT))
    if left := compare_content(arrived, carried):
        lines = shorten_list(describe_changes(left, arrived, carried))
        raise Conflict(f"These changes could not be carried back; nothing is changed:\n{lines}")
    return AbandonOutcome(tuple(words), tuple(notes))


_LOST_NOTES: Final = {
    consumer_groups.name: "groups of claims: OpenStack Placement has none, so {} consumers leave theirs",
    claim_expiries.name: "claims that expire or end: OpenStack Placement has none, so up to {} claims become"
    " permanent",
    ended_claims.name: "history of claims: OpenStack Placement has none, so {} of them are forgotten",
    booked_windows.name: "history of windows: OpenStack Placement has none, so {} of them are forgotten",
    window_promises.name: "reservations in use: OpenStack Placement has none, so up to {} amounts are free"
    " for all when claims give them back",
    provider_attributes.name: "attributes of resource providers: OpenStack Placement has none, so {} are"
    " lost",
}
"""Notes about lost rows, one for each of our tables without an equivalent in OpenStack Placement. ``{}``
stands for the number of rows.
"""


def _lost_content(conn: sa.Connection, prefix: str) -> list[str]:
    """Return a note for each of our tables that has rows and no equivalent in OpenStack Placement."""
    # a database of an older revision does not have all of these tables
    present = relations.table_names(conn)
    counts = {
        table: conn.execute(sa.select(sa.func.count()).select_from(sa.table(prefix + table))).scalar_one()
        for table in _LOST_NOTES
        if prefix + table in present
    }
    notes = [_LOST_NOTES[table].format(count) for table, count in counts.items() if count]
    if prefix + planned_allocations.name in present:
        notes += _lost_windows(conn, prefix)
    return notes


def _lost_windows(conn: sa.Connection, prefix: str) -> list[str]:
    """Return a note with the reservations that start later, so that operators can inform their projects."""
    own, plans, ends = (
        sa.table(prefix + table.name, *(sa.column(each) for each in names))
        for table, names in (
            (consumers, ("id", "uuid", "project_id")),
            (planned_allocations, ("consumer_id",)),
            (reservations, ("consumer_id", "starts_at", "expires_at")),
        )
    )
    query = (
        sa.select(own.c.uuid, own.c.project_id, ends.c.starts_at, ends.c.expires_at)
        .select_from(own.join(ends, ends.c.consumer_id == own.c.id))
        .where(own.c.id.in_(sa.select(plans.c.consumer_id)))
        .order_by(ends.c.starts_at, own.c.uuid)
    )
    lost = conn.execute(query).all()
    if not lost:
        return []
    named = ", ".join(
        f"{uuid} of project {project} from {iso_time(starts_at)} until {iso_time(expires_at)}"
        for uuid, project, starts_at, expires_at in lost[:_MAX_NAMED]
    )
    return [
        f"reservations that begin later: OpenStack Placement has none, so {len(lost)} are lost, and their"
        f" room is free for all: {named}" + (" ..." if len(lost) > _MAX_NAMED else "")
    ]
