"""Tests of the files of events: their size is limited, a crash leaves them whole, and readers may read at any
time.
"""

import json
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.events.event import AgentEvent, EventKind, EventRecorder, NamedSubject, from_line, to_line
from compute_agent.events.store import EventStore, older_file, read_events
from compute_agent.files import UnsafeFileError

LARGE = 10**6


def event(n, **values):
    return AgentEvent(1000.0 + n, EventKind.PLACE, f"text {n}", **values)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


def texts(path):
    return [one.text for one in read_events(path)]


def test_events_are_numbered_and_found_by_the_next_store(path):
    assert read_events(path) == []
    store = EventStore(path, LARGE, LARGE)
    assert store.append([event(1), event(2)]) == 2
    store.close()
    assert EventStore(path, LARGE, LARGE).append([event(3)]) == 1
    assert read_events(path) == [replace(event(n), id=n) for n in (1, 2, 3)]


@given(st.lists(st.integers(1, 400), max_size=60), st.integers(2, 20), st.integers(3000, 6000))
def test_the_newest_are_kept_within_both_bounds(tmp_path_factory, lengths, max_events, max_bytes):
    path = tmp_path_factory.mktemp("bounds") / "events.jsonl"
    store = EventStore(path, max_events, max_bytes)
    for n, length in enumerate(lengths, 1):
        store.append([event(n, reason="x" * length)])
        found = read_events(path)
        assert [one.id for one in found] == list(range(n - len(found) + 1, n + 1))
        assert 1 <= len(found) <= max_events
        sizes = [each.stat().st_size for each in (path, older_file(path)) if each.exists()]
        assert sum(sizes) <= max_bytes
    store.close()


@given(st.integers(0, 400))
def test_a_line_cut_by_a_crash_costs_only_itself(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "events.jsonl"
    store = EventStore(path, LARGE, LARGE)
    store.append([event(1), event(2), event(3)])
    store.close()
    content = path.read_bytes()
    os.truncate(path, max(0, len(content) - cut))
    left = texts(path)
    assert left == ["text 1", "text 2", "text 3"][: len(left)]
    store.append([event(4)])
    assert texts(path) == [*left, "text 4"]
    store.close()


def test_a_full_disk_leaves_no_part_of_an_event_and_the_rest_can_follow(path, monkeypatch):
    store = EventStore(path, LARGE, LARGE)
    store.append([event(1)])
    room, write = [len(to_line(replace(event(2), id=2))) + 30], os.write

    def scarce(descriptor, content):
        written = write(descriptor, content[: room[0]]) if room[0] else 0
        room[0] -= written
        if not written:
            raise OSError(28, "No space left on device")
        return written

    monkeypatch.setattr(os, "write", scarce)
    assert store.append([event(2), event(3)]) == 1
    with pytest.raises(OSError, match="No space left"):
        store.append([event(3)])
    assert path.read_bytes().endswith(b"\n")
    room[0] = LARGE
    store.append([event(3)])
    assert texts(path) == ["text 1", "text 2", "text 3"]


def test_a_link_in_place_of_the_file_is_not_written_to(path, tmp_path):
    (tmp_path / "other").write_text("precious")
    path.symlink_to(tmp_path / "other")
    with pytest.raises((UnsafeFileError, OSError)):
        EventStore(path, LARGE, LARGE).append([event(1)])
    assert (tmp_path / "other").read_text() == "precious"


@pytest.mark.parametrize(
    "change",
    [
        {"time": "now"},
        {"time": float("nan")},
        {"id": 0},
        {"id": True},
        {"id": 1 << 60},
        {"text": "a\u001b[31mred"},
        {"name": ["a"]},
        {"reason": None},
    ],
)
def test_a_line_that_is_no_event_is_ignored(change):
    good = json.loads(to_line(replace(event(1), id=1)))
    assert from_line(json.dumps(good).encode()) is not None
    assert from_line(json.dumps({**good, **change}).encode()) is None


@pytest.mark.parametrize("line", [b"", b"[]", b"7", b"{}", b"\0\0\0", b"\xff", b"[" * 100_000])
def test_a_line_that_is_no_json_object_is_ignored(line):
    assert from_line(line) is None


@given(st.text(), st.text(), st.text())
def test_an_event_is_one_printable_line_with_any_name(uuid, name, reason):
    kept = []
    recorder = EventRecorder(kept.append)
    recorder.record_done(
        lambda *_, **__: None, EventKind.PLACE, NamedSubject(uuid, name), "Guest %s: %s", name, reason=reason
    )
    line = to_line(replace(kept[0], id=1))
    assert line.count(b"\n") == 1
    assert from_line(line) == replace(kept[0], id=1)
    assert len(line) < 30_000
