"""Sessions and attempts, by the clock of each kind of database."""

import pytest

from placement.db.database import Database
from placement.store import sessions


@pytest.fixture
def database(database_url: str) -> Database:
    return Database(database_url)


def find(database: Database, key: str) -> str | None:
    with database.read() as conn:
        return sessions.find(conn, key)


def test_a_session_is_found_until_it_ends_or_expires(database: Database):
    database.write(lambda tx: sessions.begin(tx, "one", "content of one", 600))
    database.write(lambda tx: sessions.begin(tx, "two", "content of two", 600))
    database.write(lambda tx: sessions.begin(tx, "gone", "content", -1))
    assert [find(database, key) for key in ("one", "two", "gone", "never")] == [
        "content of one",
        "content of two",
        None,
        None,
    ]
    database.write(lambda tx: sessions.end(tx, "one"))
    assert [find(database, key) for key in ("one", "two")] == [None, "content of two"]


def test_one_attempt_too_many_is_not_made_and_does_not_count(database: Database):
    def attempt(limits: dict[str, int], seconds: float = 600) -> bool:
        return database.write(lambda tx: sessions.attempt(tx, limits, seconds))

    assert [attempt({"ann": 2, "here": 4}) for _ in range(3)] == [True, True, False]
    assert [attempt({"ben": 9, "here": 4}) for _ in range(3)] == [True, True, False]
    assert attempt({"ben": 9, "there": 4})
    database.write(lambda tx: sessions.forget_attempts(tx, "ann"))
    assert attempt({"ann": 2})
    assert attempt({"here": 1}, seconds=-1)  # all were longer ago
