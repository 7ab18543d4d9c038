"""Where a database stands, and whose history that is: what a worker compares with what it knew.

Counters alone tell another history by chance only, however small the chance is. So each server is also asked
who it is, in the same question: a PostgreSQL server for its system identifier, its timeline (which every
promotion changes) and the table itself (which a restored dump makes anew); a Galera node for its cluster, any
other MariaDB or MySQL server for itself; and of SQLite's file the system says whether it is still the same.

It is asked for the time, too, by which reservations expire.
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
"""Under this name a pool notes of a connection whose history its server tells."""

_SUM: Final = sa.select(sa.func.sum(change_buckets.c.counter))

_OF_POSTGRESQL: Final = """
SELECT ({sum}), pg_is_in_recovery(), (SELECT system_identifier FROM pg_control_system()),
  CASE WHEN NOT pg_is_in_recovery() THEN substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) END,
  to_regclass('change_buckets')::oid, {clock}
"""
"""Any user may ask for these; "timeline" cannot be asked of a standby."""
#: for servers that keep the rest to themselves, as hosted ones may
_OF_POSTGRESQL_AT_LEAST: Final = (
    "SELECT ({sum}), pg_is_in_recovery(), to_regclass('change_buckets')::oid, {clock}"
)
#: no right to a function, one that is not supported, none of that name
_UNTOLD: Final = {"42501", "0A000", "42883"}
_OF_MYSQL: Final = "SELECT ({sum}), @@global.read_only, {clock}"
_OF_SQLITE: Final = "SELECT ({sum}), {clock}"


@dataclass(frozen=True, slots=True)
class DatabaseVersion:
    """The sum of all change counters, and whose they are. The same as before means that nothing changed.

    ``clock`` is the time of the database then, in seconds since 1970 (UTC).
    """

    total: int
    history: str
    clock: float = field(compare=False)


def question(dialect: sa.Dialect, *, least: bool = False) -> str:
    """The statement whose one row :func:`of_row` takes.

    :param least: for a server that :func:`is_untold` is said of.
    """
    parts = {"sum": _SUM.compile(dialect=dialect), "clock": clock.ServerNow().compile(dialect=dialect)}
    if least and dialect.name == "postgresql":
        return _OF_POSTGRESQL_AT_LEAST.format(**parts)
    of_kind = {"postgresql": _OF_POSTGRESQL, "mysql": _OF_MYSQL, "mariadb": _OF_MYSQL}
    return of_kind.get(dialect.name, _OF_SQLITE).format(**parts)


def is_untold(error: BaseException) -> bool:
    """Whether this error (of the driver) may say that the server does not tell who it is."""
    return getattr(error, "sqlstate", None) in _UNTOLD


def of_row(dialect: sa.Dialect, row: Sequence[Any], noted: str) -> DatabaseVersion:
    """The position that a server tells.

    :param noted: the history that was noted of the connection.
    :raises WrongServer: it is not the one that writes.
    """
    total, others, time = int(row[0] or 0), [_text(value) for value in row[1:-1]], float(row[-1])
    if dialect.name == "postgresql":
        standby, *history = others
        if standby in ("t", "True"):
            raise WrongServer("the server is a standby")
        return DatabaseVersion(total, "/".join(history), time)
    if others and others[0] not in ("0", "OFF"):
        raise WrongServer("the server is read-only")
    return DatabaseVersion(total, noted, time)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else "" if value is None else str(value)


def of_file(path: str | None) -> str:
    """Which file has this name now; empty where there is none."""
    try:
        found = os.stat(path or "")
    except OSError:
        return ""
    return f"{found.st_dev}/{found.st_ino}"


def is_same_file(path: str | None, noted: str) -> bool:
    """Whether the file that was noted when it was opened still has this name.

    :raises sqlite3.OperationalError: no file has; to connect anew would make an empty one.
    """
    present = of_file(path)
    if noted and not present:
        raise sqlite3.OperationalError(f"the file of the database is gone: {path}")
    return present == noted
