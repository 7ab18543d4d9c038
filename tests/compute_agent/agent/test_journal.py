"""Tests of events in systemd's journal, which have fields of their own."""

import logging
import os
import socket

import pytest

from compute_agent.agent import logs
from compute_agent.events.event import EventKind, EventRecorder, NamedSubject


class JournalRest(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.fixture
def logger(tmp_path):
    """A logger that sends events to a socket, the handler of its other messages, and the socket."""
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(str(tmp_path / "socket"))
    receiver.settimeout(5)
    rest, logger = JournalRest(), logging.Logger("compute_agent.test", logging.INFO)
    logger.addHandler(logs.EventHandler(rest, str(tmp_path / "socket")))
    yield logger, rest, receiver
    receiver.close()


def test_events_have_fields_and_other_lines_keep_their_handler(logger):
    log, rest, receiver = logger
    log.info("another line")
    guest = NamedSubject("one", "web\nEVENT_KIND=evict")
    EventRecorder().record_done(
        log.warning, EventKind.REFUSE, guest, "Guest %s: %s", "no room", reason="two\nlines"
    )
    received = receiver.recv(1 << 16).decode()
    fields = dict(line.split("=", 1) for line in received.splitlines())
    assert (fields["PRIORITY"], fields["EVENT_KIND"], fields["EVENT_GUEST"]) == ("4", "refuse", "one")
    assert fields["EVENT_REASON"] == "two\N{REPLACEMENT CHARACTER}lines"
    assert fields["MESSAGE"].endswith(": no room")
    assert received.count("EVENT_KIND") == 3  # in the message, in the name, and as it is
    assert rest.lines == ["another line"]


def test_without_a_journal_events_are_ordinary_lines(logger, tmp_path):
    log, rest, _ = logger
    (tmp_path / "socket").unlink()
    EventRecorder().record_done(log.info, EventKind.LEAVE, NamedSubject("one"), "Guest %s left")
    assert rest.lines == ["Guest one left"]


def test_whether_standard_error_is_the_journal_is_known_by_its_file():
    reader, writer = os.pipe()
    status = os.fstat(writer)
    assert logs.journal_is_stderr({"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}, writer)
    assert not logs.journal_is_stderr({"JOURNAL_STREAM": "8:1"}, writer)
    assert not logs.journal_is_stderr({}, writer)
    os.close(reader)
    os.close(writer)
    assert not logs.journal_is_stderr({}, writer)
