"""Whether the user of the database may do what a move does, before it is begun."""

from collections.abc import Iterable, Iterator
from typing import Final

import sqlalchemy as sa
from sqlalchemy import exc

from placement.exceptions import Conflict

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
