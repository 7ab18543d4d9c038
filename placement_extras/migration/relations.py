"""Renames tables with all that belongs to them, on each kind of database.

The rights of the database user are checked before a move begins.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import sqlalchemy as sa
from sqlalchemy import exc

from placement.db import errors
from placement.exceptions import Conflict, Unavailable

_OF_SOMEBODY_ELSE: Final = sa.text(
    "SELECT c.relname FROM pg_class c"
    " WHERE c.oid IN (SELECT to_regclass(name) FROM unnest(CAST(:names AS text[])) AS name)"
    " AND NOT pg_has_role(c.relowner, 'USAGE') ORDER BY c.relname"
)
_MAY_CREATE: Final = sa.text("SELECT current_schema(), has_schema_privilege(current_schema(), 'CREATE')")

_NEEDED: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER", "INDEX")
_GRANTED: Final = sa.text(
    "SELECT privilege_type FROM information_schema.user_privileges"
    " WHERE grantee = :me OR grantee LIKE '%PUBLIC%'"
    " UNION SELECT privilege_type FROM information_schema.schema_privileges"
    " WHERE (grantee = :me OR grantee LIKE '%PUBLIC%') AND DATABASE() LIKE table_schema"
)
_ROLES: Final = sa.text("SELECT COUNT(*) FROM information_schema.enabled_roles WHERE role_name IS NOT NULL")


def require(conn: sa.Connection, tables: Iterable[str]) -> None:
    """Check that these tables, where they are there, can be renamed and removed, and others be made.

    Of SQLite nothing is asked: it refuses before anything is done.

    :raises Conflict: they cannot; the message says what is missing.
    """
    if conn.dialect.name == "sqlite":
        return
    is_postgresql = conn.dialect.name == "postgresql"
    missing = list(_of_postgresql(conn, list(tables)) if is_postgresql else _of_mysql(conn))
    if missing:
        raise Conflict(
            f"The user {conn.engine.url.username} of the database may not do all that a move needs:"
            f" {'; '.join(missing)}. Nothing is changed. Grant it that, or give the command a --config-file"
            " with a [placement_database] connection of a user who may."
        )


def _of_postgresql(conn: sa.Connection, tables: list[str]) -> Iterator[str]:
    others = list(conn.execute(_OF_SOMEBODY_ELSE, {"names": tables}).scalars())
    if others:
        yield f"it does not own {', '.join(others)}"
    schema, may_create = conn.execute(_MAY_CREATE).one()
    if not may_create:
        yield f"it may not CREATE in the schema {schema}"


def _of_mysql(conn: sa.Connection) -> Iterator[str]:
    """Rights by way of a role are not looked for: who has one is believed."""
    try:
        if conn.execute(_ROLES).scalar_one():
            return
        user, _, host = conn.execute(sa.select(sa.func.current_user())).scalar_one().rpartition("@")
        granted = set(conn.execute(_GRANTED, {"me": f"'{user}'@'{host}'"}).scalars())
    except (exc.ProgrammingError, exc.OperationalError):
        return  # a server that does not tell
    if lacking := [right for right in _NEEDED if right not in granted]:
        yield f"it lacks {', '.join(lacking)}"


_LONGEST: Final = 63  # bytes in a name of PostgreSQL
_SECONDS: Final = 60  # how long a transaction that has begun may keep a table
_SECONDS_AT_A_TIME: Final = 5
"""Who keeps a table may wait, in another transaction, for one that is locked here already. That does not end,
nor does the database see it, unless what is locked is given back in between."""

_BELONGING: Final = sa.text(
    """
    SELECT c.relname, CAST(c.relkind AS text) FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid
    WHERE i.indrelid = to_regclass(:name)
    UNION ALL
    SELECT s.relname, CAST(s.relkind AS text) FROM pg_class s JOIN pg_depend d ON d.objid = s.oid
    WHERE s.relkind = 'S' AND d.refobjid = to_regclass(:name) AND d.deptype IN ('a', 'i')
    AND d.refclassid = to_regclass('pg_catalog.pg_class')
    """
)


def is_transactional(conn: sa.Connection) -> bool:
    """Whether what is done to tables is undone with the transaction; else each statement commits."""
    return conn.dialect.name in ("sqlite", "postgresql")


def lock(conn: sa.Connection, tables: Iterable[str]) -> None:
    """Have nobody read or write the tables until the transaction ends, and wait for those who do.

    On SQLite, whose transaction locks all there is, and on MySQL, where :func:`rename`
    waits, this does nothing.

    :raises Unavailable: somebody does not give them back.
    """
    if conn.dialect.name != "postgresql":
        return
    names = ", ".join(_quoted(conn, table) for table in tables)
    until = time.monotonic() + _SECONDS
    while True:
        try:
            with conn.begin_nested():  # what it got until it lost is free again
                conn.exec_driver_sql(f"SET LOCAL lock_timeout = '{_SECONDS_AT_A_TIME}s'")
                conn.exec_driver_sql(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE")
                conn.exec_driver_sql(f"SET LOCAL lock_timeout = '{_SECONDS}s'")
                return
        except exc.DBAPIError as error:
            if not errors.is_conflict(error):
                raise
            if time.monotonic() >= until:
                raise _busy() from error


def rename(conn: sa.Connection, names: Mapping[str, str]) -> None:
    """Give tables other names, all at once.

    On PostgreSQL, where names of indexes and sequences are not those of a table, theirs change alike: what
    stands before a name is added to them, or taken from them.

    :raises Unavailable: somebody does not give the tables back.
    """
    if not names:
        return
    if conn.dialect.name in ("sqlite", "postgresql"):
        for old, new in names.items():
            if conn.dialect.name == "postgresql":
                _rename_belongings(conn, old, new)
            conn.exec_driver_sql(f"ALTER TABLE {_quoted(conn, old)} RENAME TO {_quoted(conn, new)}")
        return
    pairs = ", ".join(f"{_quoted(conn, old)} TO {_quoted(conn, new)}" for old, new in names.items())
    _patiently(conn, f"RENAME TABLE {pairs}")


def drop(conn: sa.Connection, tables: Iterable[str]) -> None:
    """Remove tables that refer to each other at most; the ones that others refer to come last.

    :raises Unavailable: somebody does not give them back.
    """
    names = [_quoted(conn, table) for table in tables]
    if not names:
        return
    if conn.dialect.name == "sqlite":
        for name in names:
            conn.exec_driver_sql(f"DROP TABLE {name}")
        return
    statement = f"DROP TABLE {', '.join(names)}"
    if conn.dialect.name == "postgresql":
        conn.exec_driver_sql(statement)
        return
    conn.exec_driver_sql("SET SESSION foreign_key_checks = 0")
    try:
        _patiently(conn, statement)
    finally:
        if not conn.invalidated:  # else the session is gone with its settings, and the error tells why
            conn.exec_driver_sql("SET SESSION foreign_key_checks = 1")


def _patiently(conn: sa.Connection, statement: str) -> None:
    """Execute a statement of MySQL that waits until nobody uses its tables."""
    conn.exec_driver_sql(f"SET SESSION lock_wait_timeout = {_SECONDS}")
    try:
        conn.exec_driver_sql(statement)
    except exc.DBAPIError as error:
        if errors.is_conflict(error):
            raise _busy() from error
        raise


def commit_step(conn: sa.Connection) -> None:
    """End a step that stays done whatever happens next, where there are such steps."""
    if not is_transactional(conn):
        conn.exec_driver_sql("COMMIT")


def _rename_belongings(conn: sa.Connection, old: str, new: str) -> None:
    for name, kind in conn.execute(_BELONGING, {"name": old}).all():
        if new.endswith(old):
            changed = new.removesuffix(old) + name
        else:
            changed = name.removeprefix(old.removesuffix(new))
        if changed == name or len(changed) > _LONGEST:
            continue
        what = "SEQUENCE" if kind == "S" else "INDEX"
        conn.exec_driver_sql(f"ALTER {what} {_quoted(conn, name)} RENAME TO {_quoted(conn, changed)}")


def _quoted(conn: sa.Connection, name: str) -> str:
    return conn.dialect.identifier_preparer.quote_identifier(name)


def _busy() -> Unavailable:
    return Unavailable(
        f"Somebody keeps tables of the database in use for more than {_SECONDS} seconds; nothing is changed."
        " Stop every service and every other program that uses it, then repeat the command."
    )
