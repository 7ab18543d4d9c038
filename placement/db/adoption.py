"""The row in a database that records its takeover from OpenStack Placement, or its return to it."""

import re
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import sqlalchemy as sa

REVISIONS: Final = ("b4ed3a175331", "611cd6dffd7b", "b5c396305c25", "422ece571366", "a082b8bb98d0")
"""The revisions of OpenStack Placement's own schema, from Stein (1.0.0) to 2026.1 (16.0.0)."""

KEPT: Final = "stock_"
"""The prefix that OpenStack Placement's tables get when a takeover renames them."""


CARRIED: Final = "carried"
"""The value of ``way`` for a return to OpenStack Placement that has already copied all data. Such a return
can only be completed, and not be undone.
"""


class AdoptionStage(StrEnum):
    """The progress of a takeover from OpenStack Placement, or of the return to it.

    MySQL cannot rename tables in a transaction, so a failure can interrupt a takeover between two stages.
    """

    ADOPTING = "adopting"
    ADOPTED = "adopted"
    ABANDONING = "abandoning"
    DROPPING = "dropping"
    """The takeover is complete, and the old tables are being removed. Perhaps some are already missing."""


_record: Final = sa.Table(
    f"{KEPT}adoption",
    sa.MetaData(),
    sa.Column("stage", sa.String(32), nullable=False),
    # the way in which a return treats changes since the takeover
    sa.Column("way", sa.String(32), nullable=False),
    sa.Column("revision", sa.String(32), nullable=False),
    sa.Column("changed_at", sa.Double, nullable=False),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)


@dataclass(frozen=True, slots=True)
class AdoptionRecord:
    """The only row about a takeover from OpenStack Placement. It exists as long as the old tables are kept.

    :param way: the way in which a return treats changes since the takeover; empty if no return has begun.
    :param revision: the schema revision of the old tables.
    """

    stage: AdoptionStage
    revision: str
    way: str = ""


def find_record(conn: sa.Connection) -> AdoptionRecord | None:
    """Return the record of a takeover; None if the database was not taken over."""
    if not sa.inspect(conn).has_table(_record.name):
        return None
    row = conn.execute(sa.select(_record)).first()
    return None if row is None else AdoptionRecord(AdoptionStage(row.stage), row.revision, row.way)


def write(conn: sa.Connection, record: AdoptionRecord) -> None:
    """Insert or replace the record of a takeover."""
    _record.create(conn, checkfirst=True)
    values = {
        "stage": record.stage.value,
        "way": record.way,
        "revision": record.revision,
        "changed_at": time.time(),
    }
    # the table has at most one row, so the update has no condition
    if not conn.execute(sa.update(_record).values(values)).rowcount:
        conn.execute(sa.insert(_record).values(values))


def remove(conn: sa.Connection) -> None:
    """Delete the record of a takeover."""
    _record.drop(conn, checkfirst=True)


def explain_adoption(present: str | None, record: AdoptionRecord | None) -> str | None:
    """Return the reason, with the remedy, why this service cannot use the database; None if it can."""
    if record is not None and record.stage is AdoptionStage.ADOPTING:
        return (
            "The adoption of this database from OpenStack Placement is not complete: 'placement-manage db"
            " adopt' continues it, 'placement-manage db abandon' goes back."
        )
    if record is not None and record.stage is AdoptionStage.ABANDONING:
        stay = "" if record.way == CARRIED else ", 'placement-manage db adopt' stays with this service"
        return (
            "The return of this database to OpenStack Placement is not complete: 'placement-manage db"
            f" abandon' continues it{stay}."
        )
    if present in REVISIONS:
        return (
            f"The database is that of OpenStack Placement (revision {present}). Stop that service, then"
            " run 'placement-manage db adopt', which takes everything over and keeps the old tables, or"
            " set [placement_database] adopt = true, so that 'placement-manage db sync' does the same. To"
            " keep that database unchanged, set [placement_database] connection to another database;"
            " 'placement-manage import' fills that one."
        )
    return None


def is_ours(revision: str) -> bool:
    """Return whether a schema revision belongs to this service, that is, whether it has four digits."""
    return re.fullmatch("[0-9]{4}", revision) is not None
