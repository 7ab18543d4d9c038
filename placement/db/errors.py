"""Which database errors pass by themselves."""

from typing import Any, Final

from sqlalchemy import exc

# serialisation, deadlock, lock not available, a prepared statement is gone, too long idle in a transaction
_SQLSTATES: Final = {"40001", "40P01", "55P03", "26000", "25P03"}
_MYSQL_CODES: Final = {1020, 1205, 1213}  # record changed, lock wait timeout, deadlock


def is_transient(error: BaseException) -> bool:
    """Whether the same transaction, run again, may well succeed: it lost to another one."""
    if not isinstance(error, exc.DBAPIError):
        return False
    original: Any = error.orig
    if getattr(original, "sqlstate", None) in _SQLSTATES:
        return True
    arguments = getattr(original, "args", ())
    if arguments and arguments[0] in _MYSQL_CODES:
        return True
    return "database is locked" in str(original)


def is_too_much(error: BaseException) -> bool:
    """Whether a statement named more things than the database takes in one."""
    return isinstance(error, exc.DBAPIError) and any(
        words in str(error.orig)
        for words in ("too many SQL variables", "number of parameters must be between")
    )


def is_silence(error: BaseException) -> bool:
    """Whether we gave up waiting for the database, which did not refuse either."""
    original = error.orig if isinstance(error, exc.DBAPIError) else error
    return original is not None and isinstance(original.__cause__ or original.__context__, TimeoutError)


def is_disconnect(error: BaseException) -> bool:
    """Whether the connection was lost or could not be made."""
    if isinstance(error, exc.TimeoutError):
        return True  # no free connection in the pool in time
    if isinstance(error, exc.DBAPIError):
        return error.connection_invalidated or isinstance(error, exc.OperationalError | exc.InterfaceError)
    return False
