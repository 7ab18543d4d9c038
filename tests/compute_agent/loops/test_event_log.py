"""Tests that a thread writes events, so that the code that records an event does not wait."""

from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from compute_agent.events.event import AgentEvent, EventKind
from compute_agent.events.store import read_events
from compute_agent.loops import events
from compute_agent.loops.events import EVENTS_THREAD, EventLog
from tests.compute_agent.builders import has_thread

PLACED = AgentEvent(1.0, EventKind.PLACE, "Guest a runs on shared CPUs 3")


class StoredEventLog:
    def __init__(self, folder):
        events = SimpleNamespace(max_events=100, max_mb=1)
        self.registry, self.path = CollectorRegistry(), folder / "events.jsonl"
        self.log = EventLog(SimpleNamespace(state_path=str(folder), events=events), self.registry)

    @property
    def lost_events(self):
        return self.registry.get_sample_value("compute_agent_events_lost_total")


@pytest.fixture
def rig(tmp_path):
    return StoredEventLog(tmp_path)


def test_recorded_events_are_written_when_the_agent_ends(rig):
    rig.log.start()
    for _ in range(3):
        rig.log.add(PLACED)
    rig.log.stop()
    assert [one.id for one in read_events(rig.path)] == [1, 2, 3]


def test_events_wait_for_a_disk_that_is_full_and_some_are_lost(rig, monkeypatch, caplog):
    monkeypatch.setattr(events, "MAX_PENDING", 2)
    rig.path.mkdir()
    for _ in range(3):
        rig.log.add(PLACED)
        rig.log.flush()
    assert rig.lost_events == 1
    assert "no regular file" in rig.log.trouble
    assert caplog.text.count("Events cannot be stored") == 1
    rig.path.rmdir()
    rig.log.flush()
    assert rig.log.trouble == ""
    assert len(read_events(rig.path)) == 2


def test_an_agent_ends_although_its_disk_is_full(rig):
    rig.path.mkdir()
    rig.log.start()
    rig.log.add(PLACED)
    rig.log.stop()
    assert not has_thread(EVENTS_THREAD)
