"""Tests of the reaction to errors of each driver: another attempt at once, a later attempt, or no further
attempt.
"""

import sqlite3

import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from psycopg import errors as of_postgresql
from sqlalchemy import exc
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from placement.db import errors


def of_sqlite(kind: type[sqlite3.Error], code: int, name: str) -> sqlite3.Error:
    error = kind("message")
    error.sqlite_errorcode, error.sqlite_errorname = code, name
    return error


def wrapped(original: Exception) -> exc.SQLAlchemyError:
    """SQLAlchemy's error for an error of the driver, on a connection that is still open."""
    dialect: sa.Dialect
    match original:
        case sqlite3.Error():
            dialect, base = SQLiteDialect_pysqlite(), sqlite3.Error
        case psycopg.Error():
            dialect, base = PGDialect_psycopg(), psycopg.Error
        case _:
            dialect, base = MySQLDialect_pymysql(), pymysql.Error
    error = exc.DBAPIError.instance("SELECT 1", None, original, base, dialect=dialect)
    assert isinstance(error, exc.DBAPIError)
    return error


CONFLICTS = [
    of_postgresql.SerializationFailure(),
    of_postgresql.DeadlockDetected(),
    of_postgresql.LockNotAvailable(),
    of_postgresql.UniqueViolation(),
    of_postgresql.ForeignKeyViolation(),
    pymysql.err.OperationalError(1020, "Record has changed since last read"),
    pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"),
    pymysql.err.OperationalError(1213, "Deadlock found"),
    pymysql.err.IntegrityError(1062, "Duplicate entry"),
    pymysql.err.IntegrityError(1452, "a foreign key constraint fails"),
    sqlite3.OperationalError("database is locked"),
    of_sqlite(sqlite3.IntegrityError, 2067, "SQLITE_CONSTRAINT_UNIQUE"),
    of_sqlite(sqlite3.IntegrityError, 787, "SQLITE_CONSTRAINT_FOREIGNKEY"),
]
UNAVAILABLE = [
    psycopg.OperationalError("connection failed: Connection refused"),
    psycopg.InterfaceError("the connection is closed"),
    of_postgresql.AdminShutdown(),
    of_postgresql.CannotConnectNow(),
    of_postgresql.TooManyConnections(),
    of_postgresql.DiskFull(),
    of_postgresql.QueryCanceled(),
    of_postgresql.ReadOnlySqlTransaction(),
    pymysql.err.OperationalError(2003, "Can't connect to MySQL server"),
    pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query"),
    pymysql.err.InterfaceError(0, ""),
    pymysql.err.OperationalError(1040, "Too many connections"),
    pymysql.err.OperationalError(1047, "WSREP has not yet prepared node for application use"),
    pymysql.err.OperationalError(1290, "running with the --read-only option"),
    pymysql.err.OperationalError(1969, "Query execution was interrupted (max_statement_time exceeded)"),
    of_sqlite(sqlite3.OperationalError, 14, "SQLITE_CANTOPEN"),
    of_sqlite(sqlite3.OperationalError, 8, "SQLITE_READONLY"),
    of_sqlite(sqlite3.OperationalError, 13, "SQLITE_FULL"),
    of_sqlite(sqlite3.OperationalError, 10 | 8 << 8, "SQLITE_IOERR_LOCK"),
]
ELSEWHERE = [
    of_postgresql.ReadOnlySqlTransaction(),
    pymysql.err.OperationalError(1047, "WSREP has not yet prepared node for application use"),
    pymysql.err.OperationalError(1290, "running with the --read-only option"),
]
DEFECTS = [
    of_postgresql.UndefinedColumn(),
    of_postgresql.UndefinedTable(),
    of_postgresql.SyntaxError(),
    of_postgresql.InsufficientPrivilege(),
    of_postgresql.GroupingError(),
    of_postgresql.NotNullViolation(),
    of_postgresql.CheckViolation(),
    of_postgresql.StatementTooComplex(),
    of_postgresql.InFailedSqlTransaction(),
    pymysql.err.OperationalError(1054, "Unknown column"),
    pymysql.err.OperationalError(1055, "not in GROUP BY"),
    pymysql.err.OperationalError(1364, "Field doesn't have a default value"),
    pymysql.err.OperationalError(4025, "CONSTRAINT failed"),
    pymysql.err.OperationalError(1142, "SELECT command denied to user"),
    pymysql.err.ProgrammingError(1146, "Table doesn't exist"),
    pymysql.err.IntegrityError(1048, "Column cannot be null"),
    of_sqlite(sqlite3.OperationalError, 1, "SQLITE_ERROR"),
    of_sqlite(sqlite3.IntegrityError, 1299, "SQLITE_CONSTRAINT_NOTNULL"),
    of_sqlite(sqlite3.IntegrityError, 275, "SQLITE_CONSTRAINT_CHECK"),
]


def meaning(error: exc.SQLAlchemyError) -> tuple[bool, bool]:
    return errors.is_conflict(error), errors.is_unavailable(error)


@pytest.mark.parametrize("original", CONFLICTS, ids=repr)
def test_errors_caused_by_another_transaction_are_worth_a_retry(original: Exception) -> None:
    assert errors.is_conflict(wrapped(original))


@pytest.mark.parametrize("original", UNAVAILABLE, ids=repr)
def test_a_database_that_is_away_or_cannot_work_now_is_unavailable(original: Exception) -> None:
    assert meaning(wrapped(original)) == (False, True)


@pytest.mark.parametrize("original", ELSEWHERE, ids=repr)
def test_a_wrong_server_is_left_as_after_a_lost_connection(original: Exception) -> None:
    url = "mysql+pymysql://" if isinstance(original, pymysql.err.Error) else "postgresql+psycopg://"
    assert errors.is_elsewhere(original)
    assert errors.of_driver(sa.create_engine(url).dialect, original, None).connection_invalidated


@pytest.mark.parametrize(
    "original",
    [each for each in [*CONFLICTS, *UNAVAILABLE] if repr(each) not in map(repr, ELSEWHERE)],
    ids=repr,
)
def test_other_errors_do_not_say_that_another_server_is_to_be_asked(original: Exception) -> None:
    assert not errors.is_elsewhere(original)


@pytest.mark.parametrize("original", DEFECTS, ids=repr)
def test_a_statement_that_is_wrong_is_neither(original: Exception) -> None:
    assert meaning(wrapped(original)) == (False, False)


@pytest.mark.parametrize(
    "error",
    [
        exc.TimeoutError("QueuePool limit of size 5 overflow 50 reached, connection timed out"),
        exc.InvalidRequestError("This connection is closed"),
        exc.InvalidatePoolError(),
        exc.PendingRollbackError("Can't reconnect until invalid transaction is rolled back."),
    ],
    ids=repr,
)
def test_errors_of_the_pool_about_lost_connections_are_unavailable(error: exc.SQLAlchemyError) -> None:
    assert meaning(error) == (False, True)


@pytest.mark.parametrize(
    "error",
    [exc.ArgumentError("no URL"), exc.InvalidRequestError("no such table"), exc.CompileError("?")],
    ids=repr,
)
def test_statements_refused_by_sqlalchemy_are_defects(error: exc.SQLAlchemyError) -> None:
    assert meaning(error) == (False, False)
