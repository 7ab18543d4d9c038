"""Tests of reports of OOM kills, from the counters in memory.events of guests."""

import pytest

from compute_agent.drivers.base import OomKill
from compute_agent.drivers.cgroup import GuestCgroup
from compute_agent.drivers.memory_limits import OomWatch
from tests.compute_agent.builders import build_guest

GUEST = build_guest("a", driver="process", pid=1)


@pytest.fixture
def group(tmp_path):
    count(GuestCgroup(tmp_path), 0, 0)
    return GuestCgroup(tmp_path)


def count(group, at_limit, kills):
    (group.folder / "memory.events").write_text(f"low 0\noom {at_limit}\noom_kill {kills}\n")


def test_kills_are_reported_once_with_the_limit_that_was_hit(group):
    watch = OomWatch()
    watch.look_at_group(GUEST, group)
    assert watch.take_news() == []
    count(group, 0, 1)
    watch.look_at_group(GUEST, group)
    watch.look_at_group(GUEST, group)
    assert watch.take_news() == [OomKill(GUEST, 1, at_own_limit=False)]
    count(group, 2, 3)
    watch.look_at_group(GUEST, group)
    assert watch.take_news() == [OomKill(GUEST, 2, at_own_limit=True)]
    assert watch.take_news() == []


def test_a_kill_counts_at_the_guests_limit_after_a_look_between_limit_and_kill(group):
    watch = OomWatch()
    count(group, 1, 0)
    watch.look_at_group(GUEST, group)
    count(group, 1, 1)
    watch.look_at_group(GUEST, group)
    assert watch.take_news() == [OomKill(GUEST, 1, at_own_limit=True)]


def test_kills_before_the_start_of_the_agent_are_not_reported(group):
    count(group, 1, 1)
    watch = OomWatch()
    watch.begin_counting("a", group)
    watch.look_at_group(GUEST, group)
    assert watch.take_news() == []


def test_the_last_look_counts_for_a_guest_that_was_never_looked_at(group):
    count(group, 1, 1)
    watch = OomWatch()
    watch.look_at_group(GUEST, group, last=True)
    assert watch.take_news() == [OomKill(GUEST, 1, at_own_limit=True)]


def test_a_group_that_is_gone_or_without_counters_reports_no_kill(tmp_path):
    watch = OomWatch()
    watch.begin_counting("a", GuestCgroup(tmp_path / "gone"))
    watch.look_at_group(GUEST, GuestCgroup(tmp_path / "gone"), last=True)
    assert watch.take_news() == []
