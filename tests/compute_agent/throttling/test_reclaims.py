"""Tests of reclaiming a guest's memory for watermarks, and of the reasons for which a guest is left alone."""

import pytest

from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.throttling import executor
from compute_agent.throttling.executor import MemoryReclaimer
from tests.compute_agent.builders import build_guest
from tests.compute_agent.fakes import FakeDriver

MIB = 2**20


class Pipeline:
    def __init__(self, folder):
        self.views = [
            GuestView(build_guest(uuid, pid=1, cgroup=group), {}, None, "", "", (), {}, ())
            for uuid, group in (("a", str(folder)), ("bare", ""))
        ]

    def guest_views(self):
        return self.views


@pytest.fixture
def reclaim(tmp_path, monkeypatch):
    """Reclaim 256 MiB of a guest. The fake kernel finds ``found`` bytes, or fails with an error."""

    def call(uuid="a", found=256 * MIB, pressure="0.00"):
        (tmp_path / "memory.pressure").write_text(f"some avg10={pressure} avg60=9.00 avg300=9.00 total=1\n")

        def reclaim_memory(group, amount, seconds, monotonic):
            assert (group, amount, seconds) == (str(tmp_path), 256 * MIB, 1.0)
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(executor, "reclaim_memory", reclaim_memory)
        MemoryReclaimer(Pipeline(tmp_path), FakeDriver({0})).reclaim_memory(uuid, 256 * MIB)

    return call


def test_memory_of_a_guest_is_reclaimed(reclaim):
    reclaim()
    reclaim(found=32 * MIB, pressure="10.00")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"found": 16 * MIB}, "found less than 256 MiB"),
        ({"pressure": "10.01"}, "has waited for memory in 10.01 % of the last 10 seconds"),
        ({"found": FileNotFoundError(2, "No such file")}, "Linux is older than 5.19|kernel is older than"),
        ({"found": OSError(22, "Invalid argument")}, "the kernel reclaims no memory"),
        ({"uuid": "bare"}, "no cgroup v2 group"),
    ],
)
def test_a_guest_without_memory_to_spare_is_left_alone(reclaim, settings, reason):
    with pytest.raises(DriverError, match=reason):
        reclaim(**settings)


def test_a_guest_that_has_ended_is_no_failure(reclaim):
    with pytest.raises(GuestGoneError):
        reclaim("gone")
