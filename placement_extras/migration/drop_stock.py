"""Removing the tables of OpenStack Placement that an adoption has kept.

PostgreSQL and SQLite do it in one transaction. On MySQL, where some may be gone already when it is
interrupted, a row tells so, and doing it again removes the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from placement.db import adoption, migration
from placement.db.adoption import KEPT, AdoptionRecord, AdoptionStage
from placement.exceptions import Conflict
from placement_extras.migration import relations, rights
from placement_extras.migration.adopt import STOCK


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
        rights.require(conn, names)
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
