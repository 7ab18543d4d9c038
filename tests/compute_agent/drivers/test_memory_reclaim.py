"""Tests of bounded writes to memory.reclaim. The kernel of these tests finds less memory than was
requested.
"""

import errno
import os

import pytest

from compute_agent.drivers import memory_limits
from compute_agent.drivers.memory_limits import PIECE, reclaim_memory


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
