"""The version of a database: the sum of its change counters, and the history of these counters.

A history is the sequence of all changes since the database was created or restored. A restored backup begins
another history, which may have equal counters by coincidence. So the query for the counters also reads the
identity of the server:

- for PostgreSQL, the system identifier, the timeline, and the id of the table; every promotion changes the
  timeline, and a restored dump has another id of the table;
- for a Galera node, the id of the cluster; for any other MariaDB or MySQL server, the id of the server;
- for SQLite, the device and inode of the file.

The same query reads the server's clock, by which reservations expire.
"""

import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from placement.db import clock
from placement.db.errors import WrongServer
from placement.db.tables import change_buckets

HISTORY: Final = "placement.history"
"""The key of a connection's history in the notes of the pool."""

_SUM: Final = sa.select(sa.func.sum(change_buckets.c.counter))

_OF_POSTGRESQL: Final = """
SELECT ({sum}), pg_is_in_recovery(), (SELECT system_identifier FROM pg_control_system()),
  CASE WHEN NOT pg_is_in_recovery() THEN substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) END,
  to_regclass('change_buckets')::oid, {clock}
"""
"""The row has the sum of the counters, whether the server is a standby, its system identifier, its timeline,
the id of the table, and the time. Any user may read these values; only a primary server shows a timeline.
"""
#: the query without identity, for servers that do not permit its functions, such as hosted servers
_OF_POSTGRESQL_AT_LEAST: Final = (
    "SELECT ({sum}), pg_is_in_recovery(), to_regclass('change_buckets')::oid, {clock}"
)
#: SQLSTATEs for functions that the user may not call, or that the server does not have
_UNTOLD: Final = {"42501", "0A000", "42883"}
# the identity of a MySQL server does not change during a connection, so mysql.py reads it once
_OF_MYSQL: Final = "SELECT ({sum}), @@global.read_only, {clock}"
_OF_SQLITE: Final = "SELECT ({sum}), {clock}"


@dataclass(frozen=True, slots=True)
class DatabaseVersion:
    """The sum of all change counters, and the id of their history.

    Two equal versions mean that nothing has changed in between. ``clock`` is the time of the database at the
    query, in seconds since 1970 (UTC).
    """

    total: int
    history: str
    clock: float = field(compare=False)


def question_for(dialect: sa.Dialect, *, least: bool = False) -> str:
    """Return the statement that reads the version, as a row for :func:`of_row`.

    :param least: whether the statement leaves out the identity of the server (see :func:`is_untold`).
    """
    parts = {"sum": _SUM.compile(dialect=dialect), "clock": clock.ServerNow().compile(dialect=dialect)}
    if least and dialect.name == "postgresql":
        return _OF_POSTGRESQL_AT_LEAST.format(**parts)
    of_kind = {"postgresql": _OF_POSTGRESQL, "mysql": _OF_MYSQL, "mariadb": _OF_MYSQL}
    return of_kind.get(dialect.name, _OF_SQLITE).format(**parts)


def is_untold(error: BaseException) -> bool:
    """Return whether an error of the driver may mean that the server refuses to show its identity."""
    return getattr(error, "sqlstate", None) in _UNTOLD


def of_row(dialect: sa.Dialect, row: Sequence[Any], noted: str) -> DatabaseVersion:
    """Return the version from the row that a server has returned.

    :param noted: the history that was stored with the connection, for servers other than PostgreSQL.
    :raises WrongServer: the server does not accept writes.
    """
    total, others, time = int(row[0] or 0), [_text(value) for value in row[1:-1]], float(row[-1])
    if dialect.name == "postgresql":
        standby, *history = others
        # "t" is the text of libpq, "True" the text of the Python value of other drivers
        if standby in ("t", "True"):
            raise WrongServer("the server is a standby")
        return DatabaseVersion(total, "/".join(history), time)
    # MySQL returns a number, some releases of MariaDB a word; only 0 and OFF permit writes
    if others and others[0] not in ("0", "OFF"):
        raise WrongServer("the server is read-only")
    return DatabaseVersion(total, noted, time)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else "" if value is None else str(value)


def of_file(path: str | None) -> str:
    """Return the identity of the file with this name; empty if the file does not exist."""
    try:
        found = os.stat(path or "")
    except OSError:
        return ""
    return f"{found.st_dev}/{found.st_ino}"


def is_same_file(path: str | None, noted: str) -> bool:
    """Return whether a file that is open still has this name.

    :raises sqlite3.OperationalError: the file does not exist, and a new connection would create an empty
        file.
    """
    present = of_file(path)
    if noted and not present:
        raise sqlite3.OperationalError(f"the file of the database is gone: {path}")
    return present == noted
