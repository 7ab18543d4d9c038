"""Gives an adopted database back to OpenStack Placement.

Its tables get their names again and ours are removed. PostgreSQL and SQLite do this in one transaction.
On MySQL ours are put aside first, so that no worker writes to them, and a row records the progress: a second
run continues from there. Content that the tables of OpenStack Placement cannot hold is named before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import sqlalchemy as sa

from placement.db import adoption, migration
from placement.db.adoption import KEPT, AdoptionRecord, AdoptionStage
from placement.db.tables import RESERVATION, claim_expiries, consumer_groups, provider_attributes
from placement.exceptions import Conflict, ServiceError
from placement.store.consumers import ConsumerOwnership
from placement_extras.migration import relations
from placement_extras.migration.adoption import ASIDE, OURS, STOCK, ours_among, put_back, stay
from placement_extras.migration.carry_back import carry_back
from placement_extras.migration.content import CUSTOM, PortableContent, compare, describe, of_ours, portable
from placement_extras.migration.importer import listed
from placement_extras.migration.stock_database import StockContent, read

_DIGITS: Final = 6  # of a FLOAT of MySQL
_NAMED: Final = 10  # of things that may be many


def expressible(after: PortableContent, source: StockContent) -> tuple[PortableContent, list[str]]:
    """What of our content the tables of the source can hold, and in words what they cannot."""
    notes: list[str] = []
    things = dict(after.things)
    reserved = [key for key, (*_, kind, _generation) in things["consumers"].items() if kind == RESERVATION]
    if reserved:
        notes.append(
            f"reservations: OpenStack Placement has none, {len(reserved)} consumers hold what is reserved"
            f" until their allocations are deleted: {', '.join(uuid for (uuid,) in reserved[:_NAMED])}"
            + (" ..." if len(reserved) > _NAMED else "")
        )
    if not source.has_types:
        typed = [key for key, (*_, kind, _generation) in things["consumers"].items() if kind is not None]
        if typed:
            notes.append(f"consumer type: the old schema has none, {len(typed)} consumers lose theirs")
        things["consumers"] = {
            key: (project, user, None, generation)
            for key, (project, user, _, generation) in things["consumers"].items()
        }
    if source.conn.dialect.name not in ("sqlite", "postgresql"):
        rounded = {
            key: (*units, float(f"{ratio:.{_DIGITS}g}"))
            for key, (*units, ratio) in things["inventories"].items()
        }
        for key in sorted(key for key, value in rounded.items() if value != things["inventories"][key]):
            was, now = things["inventories"][key][-1], rounded[key][-1]
            notes.append(f"allocation ratio of {key[1]} of {key[0]}: {was!r} becomes {now!r}")
        things["inventories"] = rounded
    known = set(source.classes.values())
    for name in sorted({name for _, name in things["inventories"]} - known):
        if not name.startswith(CUSTOM):
            notes.append(
                f"resource class {name}: OpenStack Placement has none, it stays as if it were custom"
            )
    return replace(after, things=things), notes


class AbandonWay(StrEnum):
    """What becomes of what was written since the adoption."""

    REFUSE = "refuse"
    CARRY_BACK = "carry back"
    DISCARD = "discard"


@dataclass(frozen=True, slots=True)
class AbandonOutcome:
    """What was done.

    :param changes: what was written since the adoption, in words.
    :param notes: what of it the old tables cannot hold.
    """

    changes: Sequence[str] = ()
    notes: Sequence[str] = ()


def abandon(url: str, owner: ConsumerOwnership, way: AbandonWay = AbandonWay.REFUSE) -> AbandonOutcome:
    """Go back.

    :param owner: as in the adoption.
    :raises Conflict: nothing was adopted; something would be lost, and ``way`` is to refuse that; or the
        old tables do not take it. Nothing is changed then.
    :raises Unavailable: the database does not answer, or is in use.
    """
    with migration.exclusive(url) as conn:
        record = adoption.find(conn)
        if record is None:
            raise Conflict(
                "The database was not adopted from OpenStack Placement, or its old tables were removed with"
                " 'placement-manage db drop-stock': there is nothing to go back to."
            )
        if record.stage is AdoptionStage.DROPPING:
            raise Conflict(
                "The old tables are being removed, so that there is no way back:"
                " 'placement-manage db drop-stock' goes on. Nothing is changed."
            )
        relations.require(conn, (*OURS, *(KEPT + name for name in STOCK)))
        if record.stage is AdoptionStage.ADOPTING:
            put_back(conn)
            return AbandonOutcome()
        if relations.is_transactional(conn):
            relations.lock(conn, ours_among(_tables(conn)))
            outcome = _resolve_changes(conn, owner, way)
            put_back(conn)
            return outcome
        return _by_steps(conn, owner, way, record)


def _by_steps(
    conn: sa.Connection, owner: ConsumerOwnership, way: AbandonWay, record: AdoptionRecord
) -> AbandonOutcome:
    if record.stage is AdoptionStage.ADOPTED:
        if way is AbandonWay.REFUSE:
            _resolve_changes(conn, owner, way)  # before anything is done that workers would notice
        record = AdoptionRecord(AdoptionStage.ABANDONING, record.revision, way)
        adoption.write(conn, record)
        relations.commit_step(conn)
    outcome = AbandonOutcome()
    if record.way != adoption.CARRIED:
        relations.rename(conn, {name: ASIDE + name for name in ours_among(_tables(conn))})
        chosen = AbandonWay(record.way) if way is AbandonWay.REFUSE else way
        try:
            outcome = _resolve_changes(conn, owner, chosen, ASIDE)
        except ServiceError:
            conn.exec_driver_sql("ROLLBACK")
            stay(conn, record)
            raise
        adoption.write(conn, AdoptionRecord(AdoptionStage.ABANDONING, record.revision, adoption.CARRIED))
        relations.commit_step(conn)
    put_back(conn, ASIDE)
    return outcome


def _tables(conn: sa.Connection) -> set[str]:
    return set(sa.inspect(conn).get_table_names())


def _resolve_changes(
    conn: sa.Connection, owner: ConsumerOwnership, way: AbandonWay, prefix: str = ""
) -> AbandonOutcome:
    """Do with what was written since the adoption what is to be done with it.

    :param prefix: what stands before the names of our tables.
    """
    source = read(conn, owner, KEPT)
    before, after = portable(source), portable(of_ours(conn, prefix))
    carried, notes = expressible(after, source)
    notes += _lost(conn, prefix)
    changes = compare(before, carried)
    words = describe(changes, before, carried)
    if not changes or way is AbandonWay.DISCARD:
        return AbandonOutcome(tuple(words))
    if way is AbandonWay.REFUSE:
        raise Conflict(
            f"Since the adoption {len(words)} things were written, which would be lost:\n{listed(words)}\n"
            "'placement-manage db abandon --carry-back' writes them into the old tables;"
            " with '--discard' they are gone."
        )
    carry_back(source, before, carried)
    arrived = portable(read(conn, owner, KEPT))
    if left := compare(arrived, carried):
        lines = listed(describe(left, arrived, carried))
        raise Conflict(f"Not all could be carried back; nothing is changed:\n{lines}")
    return AbandonOutcome(tuple(words), tuple(notes))


_LOST: Final = {
    consumer_groups.name: "groups of claims: OpenStack Placement has none, {} consumers leave theirs",
    claim_expiries.name: "claims that expire: OpenStack Placement has none, up to {} stay",
    provider_attributes.name: "attributes of resource providers: OpenStack Placement has none, {} are lost",
}
"""What goes with tables that the other schema has nothing like."""


def _lost(conn: sa.Connection, prefix: str) -> list[str]:
    """In words, what nothing can be carried back of; the schema may be that of a version before it."""
    present = _tables(conn)
    counts = {
        table: conn.execute(sa.select(sa.func.count()).select_from(sa.table(prefix + table))).scalar_one()
        for table in _LOST
        if prefix + table in present
    }
    return [_LOST[table].format(count) for table, count in counts.items() if count]
