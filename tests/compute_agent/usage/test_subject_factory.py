"""Tests that watermarks measure a guest by the values that its driver reports."""

import pytest

from compute_agent.classes.guest_classes import QosClass, QosClasses
from compute_agent.model.resource import ThrottleControl
from compute_agent.pipeline.guest_cache import CachedGuest, view_guest
from compute_agent.usage.snapshot import GuestAllotment
from compute_agent.usage.subjects import SubjectFactory
from tests.compute_agent.builders import build_guest
from tests.compute_agent.fakes import FakeDriver

CLASSES = QosClasses({"BE": QosClass("BE", 0)}, 0)


class Forking(FakeDriver):
    """A driver of guests with a main process that has started two other processes."""

    def process_ids(self, guest):
        return [guest.pid, guest.pid + 1, guest.pid + 2]


def measured(guest):
    (subject,) = SubjectFactory(Forking({0})).build_subjects([view_guest(CachedGuest(guest, {}))], CLASSES)
    return subject.cgroup, subject.pids


MEMORY = ThrottleControl("memory_high")
NO_SWAPS = "Filename Type Size\n"


@pytest.mark.parametrize(
    ("swaps", "allocation", "allotment"),
    [
        (
            "Filename Type Size\n/dev/vdb partition 9\n",
            {"p": {"MEMORY_MB": 8}},
            GuestAllotment(2.0**23, 2.0**20),
        ),
        ("Filename Type Size\n/dev/vdb partition 9\n", {"p": {"VCPU": 8}}, None),
        ("Filename Type Size\n", {"p": {"MEMORY_MB": 8}}, None),
        (None, {"p": {"MEMORY_MB": 8}}, None),
    ],
)
def test_memory_is_limited_on_hosts_with_swap(tmp_path, swaps, allocation, allotment):
    if swaps is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/swaps").write_text(swaps)
    factory = SubjectFactory(Forking({0}), root=str(tmp_path))
    view = view_guest(CachedGuest(build_guest("a", qos_class="BE"), allocation))
    (subject,) = factory.build_subjects([view], CLASSES)
    assert subject.facts.allotments.get(MEMORY) == allotment


def test_a_guest_without_a_group_is_measured_by_the_processes_that_its_driver_names():
    guest = build_guest("a", pid=4_000_000, qos_class="BE")
    assert measured(guest) == ("", (4_000_000, 4_000_001, 4_000_002))


def test_a_guest_with_a_group_of_its_own_is_measured_by_that():
    guest = build_guest("a", pid=4_000_000, cgroup="/sys/fs/cgroup/a", qos_class="BE")
    assert measured(guest) == ("/sys/fs/cgroup/a", (4_000_000,))
