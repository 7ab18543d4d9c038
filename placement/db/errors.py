"""Classifies errors of databases, and explains them to operators.

If a transaction fails because of another transaction (:func:`is_conflict`), it can succeed when it runs
again. If the database is unavailable (:func:`is_unavailable`), the same request can succeed later. Two kinds
of errors are caused by the request: too many parameters (:func:`is_too_much`), and a value that no column can
store (``DataError``). Every other error is caused by a wrong statement, which is a defect of this service.
The function :func:`explain_error` returns the error message of the database with a remedy.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import URL

from placement.optional_packages import how_to_install

# SQLSTATEs of PostgreSQL for: serialisation failure, deadlock, lock not available, missing prepared
# statement, transaction idle for too long
_SQLSTATES: Final = {"40001", "40P01", "55P03", "26000", "25P03"}
_MYSQL_CODES: Final = {1020, 1205, 1213}  # error numbers for: record changed, lock wait timeout, deadlock

_READ_ONLY: Final = "25006"  # SQLSTATE of a server that is a standby, or read-only
_MYSQL_ELSEWHERE: Final = {1047, 1290, 1836}  # the node is outside of its cluster, or the server is read-only
_LIMITS_OF_STATEMENTS: Final = "54"  # class of SQLSTATEs, such as: too complex, too many columns

_OWN_FAULT: Final = {"23502", "23514", 1048, 3819, "SQLITE_CONSTRAINT_NOTNULL", "SQLITE_CONSTRAINT_CHECK"}
"""Integrity errors that no other transaction can cause: a missing value, or a value that a check refuses."""

_NO_TABLE: Final = "42P01"
_MYSQL_NO_TABLE: Final = 1146

_SQLITE_ERROR: Final = 1  # result code "SQL error or missing database": the statement is wrong
_SQLITE_PRIMARY: Final = 0xFF  # this mask selects the bits of the primary code in an extended result code

_MYSQL_CLIENT: Final = range(2000, 3000)  # errors of a connection that cannot be made, or that broke
_MYSQL_UNABLE: Final = {
    # the user is not allowed to connect, or there are too many connections
    *(1040, 1042, 1043, 1044, 1045, 1049, 1129, 1130, 1203, 1226),
    # the server shuts down, or a node of a cluster is not ready
    *(1047, 1053, 1077, 1078, 1079, 1080),
    # the connection breaks
    *(1152, 1154, 1156, 1157, 1158, 1159, 1160, 1161, 1184, 1189, 1190, 1927, 4031),
    # the server has no memory, or fails with files, disks or commits
    *(1015, 1016, 1021, 1030, 1037, 1038, 1041, 1114, 1180, 1181, 1206),
    # the server is read-only, or the table was migrated meanwhile
    *(1036, 1223, 1290, 1412, 1792, 1836),
    # the statement took too long, or the server ended it
    *(1317, 1969, 3024),
    # a node of a cluster refuses the commit
    *(3100, 3101),
}
"""Error numbers of MySQL and MariaDB which mean that the server cannot work at the moment. The numbers are
needed, because the driver also reports wrong statements as operational errors, and reports no SQLSTATE.
"""


class WrongServer(exc.DisconnectionError):
    """The server that answers does not accept writes: it is a standby, or is read-only."""


def of_driver(dialect: sa.Dialect, error: Any, connection: Any) -> exc.DBAPIError:
    """Convert an error of the driver to SQLAlchemy's exception, for statements not executed by SQLAlchemy.

    :param connection: the driver's connection, to find out whether it is lost; None without a connection.
    """
    base = dialect.loaded_dbapi.Error
    lost = is_elsewhere(error) or dialect.is_disconnect(error, connection, None)
    made = exc.DBAPIError.instance(None, None, error, base, dialect=dialect, connection_invalidated=lost)
    # the type checker does not know that instance() wraps all errors of the driver
    assert isinstance(made, exc.DBAPIError)
    return made


def is_elsewhere(original: BaseException | None) -> bool:
    """Return whether an error means that a connection, which works and would be kept, has a wrong server."""
    if isinstance(original, WrongServer):
        return True
    return getattr(original, "sqlstate", None) == _READ_ONLY or mysql_code(original) in _MYSQL_ELSEWHERE


def is_missing_table(error: BaseException) -> bool:
    """Return whether a table is missing, because the database was not migrated or the table was removed."""
    if not isinstance(error, exc.DBAPIError):
        return False
    original: Any = error.orig
    if getattr(original, "sqlstate", None) == _NO_TABLE or mysql_code(original) == _MYSQL_NO_TABLE:
        return True
    return getattr(original, "sqlite_errorcode", None) == _SQLITE_ERROR and "no such table" in str(original)


def is_conflict(error: BaseException) -> bool:
    """Return whether another transaction has caused the failure, so that another attempt can succeed."""
    if not isinstance(error, exc.DBAPIError):
        return False
    original: Any = error.orig
    sqlstate, code = getattr(original, "sqlstate", None), mysql_code(original)
    if isinstance(error, exc.IntegrityError):
        return _OWN_FAULT.isdisjoint({sqlstate, code, getattr(original, "sqlite_errorname", None)})
    return sqlstate in _SQLSTATES or code in _MYSQL_CODES or "database is locked" in str(original)


def is_too_much(error: BaseException) -> bool:
    """Return whether a statement had more parameters than the database allows."""
    return isinstance(error, exc.DBAPIError) and any(
        words in str(error.orig)
        # SQLite and psycopg report this error only with these texts, and not with a code
        for words in ("too many SQL variables", "number of parameters must be between")
    )


def is_timeout(error: BaseException) -> bool:
    """Return whether the error is a timeout: the database has neither answered nor refused the connection."""
    original = error.orig if isinstance(error, exc.DBAPIError) else error
    # our own code sets __cause__. PyMySQL raises its error while it handles the TimeoutError, which is then
    # the __context__.
    return original is not None and isinstance(original.__cause__ or original.__context__, TimeoutError)


def is_unavailable(error: BaseException) -> bool:
    """Return whether the connection is lost, or the database cannot execute any statement at the moment."""
    if isinstance(error, exc.DBAPIError):
        return error.connection_invalidated or _is_unable(error)
    # these errors mean that the pool had no free connection in time, that each new connection was broken, or
    # that the connection of the transaction was lost earlier
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
    # errors of MySQL do not come here. Internal errors of PostgreSQL and SQLite are defects of this service,
    # such as a statement in a failed transaction.
    if isinstance(error, exc.InternalError):
        return False
    if (sqlite_code := getattr(original, "sqlite_errorcode", None)) is not None:
        return bool(sqlite_code & _SQLITE_PRIMARY != _SQLITE_ERROR)
    # operational errors of psycopg are about the connection or the server, except errors about limits of
    # statements
    return not (sqlstate or "").startswith(_LIMITS_OF_STATEMENTS)


def mysql_code(original: Any) -> int | None:
    """Return the number of an error from MySQL, MariaDB or their driver; None for other errors."""
    arguments = getattr(original, "args", ())
    # type() is used instead of isinstance(), because a bool is also an int
    return arguments[0] if arguments and type(arguments[0]) is int else None


_FORBIDDEN: Final = {"42501", 1044, 1142, 1143, 1227, 1370, "SQLITE_READONLY"}
_FULL: Final = {"53100", 1021, 1114, "SQLITE_FULL"}
_FULL_WORDS: Final = ("no space left", "no more room", "errno: 28")
"""Parts of error messages of MySQL and MariaDB about a full disk. The texts are needed, because several error
numbers are used for a full disk.
"""
_SQLITE_IO: Final = "SQLITE_IOERR"

_DRIVERS: Final = {"postgresql": ("psycopg", "postgresql"), "mysql": ("pymysql", "mysql")}
"""For each kind of database, the tested driver, and the extra of the distribution that installs it."""


def explain_error(error: exc.SQLAlchemyError) -> str:
    """Return the error message of the database and a remedy, in one line, without statement and values."""
    return f"{database_words(error)}. {_remedy_for(error)}"


def database_words(error: exc.SQLAlchemyError) -> str:
    """Return the error message of the database in one line."""
    if not isinstance(error, exc.DBAPIError):
        # SQLAlchemy appends a link to its documentation
        words, _, _ = str(error).partition("(Background on")
    else:
        original: Any = error.orig
        numbered = mysql_code(original) is not None and len(original.args) > 1
        words = str(original.args[1] if numbered else original)
    return " ".join(words.split()).rstrip(".")


def _remedy_for(error: exc.SQLAlchemyError) -> str:
    original: Any = error.orig if isinstance(error, exc.DBAPIError) else None
    told = {getattr(original, "sqlstate", None), mysql_code(original), _sqlite_name(original)}
    if told & _FULL or any(words in str(original).lower() for words in _FULL_WORDS):
        return "The disk of the database is full: make room on it, then try again."
    if _SQLITE_IO in told:
        return "Check whether its disk is full or broken, then try again."
    if told & _FORBIDDEN:
        return (
            "The user of the database lacks a right. Make it the owner of the tables, or grant it all"
            " rights on the database; with SQLite, make the file and its folder writable. Then try again."
        )
    if is_conflict(error):
        return "Other programs have locked the tables: stop them, then try again."
    if is_unavailable(error):
        return "Check that the database runs, can be reached and accepts this user, then try again."
    return "The database is another one than expected, or this is a defect: please report it with this line."


def _sqlite_name(original: Any) -> str | None:
    """Return the name of SQLite's primary result code: ``SQLITE_IOERR`` for ``SQLITE_IOERR_SHMSIZE``."""
    name = getattr(original, "sqlite_errorname", None)
    return None if name is None else "_".join(str(name).split("_")[:2])


def missing_driver(url: URL, error: ImportError) -> str:
    """Return the reason why the driver of a URL cannot be imported, with the remedy."""
    backend, driver = url.get_backend_name(), url.get_driver_name()
    known = _DRIVERS.get(backend)
    if known is None:
        return str(error)
    name, extra = known
    if driver == name:
        return f"{error}: to have {name}, {how_to_install(extra)}"
    return (
        f"{error}: write {backend}+{name}:// in place of {url.drivername}://, because the driver of the"
        " latter is not installed"
    )
