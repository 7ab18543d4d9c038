"""Tests of preserved guests: the agent sets no pins and no limits for them, and other guests avoid their
CPUs.
"""

from dataclasses import replace

import pytest

from compute_agent.classes.guest_classes import parse_classes
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.pipeline.events import GuestStarted, ReconcileGuests
from compute_agent.pipeline.guest_cache import CachedGuest, view_guest
from compute_agent.usage.subjects import SubjectInputs, build_subject
from tests.compute_agent.builders import build_guest, cpu_set, find_view, load_options
from tests.compute_agent.pipeline.fake_host import ALL, FakeHost


@pytest.fixture
def rig():
    return FakeHost()


def preserve(rig, uuid, preserved=True):
    """Set or remove the setting ``preserve`` of a running guest."""
    guest = rig.driver.running[uuid]
    changed = replace(guest, settings=replace(guest.settings, preserve=preserved))
    rig.driver.running[uuid] = changed
    rig.handle(GuestStarted(changed, None))


def appear(rig, uuid, allocation, cpus=ALL):
    """Start a preserved guest outside of the agent, on these CPUs."""
    guest = rig.driver.create_guest(uuid, uuid, GuestSettings(preserve=True), ("sleep", "9"))
    rig.driver.affinities[uuid] = dict.fromkeys(rig.driver.affinities[uuid], cpu_set(*cpus))
    rig.handle(GuestStarted(guest, allocation, started=True))


def test_a_preserved_guest_is_not_pinned(rig):
    appear(rig, "a", {"node0": {"PCPU": 1}})
    rig.handle(ReconcileGuests())
    assert rig.observed("a") == ALL
    assert find_view(rig.pipeline, "a").pending == ()
    rig.pipeline.update_gauges()
    assert rig.metric("preserved_guests") == 1


def test_other_guests_avoid_the_cpus_that_a_preserved_guest_is_pinned_to(rig):
    appear(rig, "a", {"node0": {"PCPU": 1}}, cpus=(1,))
    assert rig.run("b", (0, 1, 0)).assignment.held_cpus == {2}
    rig.driver.affinities["a"] = dict.fromkeys(rig.driver.affinities["a"], cpu_set(5))
    rig.handle(ReconcileGuests())
    assert find_view(rig.pipeline, "a").assignment.held_cpus == {5}


def test_a_pinned_guest_stays_where_it_is_and_drift_is_not_repaired(rig):
    rig.run("a", (0, 1, 0))
    preserve(rig, "a")
    rig.driver.affinities["a"] = dict.fromkeys(rig.driver.affinities["a"], cpu_set(2))
    rig.handle(ReconcileGuests())
    assert rig.observed("a") == {2}
    preserve(rig, "a", preserved=False)
    assert find_view(rig.pipeline, "a").assignment.held_cpus == {2}
    rig.driver.affinities["a"] = dict.fromkeys(rig.driver.affinities["a"], ALL)
    rig.handle(ReconcileGuests())
    assert rig.observed("a") == {2}


@pytest.mark.parametrize("preserved", [False, True])
def test_a_preserved_guest_of_any_class_is_protected(preserved):
    view = view_guest(CachedGuest(build_guest("a", qos_class="BE", preserve=preserved), {}))
    subject = build_subject(SubjectInputs(view, parse_classes(load_options())), 0.0)
    assert subject.facts.protected is preserved
