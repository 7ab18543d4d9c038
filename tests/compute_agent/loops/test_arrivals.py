"""Tests that reports of a driver reach the worker as starts of guests or changes of running guests."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from compute_agent.drivers.base import ChangeKind, GuestChange
from compute_agent.loops.arrivals import GuestEvents
from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.pipeline.events import ReconcileGuests
from tests.compute_agent.loops.configurations import configuration
from tests.compute_agent.pipeline.fake_host import HOST_STATE, SETS, FakeHost

REFUSING = replace(
    HOST_STATE, cpu_sets=CpuSets(SETS.dedicated, frozenset(), frozenset()), refuse_unplaced=True
)


@pytest.mark.parametrize(
    ("kind", "runs"),
    [(ChangeKind.STARTED, False), (ChangeKind.FOUND, True), (ChangeKind.CHANGED, True)],
)
def test_only_a_guest_that_started_is_stopped_for_want_of_a_place(kind, runs):
    rig = FakeHost(REFUSING)
    nothing = SimpleNamespace(get_allocations=lambda uuid: SimpleNamespace(resources={}))
    arrivals = GuestEvents(configuration(client=nothing), rig.pipeline, lambda: None)
    rig.pipeline.start({})
    guest = rig.driver.create_guest("free", "free", GuestSettings(), ())
    arrivals.report_change(GuestChange(kind, guest))
    arrivals.hand_over_changes()
    rig.pipeline.submit(ReconcileGuests()).result(30)
    rig.pipeline.stop()
    assert ("free" in rig.driver.running) is runs
