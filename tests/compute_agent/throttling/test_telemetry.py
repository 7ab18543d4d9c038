"""Tests of logs, events and metrics about actions on guests."""

import pytest
from prometheus_client import CollectorRegistry

from compute_agent.events.event import EventOutcome
from compute_agent.throttling.levers import CPU_QUOTA
from compute_agent.throttling.telemetry import ThrottleTelemetry
from compute_agent.throttling.watermarks.state import (
    EvictAction,
    RestoreAction,
    SwitchScheduling,
    ThrottleAction,
    WatermarkState,
)
from compute_agent.throttling.watermarks.thresholds import WatermarkThreshold
from compute_agent.usage.snapshot import GuestUsage, MetricSeries, UsageSnapshot
from tests.compute_agent.throttling.watermarks.builders import line

CPU = MetricSeries("cpu_usage")


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


def test_the_lines_of_watermarks_are_shown_as_long_as_their_metric_is_measured():
    registry = CollectorRegistry()
    telemetry = ThrottleTelemetry(registry)
    section = line("cpu", throttle_down=WatermarkThreshold(80.0, relative=True), throttle_up=1.5)
    measured = UsageSnapshot(0.0, {CPU: 3.0}, {}, {CPU: 4.0})
    telemetry.show_watermarks(measured, WatermarkState(), [section])
    lines = {
        one.labels["action"]: (one.labels["section"], one.value)
        for family in registry.collect()
        for one in family.samples
        if one.name == "compute_agent_watermark_threshold"
    }
    assert lines == {"throttle_down": ("cpu", pytest.approx(3.2)), "throttle_up": ("cpu", 1.5)}
    telemetry.show_watermarks(UsageSnapshot(1.0, {}), WatermarkState(), [section])
    assert (
        registry.get_sample_value("compute_agent_watermark_usage", {"metric": "cpu_usage", "domain": ""})
        is None
    )
    assert "watermark_threshold" not in {one.name for family in registry.collect() for one in family.samples}
