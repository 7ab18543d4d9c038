"""Notices of actions to guests."""

from prometheus_client import CollectorRegistry

from compute_agent.events.event import EventOutcome
from compute_agent.throttling.actions import EvictAction, RestoreAction, SwitchScheduling, ThrottleAction
from compute_agent.throttling.levers import CPU_QUOTA
from compute_agent.throttling.telemetry import ThrottleTelemetry


def test_only_throttled_and_evicted_guests_are_reported():
    blamed = []
    telemetry = ThrottleTelemetry(CollectorRegistry(), blame=lambda *one: blamed.append(one))
    throttle = ThrottleAction("a", CPU_QUOTA.name, 1.0, "cpu_usage", "w")
    for outcome in EventOutcome:
        telemetry.record_action(throttle, outcome)
    telemetry.record_action(EvictAction("b", "cpu_pressure", "w"), EventOutcome.DONE)
    telemetry.record_action(RestoreAction("a", CPU_QUOTA.name, None), EventOutcome.DONE)
    telemetry.record_action(SwitchScheduling(True, ("w",)), EventOutcome.DONE)
    assert blamed == [("a", "cpu_usage", ""), ("b", "cpu_pressure", "")]
