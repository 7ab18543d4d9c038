"""Migrates the schema to the newest revision.

If several migrations are started at the same time, they run one after the other.

Each service and command compares the revision of its database with the revisions that this version knows.
For this comparison, Alembic would import every migration, which would take a third of the time of a start. So
only migrations use Alembic (:mod:`placement.db.schema_scripts`).
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from sqlalchemy import exc

from placement.db import adoption, buckets, engine, errors, migration_lock, sqlite_file
from placement.db.batch import StatementBatch
from placement.db.engine import WHOLE_DATABASE, PoolOptions
from placement.db.tables import ExtensionTables, change_buckets, extension_tables, resource_providers
from placement.exceptions import Unavailable

LOG = logging.getLogger(__name__)

_LOCKING: Final = ("postgresql", "sqlite")
"""Kinds of databases in which the transaction of a migration can lock out other migrations.

PostgreSQL has an advisory lock for this, and SQLite a write lock.
"""
_LOCK_ID: Final = 0x706C6163  # of PostgreSQL's advisory lock
# perhaps another process is migrating a large database
_LOCK_TIMEOUT: Final = 600

EXACT: Final = frozenset({"0001", "0002"})
"""Revisions of old releases. These releases cannot work with any later revision."""

_DIGITS: Final = "[0-9]" * 4
VERSION_TABLE: Final = "alembic_version"
"""Name of the table in which Alembic records the revision of the core's tables."""


def script_location() -> Path:
    """Return the folder of the migrations, which is a part of the installed package."""
    return Path(str(resources.files("placement.db"))) / "migrations"


@cache
def known_revisions(branch: ExtensionTables | None = None) -> frozenset[str]:
    """Return the revisions of the core or of an extension: the first four digits of names of files."""
    folder = script_location() / "versions" if branch is None else branch.revisions
    return frozenset(file.name.partition("_")[0] for file in folder.glob(f"{_DIGITS}_*.py"))


def newest_revision(branch: ExtensionTables | None = None) -> str | None:
    """Return the revision that this version needs for the tables of the core or of an extension."""
    return max(known_revisions(branch), default=None)


def read_revisions(conn: sa.Connection, branch: ExtensionTables | None = None) -> Sequence[str]:
    """Return the recorded revisions: none or one, or several if another program has written to the table."""
    name = VERSION_TABLE if branch is None else branch.version_table
    if not sa.inspect(conn).has_table(name):
        return ()
    table = sa.table(name, sa.column("version_num"))
    return conn.execute(sa.select(table.c.version_num)).scalars().all()


@dataclass(frozen=True, slots=True)
class FoundDatabase:
    """The state of a database.

    :param revision: the revision of the database's schema; None if the database was never migrated.
    :param record: the record of a takeover from OpenStack Placement, if there was one.
    :param branches: for each extension, the revision of its tables; None if they do not exist.
    """

    revision: str | None
    record: adoption.AdoptionRecord | None = None
    branches: Mapping[ExtensionTables, str | None] = field(default_factory=dict)


def find_database(url: str) -> FoundDatabase:
    """Return the state of the database at a URL; raise Unavailable if it records several revisions."""
    with _own_connection(url, "AUTOCOMMIT", PoolOptions()) as conn:
        return state_of(conn)


def state_of(conn: sa.Connection) -> FoundDatabase:
    """Return the state of a connection's database; raise Unavailable if it records several revisions."""
    revisions = read_revisions(conn)
    if len(revisions) > 1:
        raise Unavailable(
            f"The table alembic_version of the database has {len(revisions)} rows ({', '.join(revisions)}),"
            " not one: a backup was restored over it, or another program wrote to it. Restore a "
            "backup"
            " into an empty database."
        )
    branches = {each: next(iter(read_revisions(conn, each)), None) for each in extension_tables()}
    return FoundDatabase(next(iter(revisions), None), adoption.find_record(conn), branches)


def version(url: str) -> str | None:
    """Return the revision of the database; None if it was never migrated."""
    return find_database(url).revision


def find_obstacle(found: FoundDatabase) -> str | None:
    """Return the reason, with the remedy, why this version cannot work with a database; None if it can.

    Revisions are numbers of four digits. As long as the first digit stays the same, migrations only add to
    the schema. Each version, except those with a revision in :data:`EXACT`, works with the additions of later
    versions. So services of two versions can share one database, and an operator can go back to the older
    version. A migration that removes something from the schema increments the first digit. The same rules
    apply to the revisions of each extension's tables.
    """
    reasons = (_branch_obstacle(branch, present) for branch, present in found.branches.items())
    return _core_obstacle(found) or next(filter(None, reasons), None)


def _core_obstacle(found: FoundDatabase) -> str | None:
    ours, present = newest_revision(), found.revision
    if (reason := adoption.explain_adoption(present, found.record)) is not None:
        return reason
    if present == ours:
        return None
    if present is None or present in known_revisions():
        state = "has no schema yet" if present is None else f"is at revision {present}"
        return f"The database {state}, this version needs {ours}: run 'placement-manage db sync'."
    if ours is None or not adoption.is_ours(present) or present < ours:
        return (
            f"The database is at revision {present}, which this service does not have: the database"
            " belongs to another program. Set [placement_database] connection to a database of this"
            " service. 'placement-manage import' reads a database of OpenStack Placement."
        )
    if present[0] != ours[0]:
        return (
            f"The database is at revision {present} of a later version, which this one ({ours}) cannot work"
            " with: run that version, or restore the backup from before its 'placement-manage db sync'."
        )
    return None


def _branch_obstacle(branch: ExtensionTables, present: str | None) -> str | None:
    ours = newest_revision(branch)
    if present is None or (present != ours and present in known_revisions(branch)):
        state = "are not there yet" if present is None else f"are at revision {present}"
        return (
            f"The tables of {branch.name} {state}, this version needs {ours}: run 'placement-manage db sync'."
        )
    if ours is None or present[0] != ours[0]:
        return (
            f"The tables of {branch.name} are at revision {present} of a later version, with which this one"
            f" ({ours}) cannot work: run that version, or restore the backup from before its"
            " 'placement-manage db sync'."
        )
    return None


def require_schema(url: str) -> str | None:
    """Check that this version can work with a database; return the revision of the database.

    :raises Unavailable: the database does not answer, or its schema does not suit this version. The message
        has the remedy.
    """
    with _own_connection(url, "AUTOCOMMIT", PoolOptions()) as conn:
        found = state_of(conn)
        reason = find_obstacle(found)
        if reason is None and sa.inspect(conn).has_table(change_buckets.name):
            # a worker stops here if rows are missing, because each of its writes would fail with a stamp of
            # NULL
            reason = buckets.explain_missing(_listed_buckets(conn))
    if reason is not None:
        raise Unavailable(reason)
    return found.revision


def upgrade_schema(url: str, revision: str = "head") -> None:
    """Migrate the database to a revision. While one process migrates, other processes wait.

    A database that a later version has migrated stays unchanged.

    :raises Unavailable: the database does not answer, or this version cannot work with its content.
    """
    with exclusive_connection(url) as conn:
        present = state_of(conn)
        if (reason := adoption.explain_adoption(present.revision, present.record)) is not None:
            raise Unavailable(reason)
        bring_up(conn, revision)


def bring_up(conn: sa.Connection, revision: str = "head") -> None:
    """Migrate a database as :func:`upgrade_schema` does, on a connection of :func:`exclusive_connection`.

    If ``revision`` is "head", the tables of extensions are also migrated to their newest revisions.
    """
    present = state_of(conn)
    _bring_up_core(conn, revision, present)
    for branch, before in present.branches.items() if revision == "head" else ():
        if before is None or before in known_revisions(branch):
            _run_scripts(conn, "head", before, branch)
        elif (reason := _branch_obstacle(branch, before)) is not None:
            raise Unavailable(reason)


def _run_scripts(
    conn: sa.Connection, revision: str, before: str | None, branch: ExtensionTables | None = None
) -> None:
    if revision == "head" and before == newest_revision(branch):
        return
    from placement.db import schema_scripts

    schema_scripts.upgrade_tables(conn, script_location(), revision, branch)


def _bring_up_core(conn: sa.Connection, revision: str, present: FoundDatabase) -> None:
    before = present.revision
    if before is not None and before not in known_revisions():
        if (reason := _core_obstacle(present)) is not None:
            raise Unavailable(reason)
        LOG.info(
            "The database is at revision %s, which a later version of this service made; nothing is changed",
            before,
        )
        return
    _run_scripts(conn, revision, before)
    missing = buckets.missing_buckets(_listed_buckets(conn))
    if missing:
        _add_buckets(conn, missing)
    # migrations can change rows without incrementing a counter, so workers have to read everything again
    if missing or state_of(conn).revision != before:
        batch = StatementBatch(conn)
        buckets.renew_epoch(batch)
        batch.send()


def _listed_buckets(conn: sa.Connection) -> set[int]:
    return set(conn.execute(sa.select(change_buckets.c.id)).scalars())


def _add_buckets(conn: sa.Connection, missing: Sequence[int]) -> None:
    """Insert missing rows of buckets. Their counters begin at the highest stamp of their providers."""
    p = resource_providers.c
    stamps = sa.select(p.bucket, sa.func.max(p.change_seq)).group_by(p.bucket)
    # the counters continue from the highest stamps, because workers ignore changes with smaller stamps
    last: dict[int, int] = {bucket: stamp for bucket, stamp in conn.execute(stamps)}  # noqa: C416  # no pairs
    conn.execute(
        sa.insert(change_buckets),
        [{"id": bucket, "counter": last.get(bucket, 0), "deletions": 0} for bucket in missing],
    )


def stamp_revision(url: str, revision: str) -> None:
    """Record that the database has this revision, without migrating it.

    :raises Unavailable: the database belongs to OpenStack Placement, or does not answer.
    """
    with exclusive_connection(url) as conn:
        present = state_of(conn)
        if present.revision in adoption.REVISIONS and (reason := find_obstacle(present)) is not None:
            raise Unavailable(reason)
        from placement.db import schema_scripts

        schema_scripts.stamp_tables(conn, script_location(), revision)


@contextmanager
def exclusive_connection(url: str) -> Iterator[sa.Connection]:
    """Open the transaction of a migration. Only one process at a time has such a transaction."""
    # statements have no time limit here, because a migration can rewrite large tables
    options = replace(WHOLE_DATABASE, lock_timeout=_LOCK_TIMEOUT)
    with _own_connection(url, "READ COMMITTED", options) as connection:
        conn = connection.execution_options(**{engine.WRITES: True})
        kind = conn.dialect.name
        locked = (
            nullcontext() if kind in _LOCKING else migration_lock.hold_lock(conn.engine, conn, _LOCK_TIMEOUT)
        )
        with locked, conn.begin():
            if kind == "postgresql":
                conn.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_ID)))
            yield conn


@contextmanager
def _own_connection(url: str, isolation_level: str, options: PoolOptions) -> Iterator[sa.Connection]:
    """Open a connection for one operation; errors about an unavailable database become Unavailable."""
    source = engine.create_engine(url, isolation_level, options)
    # the error of SQLite itself ("unable to open database file") shows neither the file nor the reason
    if (reason := sqlite_file.file_obstacle(url)) is not None:
        raise Unavailable(f"The database is not available: {reason}")
    try:
        with source.connect() as conn:
            yield conn
    except exc.SQLAlchemyError as error:
        if errors.is_conflict(error) or errors.is_unavailable(error):
            raise Unavailable(f"The database is not available: {errors.explain_error(error)}") from error
        raise
    finally:
        source.dispose()
