"""Tests of the report about a guest that the kernel has killed for lack of memory."""

import logging

import pytest
from prometheus_client import CollectorRegistry

from compute_agent.drivers.base import OomKill
from compute_agent.events.event import EventRecorder
from compute_agent.loops.events import OomEvents
from compute_agent.model.guest_settings import GuestSettings
from tests.compute_agent.fakes import FakeDriver


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
