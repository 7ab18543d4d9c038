"""Locks, renames and removes tables with their indexes and sequences, on each kind of database.

The module also checks that the database user has the rights that a move needs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import sqlalchemy as sa
from sqlalchemy import exc

from placement.db import errors
from placement.exceptions import Conflict, Unavailable

# this query finds those of the named tables that the current user does not own, because only the owner of a
# table is allowed to rename it
_FOREIGN_TABLES: Final = sa.text(
    "SELECT c.relname FROM pg_class c"
    " WHERE c.oid IN (SELECT to_regclass(name) FROM unnest(CAST(:names AS text[])) AS name)"
    " AND NOT pg_has_role(c.relowner, 'USAGE') ORDER BY c.relname"
)
_MAY_CREATE: Final = sa.text("SELECT current_schema(), has_schema_privilege(current_schema(), 'CREATE')")

# RENAME TABLE needs the rights ALTER and DROP for the old name, and CREATE and INSERT for the new name
_NEEDED_RIGHTS: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER", "INDEX")
# this query returns rights on the whole server, then rights on the database. The server stores the name of a
# database as a pattern for LIKE.
_GRANTED_RIGHTS: Final = sa.text(
    "SELECT privilege_type FROM information_schema.user_privileges"
    " WHERE grantee = :me OR grantee LIKE '%PUBLIC%'"
    " UNION SELECT privilege_type FROM information_schema.schema_privileges"
    " WHERE (grantee = :me OR grantee LIKE '%PUBLIC%') AND DATABASE() LIKE table_schema"
)
_ENABLED_ROLES: Final = sa.text(
    "SELECT COUNT(*) FROM information_schema.enabled_roles WHERE role_name IS NOT NULL"
)


def require_rights(conn: sa.Connection, tables: Iterable[str]) -> None:
    """Raise Conflict if the user lacks a right to rename, remove and create tables."""
    if conn.dialect.name == "sqlite":
        return  # SQLite has no users; if the file cannot be written, the first statement fails
    is_postgresql = conn.dialect.name == "postgresql"
    missing = list(_missing_on_postgresql(conn, list(tables)) if is_postgresql else _missing_on_mysql(conn))
    if missing:
        raise Conflict(
            f"The database user {conn.engine.url.username} lacks rights that a move needs:"
            f" {'; '.join(missing)}. Nothing is changed. Grant them, or give the command a --config-file"
            " with a [placement_database] connection of a user with these rights."
        )


def _missing_on_postgresql(conn: sa.Connection, tables: list[str]) -> Iterator[str]:
    others = list(conn.execute(_FOREIGN_TABLES, {"names": tables}).scalars())
    if others:
        yield f"it does not own {', '.join(others)}"
    schema, may_create = conn.execute(_MAY_CREATE).one()
    if not may_create:
        yield f"it may not CREATE in the schema {schema}"


def _missing_on_mysql(conn: sa.Connection) -> Iterator[str]:
    """Yield the rights that the user of a MySQL database lacks; nothing for a user with a role."""
    try:
        # the rights of a role cannot be read here, so the move begins without this check
        if conn.execute(_ENABLED_ROLES).scalar_one():
            return
        # current_user() returns the account that the server has chosen, such as user@%. The last @ separates
        # user and host, because the name of a user can contain an @.
        user, _, host = conn.execute(sa.select(sa.func.current_user())).scalar_one().rpartition("@")
        granted = set(conn.execute(_GRANTED_RIGHTS, {"me": f"'{user}'@'{host}'"}).scalars())
    except (exc.ProgrammingError, exc.OperationalError):
        return  # the server hides the tables of rights; if a right is missing, the move fails and is undone
    if lacking := [right for right in _NEEDED_RIGHTS if right not in granted]:
        yield f"it lacks {', '.join(lacking)}"


_MAX_NAME: Final = 63  # maximum number of bytes of a name in PostgreSQL, which cuts longer names
# no request of the service takes so long; a longer transaction hangs, or belongs to another program
_LOCK_SECONDS: Final = 60
_LOCK_TRY_SECONDS: Final = 5
"""Maximum seconds of one attempt to lock all tables. Another program can use one of the tables in a
transaction, and at the same time wait on a second connection for a table that is locked here. The database
does not detect this deadlock. So each failed attempt releases its locks.
"""

# this query finds the indexes of a table, and the sequences that its columns own ('a' and 'i': automatic and
# internal dependencies)
_BELONGINGS: Final = sa.text(
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
    """Return whether a rollback undoes renames and removals of tables. MySQL commits these at once."""
    return conn.dialect.name in ("sqlite", "postgresql")


def table_names(conn: sa.Connection) -> set[str]:
    """Return the names of all tables in the database."""
    return set(sa.inspect(conn).get_table_names())


def lock_tables(conn: sa.Connection, tables: Iterable[str]) -> None:
    """Lock tables against reads and writes until the transaction ends.

    Only PostgreSQL needs these locks: a transaction of SQLite locks the whole file, and on MySQL
    :func:`rename_tables` itself waits for other transactions.

    :raises Unavailable: another transaction uses a table for longer than 60 seconds.
    """
    if conn.dialect.name != "postgresql":
        return
    names = ", ".join(_quote_name(conn, table) for table in tables)
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            with conn.begin_nested():  # if an attempt fails, the rollback to this savepoint frees its locks
                conn.exec_driver_sql(f"SET LOCAL lock_timeout = '{_LOCK_TRY_SECONDS}s'")
                conn.exec_driver_sql(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE")
                conn.exec_driver_sql(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
                return
        except exc.DBAPIError as error:
            if not errors.is_conflict(error):
                raise
            if time.monotonic() >= until:
                raise _busy_error() from error


def rename_tables(conn: sa.Connection, names: Mapping[str, str]) -> None:
    """Rename all given tables; if this fails, rename none of them.

    When PostgreSQL renames a table, the indexes and sequences of the table keep their names. This function
    gives them the same prefix as the table, because tables that are created later have indexes with these
    names.

    :param names: the new name of each table, by its old name.
    :raises Unavailable: another program uses one of the tables.
    """
    if not names:
        return
    if is_transactional(conn):
        for old, new in names.items():
            if conn.dialect.name == "postgresql":
                _rename_belongings(conn, old, new)
            conn.exec_driver_sql(f"ALTER TABLE {_quote_name(conn, old)} RENAME TO {_quote_name(conn, new)}")
        return
    # one statement renames all tables, so MySQL renames either all tables or no table
    pairs = ", ".join(f"{_quote_name(conn, old)} TO {_quote_name(conn, new)}" for old, new in names.items())
    _execute_patiently(conn, f"RENAME TABLE {pairs}")


def drop_tables(conn: sa.Connection, tables: Iterable[str]) -> None:
    """Remove tables.

    No table outside of ``tables`` is allowed to refer to them. A table has to come before the tables that it
    refers to.

    :raises Unavailable: another program uses one of the tables.
    """
    names = [_quote_name(conn, table) for table in tables]
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
    # MySQL refuses to remove a table that another table refers to, even if one statement removes both tables
    conn.exec_driver_sql("SET SESSION foreign_key_checks = 0")
    try:
        _execute_patiently(conn, statement)
    finally:
        if not conn.invalidated:  # after a lost connection, there is no session to restore
            conn.exec_driver_sql("SET SESSION foreign_key_checks = 1")


def _execute_patiently(conn: sa.Connection, statement: str) -> None:
    """Execute a statement on MySQL. The statement waits at most 60 seconds for other transactions."""
    conn.exec_driver_sql(f"SET SESSION lock_wait_timeout = {_LOCK_SECONDS}")
    try:
        conn.exec_driver_sql(statement)
    except exc.DBAPIError as error:
        if errors.is_conflict(error):
            raise _busy_error() from error
        raise


def commit_step(conn: sa.Connection) -> None:
    """Commit a step of a move on MySQL. On other databases, the whole move is one transaction."""
    if not is_transactional(conn):
        conn.exec_driver_sql("COMMIT")


def _rename_belongings(conn: sa.Connection, old: str, new: str) -> None:
    for name, kind in conn.execute(_BELONGINGS, {"name": old}).all():
        # the index or sequence gets the prefix that the table gets, or loses the prefix that the table loses
        if new.endswith(old):
            changed = new.removesuffix(old) + name
        else:
            changed = name.removeprefix(old.removesuffix(new))
        if changed == name or len(changed) > _MAX_NAME:
            continue  # PostgreSQL would cut a longer name, and two long names could become equal
        what = "SEQUENCE" if kind == "S" else "INDEX"
        conn.exec_driver_sql(f"ALTER {what} {_quote_name(conn, name)} RENAME TO {_quote_name(conn, changed)}")


def _quote_name(conn: sa.Connection, name: str) -> str:
    return conn.dialect.identifier_preparer.quote_identifier(name)


def _busy_error() -> Unavailable:
    return Unavailable(
        f"Another program has kept tables of the database in use for {_LOCK_SECONDS} seconds;"
        " nothing is changed. Stop all services and programs that use it, then repeat the command."
    )
