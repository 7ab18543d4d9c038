"""What the database refuses, in words for an operator, and what to do about it."""

from typing import Any, Final

from sqlalchemy import exc
from sqlalchemy.engine import URL

from placement.db import errors
from placement.extras import how_to_install

_FORBIDDEN: Final = {"42501", 1044, 1142, 1143, 1227, 1370, "SQLITE_READONLY"}
_FULL: Final = {"53100", 1021, 1114, "SQLITE_FULL"}
_FULL_WORDS: Final = ("no space left", "no more room", "errno: 28")
"""What MySQL and MariaDB say of a full disk under the numbers of half a dozen errors."""
_SQLITE_IO: Final = "SQLITE_IOERR"

_DRIVERS: Final = {"postgresql": ("psycopg", "postgresql"), "mysql": ("pymysql", "mysql")}
"""By kind of database the driver that is tried here, and the extra of the package that brings it."""


def explain(error: exc.SQLAlchemyError) -> str:
    """What the database said and what to do, in one line, without the statement and its values."""
    return f"{said(error)}. {_remedy(error)}"


def said(error: exc.SQLAlchemyError) -> str:
    """What the database said, in one line."""
    if not isinstance(error, exc.DBAPIError):
        words, _, _ = str(error).partition("(Background on")  # an address of SQLAlchemy's
    else:
        original: Any = error.orig
        numbered = errors.mysql_code(original) is not None and len(original.args) > 1
        words = str(original.args[1] if numbered else original)
    return " ".join(words.split()).rstrip(".")


def _remedy(error: exc.SQLAlchemyError) -> str:
    original: Any = error.orig if isinstance(error, exc.DBAPIError) else None
    told = {getattr(original, "sqlstate", None), errors.mysql_code(original), _sqlite_name(original)}
    if told & _FULL or any(words in str(original).lower() for words in _FULL_WORDS):
        return "There is no room left for the database: make some on its disk, then try again."
    if _SQLITE_IO in told:
        return "Look whether its disk is full or broken, then try again."
    if told & _FORBIDDEN:
        return (
            "The user of the database lacks a right: see that it owns the tables, or was granted all rights"
            " on the database; of SQLite, that the file and its folder can be written. Then try again."
        )
    if errors.is_conflict(error):
        return "Others keep in use what is needed: stop them, then try again."
    if errors.is_unavailable(error):
        return "See that the database runs, can be reached and lets this user in, then try again."
    return "The database is another one than expected, or this is a defect: please report it with this line."


def _sqlite_name(original: Any) -> str | None:
    """The name of SQLite's result code without what follows it, as of ``SQLITE_IOERR_SHMSIZE``."""
    name = getattr(original, "sqlite_errorname", None)
    return None if name is None else "_".join(str(name).split("_")[:2])


def missing_driver(url: URL, error: ImportError) -> str:
    """Why the driver that a URL names cannot be imported, and what to write or to install."""
    backend, driver = url.get_backend_name(), url.get_driver_name()
    known = _DRIVERS.get(backend)
    if known is None:
        return str(error)
    name, extra = known
    if driver == name:
        return f"{error}: to have {name}, {how_to_install(extra)}"
    return (
        f"{error}: write {backend}+{name}:// in place of {url.drivername}://, whose driver is not installed"
    )
