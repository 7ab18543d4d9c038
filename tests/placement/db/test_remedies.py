"""Tests that an error of the database is reported in one line that names the remedy."""

import sqlite3

import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from placement.db import errors

ROOM, RIGHT, REACH = (
    "make room",
    "The user of the database lacks a right",
    "Check that the database runs",
)


def of(original, base):
    made = exc.DBAPIError.instance("INSERT secrets", {"value": "secret"}, original, base)
    assert isinstance(made, exc.DBAPIError)
    return made


@pytest.mark.parametrize(
    ("original", "base", "remedy"),
    [
        (psycopg.errors.DiskFull("could not extend file"), psycopg.Error, ROOM),
        (pymysql.err.OperationalError(1114, "The table 'traits' is full"), pymysql.err.Error, ROOM),
        (
            pymysql.err.InternalError(3, 'Error writing file (Errcode: 28 "No space left on device")'),
            pymysql.err.Error,
            ROOM,
        ),
        (
            pymysql.err.OperationalError(
                1005, 'Can\'t create table (errno: 135 "No more room in record file")'
            ),
            pymysql.err.Error,
            ROOM,
        ),
        (psycopg.errors.InsufficientPrivilege("must be owner of index"), psycopg.Error, RIGHT),
        (pymysql.err.OperationalError(1142, "DROP command denied to user"), pymysql.err.Error, RIGHT),
        (pymysql.err.OperationalError(2013, "Lost connection to MySQL server"), pymysql.err.Error, REACH),
        (pymysql.err.OperationalError(1045, "Access denied for user 'x'"), pymysql.err.Error, REACH),
        (
            psycopg.errors.LockNotAvailable("canceling statement"),
            psycopg.Error,
            "Other programs have locked the tables",
        ),
        (psycopg.errors.UndefinedTable('relation "x"\ndoes not exist'), psycopg.Error, "please report it"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_names_its_remedy_and_not_the_statement(original, base, remedy):
    text = errors.explain_error(of(original, base))
    assert remedy in text
    assert "\n" not in text
    assert "secret" not in text


def test_a_full_disk_of_sqlite_is_named(tmp_path):
    engine = sa.create_engine(f"sqlite:///{tmp_path}/small.sqlite", poolclass=sa.NullPool)
    with engine.connect() as conn:
        conn.exec_driver_sql("PRAGMA max_page_count = 1")
        with pytest.raises(exc.OperationalError) as full:
            conn.exec_driver_sql("CREATE TABLE things (id INTEGER)")
    assert errors.explain_error(full.value) == (
        f"database or disk is full. The disk of the database is full: {ROOM} on it, then try again."
    )


def test_a_file_of_sqlite_that_is_not_to_be_written_is_named(tmp_path):
    path = tmp_path / "placement.sqlite"
    sqlite3.connect(path).close()
    engine = sa.create_engine(f"sqlite:///file:{path}?mode=ro&uri=true", poolclass=sa.NullPool)
    with engine.connect() as conn, pytest.raises(exc.OperationalError) as refused:
        conn.exec_driver_sql("CREATE TABLE things (id INTEGER)")
    assert RIGHT in errors.explain_error(refused.value)
