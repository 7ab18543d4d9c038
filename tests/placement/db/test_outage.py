"""Tests that only one request at a time waits for a database that does not answer."""

import threading

import pytest
from sqlalchemy import exc

from placement.db.database import database_outage
from placement.exceptions import Unavailable
from placement.outage import PeerOutage


def fail(outage: PeerOutage, cause: Exception | None) -> None:
    lost = Exception("lost connection")
    lost.__cause__ = cause
    with pytest.raises(exc.OperationalError), outage.attempt_request():
        raise exc.OperationalError("SELECT", {}, lost)


def holding(outage: PeerOutage) -> tuple[threading.Thread, threading.Event]:
    """A request that waits for the database, and the event that lets the database answer it."""
    inside, answered = threading.Event(), threading.Event()

    def ask() -> None:
        with outage.attempt_request():
            inside.set()
            answered.wait(60)

    thread = threading.Thread(target=ask)
    thread.start()
    assert inside.wait(60)
    return thread, answered


def is_refused(outage: PeerOutage) -> bool:
    try:
        with outage.attempt_request():
            return False
    except Unavailable:
        return True


def test_many_requests_ask_at_once_while_they_are_answered() -> None:
    outage = database_outage()
    held = [holding(outage) for _ in range(3)]
    assert not is_refused(outage)
    for thread, answered in held:
        answered.set()
        thread.join()


def test_after_silence_one_asks_and_others_are_refused_until_it_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage = database_outage()
    fail(outage, TimeoutError())
    fail(outage, TimeoutError())
    thread, answered = holding(outage)
    assert is_refused(outage)
    assert is_refused(outage)
    answered.set()
    thread.join()
    held = [holding(outage) for _ in range(2)]
    assert not is_refused(outage)
    for thread, answered in held:
        answered.set()
        thread.join()
    messages = [record.message for record in caplog.records]
    assert [message.split(":")[0].split(",")[0] for message in messages] == [
        "the database does not answer",
        "the database answers again",
    ]


def test_a_server_that_refuses_is_not_silent() -> None:
    outage = database_outage()
    fail(outage, None)
    thread, answered = holding(outage)
    assert not is_refused(outage)
    answered.set()
    thread.join()


def test_any_answer_ends_the_silence_also_an_error() -> None:
    outage = database_outage()
    fail(outage, TimeoutError())
    fail(outage, None)
    thread, answered = holding(outage)
    assert not is_refused(outage)
    answered.set()
    thread.join()
