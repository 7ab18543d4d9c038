"""The stream of events: long lines, silence, and its end."""

import json
import queue
import socket
import threading

import pytest

from compute_agent.drivers.containers.engine import EVENTS_THREAD, EventStream
from tests.compute_agent.drivers.containers.fake_engine import GUEST
from tests.waits import wait_for

KEY = "ab" * 32


@pytest.fixture
def changes():
    """The ids of changed containers."""
    return queue.Queue()


@pytest.fixture
def follow(engine, changes):
    opened = []

    def follow(**options):
        def connect():
            plain = socket.socket(socket.AF_UNIX)
            plain.settimeout(5)
            plain.connect(str(engine.path))
            return plain

        stream = EventStream(connect, "/events", changes.put, **options)
        opened.append(stream)
        assert changes.get(timeout=5) == ""
        wait_for(engine.stream_count)
        return stream

    yield follow
    for stream in opened:
        stream.close()


def event(**changes):
    content = {"Type": "container", "Action": "start", "Actor": {"ID": KEY}, **changes}
    return json.dumps(content).encode() + b"\n"


def test_an_event_names_its_container(engine, follow, changes):
    follow()
    engine.send_event(event(Action="exec_start"))
    engine.send_event(event())
    assert changes.get(timeout=5) == KEY


def test_a_line_that_is_too_long_counts_as_a_change_of_any_container(engine, follow, changes):
    stream = follow()
    engine.send_event(event(Note="x" * 200_000))
    engine.send_event(event())
    assert [changes.get(timeout=5) for _ in range(2)] == ["", KEY]
    assert stream.is_open


def test_a_line_of_the_longest_length_is_an_event(engine, follow, changes):
    follow()
    short = event(Note="")
    engine.send_event(event(Note="x" * ((1 << 16) - len(short))))
    assert changes.get(timeout=5) == KEY


def test_nonsense_ends_the_stream_with_a_reason(engine, follow, changes):
    stream = follow()
    engine.send_event(b"nonsense\n")
    assert changes.get(timeout=5) == ""
    assert "stream of events ended" in stream.reason


def test_a_silent_stream_is_opened_again_with_a_look_at_all_containers(engine, follow, changes):
    stream = follow(silence=0.2)
    assert changes.get(timeout=5) == ""
    wait_for(lambda: engine.calls.count("GET /events") >= 2)
    assert stream.is_open


def test_all_containers_are_looked_at_once_the_engine_sends_events(engine, follow, changes):
    """A container that starts before the engine answers has no event."""
    follow(silence=0.2)
    engine.holds_streams.set()
    asked = engine.calls.count("GET /events")
    wait_for(lambda: engine.calls.count("GET /events") > asked)
    while not changes.empty():
        changes.get()
    engine.start("db", GUEST)
    engine.holds_streams.clear()
    assert changes.get(timeout=5) == ""


def test_the_end_of_the_engine_ends_the_stream(engine, follow, changes):
    stream = follow()
    engine.go_away()
    assert changes.get(timeout=5) == ""
    assert stream.reason == "the engine closed the stream of events"


def test_a_closed_stream_ends_its_thread(follow, changes):
    before = set(threading.enumerate())
    stream = follow()
    (thread,) = [one for one in set(threading.enumerate()) - before if one.name == EVENTS_THREAD.name]
    stream.close()
    assert changes.get(timeout=5) == ""
    thread.join(5)
    assert not thread.is_alive()
