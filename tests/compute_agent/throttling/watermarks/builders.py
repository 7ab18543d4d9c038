"""Builders of snapshots, guests and watermarks for tests."""

from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.levers import ThrottleSteps
from compute_agent.throttling.watermarks.breaches import observe_usage
from compute_agent.throttling.watermarks.metrics import MetricRegistry
from compute_agent.throttling.watermarks.sections import WatermarkAction, WatermarkRules, WatermarkSection
from compute_agent.throttling.watermarks.thresholds import WatermarkThreshold
from compute_agent.usage.snapshot import GuestAllotment, GuestUsage, MetricSeries, UsageSnapshot

CPU = MetricSeries("cpu_usage")
MEMORY = MetricSeries("memory_usage")
BEST_EFFORT = MetricSeries("best_effort_cpu")
PRESSURE = MetricSeries("cpu_pressure")
QUOTA = ThrottleControl("cpu_quota")

RANKS = {"BE": 0, "LS": 10, "LSR": 20}


def guest(
    uuid,
    cores=None,
    memory=None,
    *,
    vcpus=4.0,
    qos_class="BE",
    priority=0,
    protected=False,
    started=0.0,
    usage=None,
    allotments=None,
):
    """A guest with the given usage. None stands for an unknown usage."""
    known = dict(usage or {})
    if cores is not None:
        known[CPU] = cores
    if memory is not None:
        known[MEMORY] = memory
    if allotments is None:
        allotments = {QUOTA: GuestAllotment(vcpus)}
    return GuestUsage(uuid, qos_class, RANKS[qos_class], priority, protected, started, allotments, known)


MEMORY_CONTROL = ThrottleControl("memory_high")
GIB = 2.0**30


def memory_guest(uuid, used, held=4 * GIB, **settings):
    """A guest with memory that can be limited."""
    return guest(uuid, 0.0, used, allotments={MEMORY_CONTROL: GuestAllotment(held, 2.0**20)}, **settings)


def snapshot(*guests, time=100.0, own=0.0, cpus=100.0, host=None, capacity=None):
    """A snapshot of a host that uses the sum of its guests' use and ``own`` cores."""
    usage = {
        CPU: own + sum(one.usage.get(CPU, 0.0) for one in guests),
        MEMORY: sum(one.usage.get(MEMORY, 0.0) for one in guests),
    }
    return UsageSnapshot(
        time, usage | (host or {}), {one.uuid: one for one in guests}, {CPU: cpus} | (capacity or {})
    )


def line(name="line", metric="cpu_usage", **settings):
    """A watermark section. Numbers become thresholds in the unit of the metric."""
    found = {action: settings.pop(action) for action in WatermarkAction if action in settings}
    thresholds = {
        action: WatermarkThreshold(float(one)) if isinstance(one, int | float) else one
        for action, one in found.items()
        if one is not None
    }
    return WatermarkSection(name, metric, thresholds, **settings)


def rules(*lines, margin=0.0, step=0.2, min_share=0.1, registry=None):
    return WatermarkRules(registry or MetricRegistry(), lines, ThrottleSteps(step, min_share), margin)


def seen(by, *snapshots):
    """The streaks of the watermarks after these snapshots."""
    streaks = {}
    for one in snapshots:
        streaks = observe_usage(streaks, by.watermarks, one)
    return streaks
