"""Tests of the files of events, and of events about guests that the kernel killed for lack of memory."""

import logging
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from compute_agent.drivers.base import OomKill
from compute_agent.events.event import AgentEvent, EventKind, EventRecorder
from compute_agent.events.store import EventStore, read_events
from compute_agent.loops import events
from compute_agent.loops.events import EVENTS_THREAD, EventLog, OomEvents
from compute_agent.model.guest_settings import GuestSettings
from tests.compute_agent.builders import has_thread
from tests.compute_agent.fakes import FakeDriver
from tests.waits import wait_for

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


def test_an_event_that_is_added_during_a_write_is_written_at_once(rig, monkeypatch):
    append, later = EventStore.append, [PLACED]

    def append_slowly(store, events):
        kept = append(store, events)
        while later:
            rig.log.add(later.pop())
        return kept

    monkeypatch.setattr(EventStore, "append", append_slowly)
    rig.log.start()
    rig.log.add(PLACED)
    wait_for(lambda: len(read_events(rig.path)) == 2, seconds=events.RETRY_SECONDS / 2)
    rig.log.stop()


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


@pytest.mark.parametrize(
    ("at_own_limit", "limit", "reason"),
    [(True, "guest", "it reached its own limit"), (False, "host", "the host, or the NUMA nodes of its")],
)
def test_a_killed_guest_is_an_event_and_in_the_log_in_status_and_in_a_metric(
    at_own_limit, limit, reason, caplog
):
    driver, registry = FakeDriver({0}), CollectorRegistry()
    guest = driver.create_guest("a", "web", GuestSettings(), ())
    kept = []
    events = OomEvents(driver, EventRecorder(kept.append), registry)
    driver.kills = [OomKill(guest, 2, at_own_limit)]
    with caplog.at_level(logging.WARNING):
        events.report_kills()
        events.report_kills()
    told = f"Guest web (a): the kernel killed 2 of its processes: {reason}"
    assert caplog.records[0].getMessage().startswith(told)
    (event,) = kept
    assert (event.kind, event.guest, event.name, event.outcome) == ("oom_kill", "a", "web", "done")
    assert event.text.startswith(told)
    assert event.reason.startswith(reason)
    (shown,) = events.list_rows()
    assert (shown["guest"], shown["name"], shown["kills"]) == ("a", "web", 2)
    assert shown["reason"].startswith(reason)
    assert registry.get_sample_value("compute_agent_oom_kills_total", {"limit": limit}) == 2


def test_guests_are_read_only_after_the_kernel_has_killed_a_process(tmp_path):
    vmstat = tmp_path / "proc/vmstat"
    vmstat.parent.mkdir()
    driver = FakeDriver({0})
    guest = driver.create_guest("a", "a", GuestSettings(), ())
    events = OomEvents(driver, EventRecorder(), CollectorRegistry(), str(tmp_path))

    def told(kills):
        if kills is not None:
            vmstat.write_text(f"nr_free_pages 1\noom_kill {kills}\nnr_unstable 0\n")
        driver.kills = [OomKill(guest, 1, True)]
        before = len(events.list_rows())
        events.report_kills()
        return len(events.list_rows()) > before

    assert [told(0), told(0), told(0), told(0)] == [True, True, False, False]
    # the first look may come between the two counters of the kernel
    assert [told(1), told(1), told(1)] == [True, True, False]
    vmstat.write_text("nr_free_pages 1\n")
    assert [told(None), told(None), told(None)] == [True, True, True], "nobody knows"
    vmstat.unlink()
    assert [told(None), told(None), told(None)] == [True, True, True]


def test_a_failed_look_is_repeated(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 1\noom_kill 1\n")
    driver = FakeDriver({0})
    guest = driver.create_guest("a", "a", GuestSettings(), ())
    events = OomEvents(driver, EventRecorder(), CollectorRegistry(), str(tmp_path))
    driver.oom_kills = lambda: 1 / 0
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            events.report_kills()
    driver.oom_kills = lambda: [OomKill(guest, 1, True)]
    for _ in range(3):
        events.report_kills()
    assert len(events.list_rows()) == 2


def test_no_more_than_the_last_twenty_are_kept():
    driver = FakeDriver({0})
    guest = driver.create_guest("a", "a", GuestSettings(), ())
    events = OomEvents(driver, EventRecorder(), CollectorRegistry())
    driver.kills = [OomKill(guest, number, True) for number in range(30)]
    events.report_kills()
    assert [one["kills"] for one in events.list_rows()] == list(range(10, 30))
