"""Who is told of actions beside operators."""

from prometheus_client import CollectorRegistry

from compute_agent.events.event import Outcome
from compute_agent.qos.actions import Evict, Restore, SwitchScheduling, Throttle
from compute_agent.qos.levers import CPU_QUOTA
from compute_agent.qos.telemetry import Telemetry


def test_whoever_is_throttled_or_evicted_is_told_of_and_nobody_else():
    blamed = []
    telemetry = Telemetry(CollectorRegistry(), blame=lambda *one: blamed.append(one))
    throttle = Throttle("a", CPU_QUOTA.name, 1.0, "cpu_usage", "w")
    for outcome in Outcome:
        telemetry.record(throttle, outcome)
    telemetry.record(Evict("b", "cpu_pressure", "w"), Outcome.DONE)
    telemetry.record(Restore("a", CPU_QUOTA.name, None), Outcome.DONE)
    telemetry.record(SwitchScheduling(True, ("w",)), Outcome.DONE)
    assert blamed == [("a", "cpu_usage"), ("b", "cpu_pressure")]
