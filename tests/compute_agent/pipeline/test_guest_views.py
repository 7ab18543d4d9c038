"""Tests of the copies of guests for other threads, which are made again only after a change."""

from dataclasses import fields

import pytest

from compute_agent.model.guest import CpuAssignment, GuestMigration
from compute_agent.model.resource import CPU_QUOTA, ThrottleControl
from compute_agent.pipeline import worker
from compute_agent.pipeline.events import LimitGuest
from compute_agent.pipeline.guest_cache import CachedGuest, GuestView, renew_view, view_guest
from tests.compute_agent.builders import build_guest
from tests.compute_agent.pipeline.fake_host import FakeHost

QUOTA = ThrottleControl(CPU_QUOTA)

CHANGES = {
    "guest": lambda entry: setattr(entry, "guest", build_guest("b")),
    "allocation": lambda entry: setattr(entry, "allocation", {"zone": {"VCPU": 2}}),
    "assignment": lambda entry: setattr(
        entry, "assignment", CpuAssignment((frozenset({1}),), frozenset({1}))
    ),
    "refusal": lambda entry: setattr(entry, "refusal", "no room"),
    "stray": lambda entry: setattr(entry, "stray", "no allocation"),
    "refused": lambda entry: setattr(entry, "refused", ("cpu: no",)),
    "limits": lambda entry: entry.limits.update({ThrottleControl(CPU_QUOTA): 1.0}),
    "pending": lambda entry: entry.pending.add("cpu"),
    "migration": lambda entry: setattr(entry, "migration", GuestMigration("m")),
    "cache_delay": lambda entry: setattr(entry, "cache_delay", 0.5),
}


def test_each_field_has_a_change():
    # The NUMA nodes follow from the assignment and the topology.
    assert {field.name for field in fields(GuestView)} - {"cpu_nodes"} == CHANGES.keys()


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_guest_makes_its_copy_outdated(name):
    entry = CachedGuest(build_guest("a"), {"zone": {"VCPU": 1}}, pending={"resctrl"})
    view = view_guest(entry)
    assert view.is_current(entry)
    CHANGES[name](entry)
    assert not view.is_current(entry)
    assert view_guest(entry).is_current(entry)


def test_another_set_of_pending_changes_of_the_same_size_is_a_change():
    entry = CachedGuest(build_guest("a"), pending={"resctrl"})
    view = view_guest(entry)
    entry.pending = {"cpu"}
    assert not view.is_current(entry)


def test_only_an_outdated_copy_is_made_again():
    entry = CachedGuest(build_guest("a"))
    view = view_guest(entry)
    assert renew_view(view, entry, None) is view
    entry.refusal = "no room"
    assert renew_view(view, entry, None) == view_guest(entry) != view
    assert renew_view(None, entry, None) == view_guest(entry)


def test_copies_are_compared_with_guests_only_after_an_event(monkeypatch):
    host, compared = FakeHost(), []

    def count(view, entry, topology):
        compared.append(entry.guest.uuid)
        return renew_view(view, entry, topology)

    monkeypatch.setattr(worker, "renew_view", count)
    host.take_over()
    assert host.pipeline.guest_views() == []
    for uuid in ("b", "a"):
        host.run(uuid, (0, 1, 0))
    compared.clear()
    views = host.pipeline.guest_views()
    assert [view.guest.uuid for view in views] == ["a", "b"]
    assert sorted(compared) == ["a", "b"]
    compared.clear()
    assert host.pipeline.guest_views() == views
    assert compared == []
    # Copies that are made within an event may be of a guest that the event changes later.
    host.on_save = host.pipeline.guest_views
    host.handle(LimitGuest("b", QUOTA, 1.0))
    assert sorted(compared) == ["a", "b"]
    assert host.pipeline.guest_views()[1].limits == {QUOTA: 1.0}
    assert sorted(compared) == ["a", "a", "b", "b"]
    # The caller gets a list of its own.
    host.pipeline.guest_views().clear()
    assert len(host.pipeline.guest_views()) == 2
