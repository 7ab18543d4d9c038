"""What an error of the database means to who asked.

It lost to another transaction (:func:`is_conflict`): run again, it may succeed. The database cannot be asked
now (:func:`is_unavailable`): the same request is answered when it can. The request was too much
(:func:`is_too_much`), or holds what no column does (``DataError``). Everything else is a statement that is
wrong, a defect of ours.
"""

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc

# serialisation, deadlock, lock not available, a prepared statement is gone, too long idle in a transaction
_SQLSTATES: Final = {"40001", "40P01", "55P03", "26000", "25P03"}
_MYSQL_CODES: Final = {1020, 1205, 1213}  # record changed, lock wait timeout, deadlock

_READ_ONLY: Final = "25006"  # the server is a standby, or was made read-only
_MYSQL_ELSEWHERE: Final = {1047, 1290, 1836}  # the node is outside of its cluster; the server is read-only
_LIMITS_OF_STATEMENTS: Final = "54"  # class of sqlstates: too complex, too many columns

_OWN_FAULT: Final = {"23502", "23514", 1048, 3819, "SQLITE_CONSTRAINT_NOTNULL", "SQLITE_CONSTRAINT_CHECK"}
"""No other transaction is to blame for these: a column without its value, a value that a check refuses."""

_NO_TABLE: Final = "42P01"
_MYSQL_NO_TABLE: Final = 1146

_SQLITE_ERROR: Final = 1  # "SQL error or missing database": the statement is wrong
_SQLITE_PRIMARY: Final = 0xFF  # bits of an extended result code

_MYSQL_CLIENT: Final = range(2000, 3000)  # the connection cannot be made, or broke
_MYSQL_UNABLE: Final = {
    # who may come in, and how many
    *(1040, 1042, 1043, 1044, 1045, 1049, 1129, 1130, 1203, 1226),
    # the server goes down, or a node of a cluster is not up
    *(1047, 1053, 1077, 1078, 1079, 1080),
    # the connection breaks
    *(1152, 1154, 1156, 1157, 1158, 1159, 1160, 1161, 1184, 1189, 1190, 1927, 4031),
    # memory, files, disk, commits
    *(1015, 1016, 1021, 1030, 1037, 1038, 1041, 1114, 1180, 1181, 1206),
    # read-only, or migrated meanwhile
    *(1036, 1223, 1290, 1412, 1792, 1836),
    # it took too long, or somebody ended it
    *(1317, 1969, 3024),
    # a cluster refuses a commit
    *(3100, 3101),
}
"""What MySQL and MariaDB say when they cannot work now. The driver takes wrong statements for operational
errors, too, and does not pass the SQLSTATE on."""


class WrongServer(exc.DisconnectionError):
    """Whoever answers is not the server that writes now: a standby, or a primary that was deposed."""


def of_driver(dialect: sa.Dialect, error: Any, connection: Any) -> exc.DBAPIError:
    """An error of the driver as SQLAlchemy would have raised it, which did not see the statement.

    :param connection: that of the driver, to ask whether it is lost; None where there is none any more.
    """
    base = dialect.loaded_dbapi.Error
    lost = is_elsewhere(error) or dialect.is_disconnect(error, connection, None)
    made = exc.DBAPIError.instance(None, None, error, base, dialect=dialect, connection_invalidated=lost)
    assert isinstance(made, exc.DBAPIError)
    return made


def is_elsewhere(original: BaseException | None) -> bool:
    """Whether this error (of the driver) says that another server is to be asked.

    The connection itself is in order, so drivers and pools would keep it.
    """
    if isinstance(original, WrongServer):
        return True
    return getattr(original, "sqlstate", None) == _READ_ONLY or mysql_code(original) in _MYSQL_ELSEWHERE


def is_missing_table(error: BaseException) -> bool:
    """Whether a table is not there: nobody migrated the database, or somebody took it away."""
    if not isinstance(error, exc.DBAPIError):
        return False
    original: Any = error.orig
    if getattr(original, "sqlstate", None) == _NO_TABLE or mysql_code(original) == _MYSQL_NO_TABLE:
        return True
    return getattr(original, "sqlite_errorcode", None) == _SQLITE_ERROR and "no such table" in str(original)


def is_conflict(error: BaseException) -> bool:
    """Whether the same transaction, run again, may well succeed: it lost to another one."""
    if not isinstance(error, exc.DBAPIError):
        return False
    original: Any = error.orig
    sqlstate, code = getattr(original, "sqlstate", None), mysql_code(original)
    if isinstance(error, exc.IntegrityError):
        return _OWN_FAULT.isdisjoint({sqlstate, code, getattr(original, "sqlite_errorname", None)})
    return sqlstate in _SQLSTATES or code in _MYSQL_CODES or "database is locked" in str(original)


def is_too_much(error: BaseException) -> bool:
    """Whether a statement named more things than the database takes in one."""
    return isinstance(error, exc.DBAPIError) and any(
        words in str(error.orig)
        for words in ("too many SQL variables", "number of parameters must be between")
    )


def is_timeout(error: BaseException) -> bool:
    """Whether we gave up waiting for the database, which did not refuse either."""
    original = error.orig if isinstance(error, exc.DBAPIError) else error
    return original is not None and isinstance(original.__cause__ or original.__context__, TimeoutError)


def is_unavailable(error: BaseException) -> bool:
    """Whether the connection is lost, or the database cannot work now, whatever it is asked."""
    if isinstance(error, exc.DBAPIError):
        return error.connection_invalidated or _is_unable(error)
    # No free connection in the pool in time; or each that it made was dead again at once, for which it has
    # no error of its own; or the transaction was gone with its connection, which another error told before.
    return isinstance(error, exc.TimeoutError | exc.DisconnectionError | exc.PendingRollbackError) or (
        isinstance(error, exc.InvalidRequestError) and "connection is closed" in str(error).lower()
    )


def _is_unable(error: exc.DBAPIError) -> bool:
    original: Any = error.orig
    if isinstance(error, exc.InterfaceError):
        return True
    sqlstate = getattr(original, "sqlstate", None)
    if sqlstate == _READ_ONLY:
        return True
    if not isinstance(error, exc.OperationalError | exc.InternalError):
        return False
    if (code := mysql_code(original)) is not None:
        return code in _MYSQL_UNABLE or code in _MYSQL_CLIENT
    if isinstance(error, exc.InternalError):
        return False
    if (sqlite_code := getattr(original, "sqlite_errorcode", None)) is not None:
        return bool(sqlite_code & _SQLITE_PRIMARY != _SQLITE_ERROR)
    return not (sqlstate or "").startswith(_LIMITS_OF_STATEMENTS)


def mysql_code(original: Any) -> int | None:
    """The number of an error of MySQL, MariaDB, or their driver; None for others."""
    arguments = getattr(original, "args", ())
    return arguments[0] if arguments and type(arguments[0]) is int else None
