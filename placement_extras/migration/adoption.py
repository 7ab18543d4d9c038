"""Adopts the database of an OpenStack Placement service in place, and removes the old tables later.

Its tables get other names and are kept; ours are made beside them and filled. PostgreSQL and SQLite do each
step in one transaction. On MySQL a row records the progress, and a second run continues from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import sqlalchemy as sa
from sqlalchemy import exc

from placement.db import adoption, migration, tables
from placement.db.adoption import KEPT, AdoptionRecord, AdoptionStage
from placement.db.database import WriteTransaction
from placement.exceptions import Conflict, ServiceError, Unavailable
from placement.store.consumers import ConsumerOwnership
from placement_extras.migration import importer, relations
from placement_extras.migration.content import TallyComparison
from placement_extras.migration.importer import ImportOutcome
from placement_extras.migration.stock_database import StockContent, StockTables, open_source, read

ASIDE: Final = "adopted_"
"""What stands before the names of our tables on the way back, where that goes by steps."""

_REVISION_TABLE: Final = "alembic_version"

STOCK: Final = (*StockTables().metadata.tables, _REVISION_TABLE)
"""The tables of OpenStack Placement."""

OURS: Final = (
    *(table.name for each in reversed(tables.all_metadata()) for table in reversed(each.sorted_tables)),
    _REVISION_TABLE,
)
"""The tables of this service, those that refer to others before them."""


def adopt(
    url: str, owner: ConsumerOwnership, additional_classes: Iterable[str], *, skip_orphans: bool = False
) -> ImportOutcome:
    """Take everything over and keep the old tables; harmless when done again.

    :param owner: whose the consumers are that nobody is known to own.
    :param skip_orphans: leave behind what belongs to nothing.
    :raises Conflict: this is no database of OpenStack Placement, or it holds what cannot be taken over;
        nothing is changed then.
    :raises Unavailable: it does not answer, or is in use, or on its way back.
    """
    with migration.exclusive(url) as conn:
        state = migration.state_of(conn)
        record = state.record
        if record is None:
            record = AdoptionRecord(AdoptionStage.ADOPTING, _stock_revision(state))
            require_means(conn)
            with _snapshot(url, conn, "", owner) as source:
                importer.examine(source, skip_orphans=skip_orphans)
        elif record.stage in (AdoptionStage.ADOPTED, AdoptionStage.DROPPING):
            return ImportOutcome(False, TallyComparison())
        elif record.stage is AdoptionStage.ABANDONING:
            if record.way == adoption.CARRIED:
                raise Unavailable(adoption.explain(None, record) or "")
            stay(conn, record)
            return ImportOutcome(False, TallyComparison())
        adoption.write(conn, record)
        relations.commit_step(conn)
        try:
            return _move(conn, url, record, owner, additional_classes, skip_orphans=skip_orphans)
        except (ServiceError, exc.SQLAlchemyError):
            if not relations.is_transactional(conn):
                conn.exec_driver_sql("ROLLBACK")
                put_back(conn)
            raise


def require_stock(url: str) -> None:
    """Check that this is a database to adopt.

    :raises Conflict: it is not.
    :raises Unavailable: it does not answer.
    """
    _stock_revision(migration.look(url))


def _stock_revision(state: migration.FoundDatabase) -> str:
    if state.revision in adoption.REVISIONS:
        return state.revision
    if state.revision is None or adoption.is_ours(state.revision):
        raise Conflict(
            "The database is none of OpenStack Placement, so that there is nothing to adopt:"
            " 'placement-manage db sync' is what it needs, if anything."
        )
    raise Conflict(migration.obstacle(state) or "")


def require_means(conn: sa.Connection) -> None:
    """Check that the user of the database may move it, and that the names are free that a move needs.

    :raises Conflict: it may not, or tables of somebody else have them, which would be taken for ours.
    """
    relations.require(conn, STOCK)
    needed = {
        *(KEPT + name for name in STOCK),
        *(ASIDE + name for name in OURS),
        *(set(OURS) - set(STOCK)),
    }
    if taken := sorted(needed & set(sa.inspect(conn).get_table_names())):
        raise Conflict(
            f"The database holds tables of somebody else under names that are needed: {', '.join(taken)}."
            " Nothing is changed. Rename them, or move them to another database."
        )


def _move(
    conn: sa.Connection,
    url: str,
    record: AdoptionRecord,
    owner: ConsumerOwnership,
    additional_classes: Iterable[str],
    *,
    skip_orphans: bool,
) -> ImportOutcome:
    present = set(sa.inspect(conn).get_table_names())
    ahead = [name for name in STOCK if name in present and KEPT + name not in present]
    relations.lock(conn, ahead)
    relations.rename(conn, {name: KEPT + name for name in ahead})
    migration.bring_up(conn)
    relations.commit_step(conn)
    with _snapshot(url, conn, KEPT, owner) as source:
        tx = WriteTransaction(conn, optimistic=False)
        outcome = importer.copy(tx, source, additional_classes, skip_orphans=skip_orphans)
        adoption.write(tx.conn, AdoptionRecord(AdoptionStage.ADOPTED, record.revision))
    return outcome


@contextmanager
def _snapshot(url: str, conn: sa.Connection, prefix: str, owner: ConsumerOwnership) -> Iterator[StockContent]:
    """What is there to take over.

    On MySQL, where a connection cannot be read from in parts and be written to between them, it is
    another connection, which sees the tables as they have been committed.
    """
    if relations.is_transactional(conn):
        yield read(conn, owner, prefix)
    else:
        with open_source(url, owner, prefix) as source:
            yield source


def stay(conn: sa.Connection, record: AdoptionRecord) -> None:
    """Take our tables up again that were put aside for the way back."""
    present = set(sa.inspect(conn).get_table_names())
    relations.rename(conn, {ASIDE + name: name for name in OURS if ASIDE + name in present})
    adoption.write(conn, AdoptionRecord(AdoptionStage.ADOPTED, record.revision))
    relations.commit_step(conn)


def put_back(conn: sa.Connection, prefix: str = "") -> None:
    """Remove our tables and give the kept ones their names again.

    :param prefix: what stands before the names of ours.
    """
    present = set(sa.inspect(conn).get_table_names())
    relations.drop(
        conn, (prefix + name for name in OURS if prefix + name in present) if prefix else ours_among(present)
    )
    relations.rename(conn, {KEPT + name: name for name in STOCK if KEPT + name in present})
    adoption.remove(conn)


def ours_among(present: set[str]) -> list[str]:
    """Which tables are ours: of the names that both use, those whose other bearer is kept aside."""
    return [name for name in OURS if name in present and (name not in STOCK or KEPT + name in present)]


@dataclass(frozen=True, slots=True)
class KeptTable:
    """A table that is kept, with how many rows."""

    name: str
    rows: int


def look(url: str) -> Sequence[KeptTable]:
    """What there is to remove.

    :raises Conflict: nothing was adopted, or the adoption or the way back is not complete.
    :raises Unavailable: the database does not answer.
    """
    with migration.exclusive(url) as conn:
        _adopted(conn)
        return [
            KeptTable(name, conn.execute(sa.select(sa.func.count()).select_from(sa.table(name))).scalar_one())
            for name in sorted(_kept(conn))
        ]


def drop_stock(url: str) -> Sequence[str]:
    """Remove them for good; their names.

    :raises Conflict: as for :func:`look`; nothing is changed then.
    :raises Unavailable: the database does not answer, or somebody keeps a table in use.
    """
    with migration.exclusive(url) as conn:
        record = _adopted(conn)
        names = _kept(conn)
        relations.require(conn, names)
        relations.lock(conn, names)
        adoption.write(conn, replace(record, stage=AdoptionStage.DROPPING))
        relations.commit_step(conn)
        relations.drop(conn, names)
        adoption.remove(conn)
        return sorted(names)


def _adopted(conn: sa.Connection) -> AdoptionRecord:
    found = migration.state_of(conn)
    if found.record is None:
        raise Conflict(
            "The database was not adopted from OpenStack Placement, or its old tables were removed already:"
            " there is nothing to remove."
        )
    if found.record.stage in (AdoptionStage.ADOPTING, AdoptionStage.ABANDONING):
        raise Conflict(adoption.explain(found.revision, found.record) or "")
    return found.record


def _kept(conn: sa.Connection) -> list[str]:
    """The tables, those that refer to others before them."""
    kept = {KEPT + name for name in STOCK}
    ordered = (name for name, _ in sa.inspect(conn).get_sorted_table_and_fkc_names() if name is not None)
    return [name for name in reversed(list(ordered)) if name in kept]
