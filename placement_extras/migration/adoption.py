"""Adopts the database of OpenStack Placement in place, and removes the old tables later.

The adoption renames and keeps the old tables, creates our tables beside them, and fills our tables. On
PostgreSQL and SQLite, the adoption is one transaction, and the removal of the old tables is another one. On
MySQL a row records the progress, and a second run continues from the recorded step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import sqlalchemy as sa
from sqlalchemy import exc

from placement.db import adoption, migration, tables
from placement.db.adoption import KEPT, AdoptionRecord, AdoptionStage
from placement.db.database import WriteTransaction
from placement.exceptions import Conflict, ServiceError, Unavailable
from placement.store.consumers import ConsumerOwnership
from placement_extras.migration import importer, relations
from placement_extras.migration.importer import ImportOutcome
from placement_extras.migration.stock_database import StockContent, StockTables, open_source, read_stock

ASIDE: Final = "adopted_"
"""Prefix that the names of our tables get during an abandonment on MySQL, so that no worker finds them."""

_REVISION_TABLE: Final = "alembic_version"

STOCK: Final = (*StockTables().metadata.tables, _REVISION_TABLE)
"""The names of the tables of OpenStack Placement."""

OURS: Final = (
    *(table.name for each in reversed(tables.all_metadata()) for table in reversed(each.sorted_tables)),
    _REVISION_TABLE,
)
"""The names of our tables in the order in which they are removed. A table comes before the tables that its
foreign keys refer to.
"""


def adopt_database(
    url: str, owner: ConsumerOwnership, additional_classes: Iterable[str], *, skip_orphans: bool = False
) -> ImportOutcome:
    """Copy all content of the tables of OpenStack Placement into our tables, and keep the old tables.

    A database that is already adopted stays unchanged.

    :param owner: project and user for consumers that have allocations, but no row in the old tables.
    :param skip_orphans: do not copy rows that refer to missing rows, instead of refusing them.
    :raises Conflict: this is not a database of OpenStack Placement, or its content does not fit into our
        tables. The database is then unchanged.
    :raises Unavailable: the database does not answer, another program uses it, or an abandonment is not
        complete.
    """
    with migration.exclusive_connection(url) as conn:
        state = migration.state_of(conn)
        record = state.record
        if record is None:
            record = AdoptionRecord(AdoptionStage.ADOPTING, _stock_revision(state))
            # everything that could refuse the adoption is checked before the first change
            require_move_rights(conn)
            with _source_snapshot(url, conn, "", owner) as source:
                importer.examine_source(source, skip_orphans=skip_orphans)
        elif record.stage in (AdoptionStage.ADOPTED, AdoptionStage.DROPPING):
            return ImportOutcome(False, {})
        elif record.stage is AdoptionStage.ABANDONING:
            # an abandonment has already carried the changes back to the old tables, so our tables are
            # obsolete
            if record.way == adoption.CARRIED:
                raise Unavailable(adoption.explain_adoption(None, record) or "")
            cancel_abandonment(conn, record)
            return ImportOutcome(False, {})
        adoption.write(conn, record)
        relations.commit_step(conn)
        try:
            return _move_tables(conn, url, record, owner, additional_classes, skip_orphans=skip_orphans)
        # any other exception is a defect. The record then stays, so that a second run continues from it.
        except (ServiceError, exc.SQLAlchemyError):
            if not relations.is_transactional(conn):
                # MySQL has committed the renames, so the rollback does not undo them
                conn.exec_driver_sql("ROLLBACK")
                restore_stock(conn)
            raise


def require_stock(url: str) -> None:
    """Check that the database at a URL can be adopted.

    :raises Conflict: the schema of the database is not at a known revision of OpenStack Placement.
    """
    _stock_revision(migration.find_database(url))


def _stock_revision(state: migration.FoundDatabase) -> str:
    if state.revision in adoption.REVISIONS:
        return state.revision
    if state.revision is None or adoption.is_ours(state.revision):
        raise Conflict(
            "The database is not one of OpenStack Placement, so there is nothing to adopt."
            " 'placement-manage db sync' creates or upgrades the tables of this service."
        )
    raise Conflict(migration.find_obstacle(state) or "")


def require_move_rights(conn: sa.Connection) -> None:
    """Check the rights of the database user, and that the names for renamed and new tables are not in use.

    :raises Conflict: a right is missing, or a table of another program has one of these names. A later step
        would treat such a table as ours.
    """
    relations.require_rights(conn, STOCK)
    needed = {
        *(KEPT + name for name in STOCK),
        *(ASIDE + name for name in OURS),
        *(set(OURS) - set(STOCK)),
    }
    if taken := sorted(needed & relations.table_names(conn)):
        raise Conflict(
            f"The database holds tables of another program under names that are needed: {', '.join(taken)}."
            " Nothing is changed. Rename them, or move them to another database."
        )


def _move_tables(
    conn: sa.Connection,
    url: str,
    record: AdoptionRecord,
    owner: ConsumerOwnership,
    additional_classes: Iterable[str],
    *,
    skip_orphans: bool,
) -> ImportOutcome:
    present = relations.table_names(conn)
    # perhaps an interrupted run has already renamed some of the tables
    ahead = [name for name in STOCK if name in present and KEPT + name not in present]
    # if a worker of the old service still runs, its requests wait for this lock, and fail after the renames
    relations.lock_tables(conn, ahead)
    relations.rename_tables(conn, {name: KEPT + name for name in ahead})
    migration.bring_up(conn)
    relations.commit_step(conn)
    with _source_snapshot(url, conn, KEPT, owner) as source:
        # an optimistic write can need a second attempt, but the transaction of a move has only one attempt
        tx = WriteTransaction(conn, optimistic=False)
        outcome = importer.copy(tx, source, additional_classes, skip_orphans=skip_orphans)
        # one transaction writes the rows and the stage, so that the stage is never ahead of the rows
        adoption.write(tx.conn, AdoptionRecord(AdoptionStage.ADOPTED, record.revision))
    return outcome


@contextmanager
def _source_snapshot(
    url: str, conn: sa.Connection, prefix: str, owner: ConsumerOwnership
) -> Iterator[StockContent]:
    """Open the tables with this prefix for reading in one snapshot, while ``conn`` moves them."""
    if relations.is_transactional(conn):
        yield read_stock(conn, owner, prefix)
    else:
        # A connection to MySQL cannot write while it streams a result. So a second connection reads the
        # tables. It finds the tables under their new names, because the renames are committed.
        with open_source(url, owner, prefix) as source:
            yield source


def cancel_abandonment(conn: sa.Connection, record: AdoptionRecord) -> None:
    """Undo the renames of an abandonment, and record that the database is adopted."""
    present = relations.table_names(conn)
    relations.rename_tables(conn, {ASIDE + name: name for name in OURS if ASIDE + name in present})
    adoption.write(conn, AdoptionRecord(AdoptionStage.ADOPTED, record.revision))
    relations.commit_step(conn)


def restore_stock(conn: sa.Connection, prefix: str = "") -> None:
    """Remove our tables, and give the kept tables of OpenStack Placement their old names.

    :param prefix: prefix of the names of our tables.
    """
    present = relations.table_names(conn)
    relations.drop_tables(
        conn,
        (prefix + name for name in OURS if prefix + name in present) if prefix else own_table_names(present),
    )
    relations.rename_tables(conn, {KEPT + name: name for name in STOCK if KEPT + name in present})
    adoption.remove(conn)


def own_table_names(present: Collection[str]) -> list[str]:
    """Return the names in ``present`` that belong to our tables.

    Some of our tables have the same names as tables of OpenStack Placement. A table with such a name is ours
    if the table of OpenStack Placement is kept under its name with the prefix.
    """
    return [name for name in OURS if name in present and (name not in STOCK or KEPT + name in present)]


def count_kept_rows(url: str) -> dict[str, int]:
    """Return the numbers of rows of the kept tables of OpenStack Placement, in order of the tables' names.

    :raises Conflict: the database was not adopted, or an adoption or abandonment is not complete.
    """
    with migration.exclusive_connection(url) as conn:
        _adoption_record(conn)
        return {
            name: conn.execute(sa.select(sa.func.count()).select_from(sa.table(name))).scalar_one()
            for name in sorted(_kept_names(conn))
        }


def drop_stock(url: str) -> Sequence[str]:
    """Remove the kept tables of OpenStack Placement for good; return their names.

    :raises Conflict: as for :func:`count_kept_rows`. The database is then unchanged.
    :raises Unavailable: the database does not answer, or another program uses one of the tables.
    """
    with migration.exclusive_connection(url) as conn:
        record = _adoption_record(conn)
        names = _kept_names(conn)
        relations.require_rights(conn, names)
        relations.lock_tables(conn, names)
        # the removal is recorded before the first table is removed, because an abandonment is impossible
        # afterwards
        adoption.write(conn, replace(record, stage=AdoptionStage.DROPPING))
        relations.commit_step(conn)
        relations.drop_tables(conn, names)
        adoption.remove(conn)
        return sorted(names)


def _adoption_record(conn: sa.Connection) -> AdoptionRecord:
    found = migration.state_of(conn)
    if found.record is None:
        raise Conflict(
            "The database was not adopted from OpenStack Placement, or its old tables were removed already:"
            " there is nothing to remove."
        )
    if found.record.stage in (AdoptionStage.ADOPTING, AdoptionStage.ABANDONING):
        raise Conflict(adoption.explain_adoption(found.revision, found.record) or "")
    return found.record


def _kept_names(conn: sa.Connection) -> list[str]:
    """Return the kept tables, each before the tables that its foreign keys refer to."""
    kept = {KEPT + name for name in STOCK}
    ordered = (name for name, _ in sa.inspect(conn).get_sorted_table_and_fkc_names() if name is not None)
    return [name for name in reversed(list(ordered)) if name in kept]
