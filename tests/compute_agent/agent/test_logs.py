"""Tests of the log of the daemon."""

import logging
import threading

import pytest
from oslo_context import context as oslo_context

from compute_agent.agent import logs
from tests.compute_agent.builders import load_text

LONG = "Failed to contact the endpoint at %s for discovery. Fallback to using that endpoint as the base url."


@pytest.fixture
def clock():
    return [1000.0]


@pytest.fixture
def lines(clock):
    """A function that logs a warning with keystoneauth's logger, and the list of messages that passed the
    rate limit.
    """
    passed = []
    logger = logging.Logger("keystoneauth.identity")
    logger.addHandler(
        logs.RateLimitedHandler(lambda record: passed.append(record.getMessage()), clock=lambda: clock[0])
    )
    return logger.warning, passed


def test_a_repeated_message_is_logged_once_a_minute_shortened_and_with_a_count(lines, clock):
    warn, passed = lines
    for _ in range(31):
        for url in ("http://one/v3", "http://two/v3"):
            warn(LONG, url)
        clock[0] += 2.0
    assert passed == [
        LONG % "http://one/v3",
        (LONG % "http://one/v3")[:100] + "... (and 59 more like it since the last time)",
    ]


def test_a_new_message_is_logged_at_once(lines, clock):
    warn, passed = lines
    warn(LONG, "http://one/v3")
    warn("Retrying in %s s", 1)
    clock[0] += 3600.0
    warn("Retrying in %s s", 2)
    assert passed == [LONG % "http://one/v3", "Retrying in 1 s", "Retrying in 2 s (again)"]


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A function that sets up the log and returns the text of its file."""
    monkeypatch.setattr(oslo_context, "_request_store", threading.local())  # a request of another test
    root, talkative = logging.getLogger(), logging.getLogger(logs.VERBOSE_LOGGERS)
    before = (list(root.handlers), root.level, list(talkative.handlers), talkative.propagate)
    path = tmp_path / "agent.log"
    logs.set_up(load_text(tmp_path, f"[DEFAULT]\nlog_file = {path}\nuse_stderr = false\n"))
    yield path.read_text
    for handler in root.handlers:
        if handler not in before[0]:
            handler.close()
    root.handlers[:], root.level, talkative.handlers[:], talkative.propagate = before


def test_the_exception_that_is_being_handled_is_no_part_of_a_message(written):
    try:
        raise OSError("a reason of its own")
    except OSError:
        logging.getLogger("compute_agent.x").warning("Something else happened")
    assert "WARNING compute_agent.x [-] Something else happened\n" in written()
    assert "a reason of its own" not in written()


def test_control_characters_in_a_librarys_quotation_of_a_peer_are_replaced(written):
    logger = logging.getLogger("keystoneauth.session")
    logger.warning("Failure: no connection to %s", "http://127.0.0.1/\x1b[2J\x9b\r\n2026 ERROR forged")
    try:
        raise OSError("\x1b]0;owned\x07")
    except OSError:
        logging.getLogger("compute_agent.x").exception("Something failed")
    text = written()
    assert all(line.isprintable() for line in text.split("\n"))
    assert "no connection to http://127.0.0.1/\N{REPLACEMENT CHARACTER}[2J" in text
    assert not [line for line in text.split("\n") if line.startswith("2026 ERROR forged")]
    assert "Traceback (most recent call last)" in text


def test_a_traceback_that_is_asked_for_is_written(written):
    try:
        raise OSError("the reason")
    except OSError:
        logging.getLogger("compute_agent.x").exception("It failed")
    assert "ERROR compute_agent.x [-] It failed\n" in written()
    assert "ERROR compute_agent.x OSError: the reason\n" in written()


def test_keystoneauth_is_passed_on_seldom(written):
    for _ in range(5):
        logging.getLogger("keystoneauth.identity.generic.base").warning(LONG, "http://one/v3")
    assert written().count("Failed to contact") == 1
