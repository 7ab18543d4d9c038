"""Tests of sessions and of attempts to sign in, by the clock of each kind of database."""

import threading

import pytest

from placement.db.database import ServiceDatabase
from placement_extras.console import sessions


@pytest.fixture
def database(database_url: str) -> ServiceDatabase:
    return ServiceDatabase(database_url)


def find(database: ServiceDatabase, key: str) -> str | None:
    with database.read() as conn:
        return sessions.find_session(conn, key)


def test_a_session_is_found_until_it_ends_or_expires(database: ServiceDatabase):
    database.write(lambda tx: sessions.insert_session(tx, "one", "content of one", 600))
    database.write(lambda tx: sessions.insert_session(tx, "two", "content of two", 600))
    database.write(lambda tx: sessions.insert_session(tx, "gone", "content", -1))
    assert [find(database, key) for key in ("one", "two", "gone", "never")] == [
        "content of one",
        "content of two",
        None,
        None,
    ]
    database.write(lambda tx: sessions.delete_session(tx, "one"))
    assert [find(database, key) for key in ("one", "two")] == [None, "content of two"]


def test_one_attempt_too_many_is_not_made_and_does_not_count(database: ServiceDatabase):
    def attempt(limits: dict[str, int], seconds: float = 600) -> bool:
        return database.write(lambda tx: sessions.count_attempt(tx, limits, seconds))

    assert [attempt({"ann": 2, "here": 4}) for _ in range(3)] == [True, True, False]
    assert [attempt({"ben": 9, "here": 4}) for _ in range(3)] == [True, True, False]
    assert attempt({"ben": 9, "there": 4})
    database.write(lambda tx: sessions.forget_attempts(tx, "ann"))
    assert attempt({"ann": 2})
    assert attempt({"here": 1}, seconds=-1)  # all were longer ago


def test_concurrent_attempts_are_limited_like_successive_ones(database: ServiceDatabase):
    limits = {"ann": 5, "here": 7}
    barrier = threading.Barrier(12)
    let_through: list[bool] = []

    def attempt() -> None:
        barrier.wait(10)
        let_through.append(database.write(lambda tx: sessions.count_attempt(tx, limits, 600)))

    threads = [threading.Thread(target=attempt) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(let_through) == [False] * 7 + [True] * 5
    with database.read() as conn:
        assert not sessions.may_attempt(conn, limits, 600)
        assert sessions.may_attempt(conn, {"here": 7}, 600)


def test_expired_rows_are_removed(database: ServiceDatabase):
    database.write(lambda tx: sessions.insert_session(tx, "one", "content of one", 600))
    database.write(lambda tx: sessions.count_attempt(tx, {"ann": 2}, 600))
    with database.read() as conn:
        assert not sessions.has_expired(conn, 600)
    database.write(lambda tx: sessions.insert_session(tx, "gone", "content", -1))
    for seconds in (600, -1):
        with database.read() as conn:
            assert sessions.has_expired(conn, seconds)
        database.write(lambda tx, seconds=seconds: sessions.remove_expired(tx, seconds))
        with database.read() as conn:
            assert not sessions.has_expired(conn, seconds)
    assert find(database, "one") == "content of one"
