"""Tests of OOM kills, from counters in memory.events, and of bounded writes to memory.reclaim."""

import errno
import os

import pytest

from compute_agent.drivers import memory_limits
from compute_agent.drivers.base import OomKill
from compute_agent.drivers.cgroup import GuestCgroup
from compute_agent.drivers.memory_limits import PIECE, OomWatch, reclaim_memory
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


class FakeReclaim:
    """A kernel that reclaims a given number of bytes, and takes a given time, for each write."""

    def __init__(self, found, seconds=0.0):
        self.found, self.seconds, self.now, self.writes = found, seconds, 0.0, []

    def write(self, file, text):
        amount = int(text)
        self.writes.append(amount)
        self.now += self.seconds
        if amount > self.found:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.found -= amount
        return len(text)


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    (tmp_path / "memory.reclaim").touch()

    def make(*arguments):
        made = FakeReclaim(*arguments)
        monkeypatch.setattr(memory_limits.os, "write", made.write)
        return made

    return make


def test_an_amount_is_reclaimed_in_pieces(kernel, tmp_path):
    made = kernel(10 * PIECE)
    amount = 2 * PIECE + 5
    assert reclaim_memory(str(tmp_path), amount, 1.0, lambda: made.now) == amount
    assert made.writes == [PIECE, PIECE, 5]


def test_a_kernel_that_finds_no_more_ends_the_reclaim(kernel, tmp_path):
    made = kernel(PIECE)
    assert reclaim_memory(str(tmp_path), 9 * PIECE, 1.0, lambda: made.now) == PIECE
    assert len(made.writes) == 2


def test_a_slow_device_ends_the_reclaim(kernel, tmp_path):
    made = kernel(100 * PIECE, 0.4)
    assert reclaim_memory(str(tmp_path), 100 * PIECE, 1.0, lambda: made.now) == 3 * PIECE


def test_an_old_kernel_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        reclaim_memory(str(tmp_path), PIECE, 1.0)
