"""Notices of actions to guests."""

from prometheus_client import CollectorRegistry

from compute_agent.events.event import EventOutcome
from compute_agent.throttling.actions import EvictAction, RestoreAction, SwitchScheduling, ThrottleAction
from compute_agent.throttling.levers import CPU_QUOTA
from compute_agent.throttling.telemetry import ThrottleTelemetry
from compute_agent.throttling.watermarks.state import WatermarkState
from compute_agent.usage.snapshot import GuestUsage, UsageSnapshot


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


def test_a_repeated_failure_is_reported_again_for_a_guest_that_was_gone(caplog):
    telemetry = ThrottleTelemetry(CollectorRegistry())
    throttle = ThrottleAction("a", CPU_QUOTA.name, 1.0, "cpu_usage", "w")
    present = UsageSnapshot(0.0, {}, {"a": GuestUsage("a", "LS", 2)})
    gone = UsageSnapshot(1.0, {})
    for snapshot in (present, present, gone):
        telemetry.record_action(throttle, EventOutcome.FAILED, "no such file")
        telemetry.show_watermarks(snapshot, WatermarkState())
    assert caplog.text.count("no such file") == 1
    telemetry.record_action(throttle, EventOutcome.FAILED, "no such file")
    assert caplog.text.count("no such file") == 2
