"""Tests of the executor, which carries out plans: failures, restarts, preview and reclaims of memory."""

import logging

import pytest
from prometheus_client import CollectorRegistry

from compute_agent.events.event import EventOutcome, EventRecorder
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import ThrottleControl
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.throttling import executor
from compute_agent.throttling.executor import ThrottleExecutor, reclaim_from_guest
from compute_agent.throttling.levers import ThrottleLever
from compute_agent.throttling.telemetry import ThrottleTelemetry
from compute_agent.throttling.triggers import WatermarkTrigger
from compute_agent.throttling.watermarks.metrics import (
    BUILT_IN,
    MetricRegistry,
    MetricUnit,
    MetricUsage,
    WatermarkMetric,
    by_usage,
    combined_order,
)
from compute_agent.throttling.watermarks.state import (
    EvictAction,
    RestoreAction,
    SwitchScheduling,
    ThrottleAction,
    ThrottledGuest,
    WatermarkState,
)
from compute_agent.usage.snapshot import GuestAllotment, MetricSeries
from tests.compute_agent.builders import build_guest
from tests.compute_agent.fakes import FakeDriver
from tests.compute_agent.throttling.watermarks.builders import (
    GIB,
    PRESSURE,
    QUOTA,
    guest,
    line,
    memory_guest,
    rules,
    snapshot,
)


class FakeActuator:
    """Records the orders to set limits and to evict guests. A test can make them fail."""

    def __init__(self):
        self.calls = []
        self.broken = {}
        self.over = {}

    def _do(self, *call):
        self.calls.append(call)
        if call[1] in self.broken:
            raise self.broken[call[1]]

    def set_limit(self, owner, guest, knob, limit):
        self._do(*(("restore", guest) if limit is None else ("throttle", guest, round(limit, 2))))

    def reclaim_memory(self, guest, amount):
        self._do("reclaim", guest, amount)

    def switch_scheduling(self, off):
        self._do("switch", off)

    def begin_eviction(self, guest, stop=None, grace=None):
        self._do("evict", guest, *([] if stop is None else [stop]))

    def finished_evictions(self):
        over, self.over = self.over, {}
        return over


class ExecutedWorld:
    """An executor, with all objects that it uses."""

    def __init__(self, by, state=None):
        self.actuator, self.saved, self.full = FakeActuator(), [], False
        self.registry, self.events = CollectorRegistry(), []
        self.telemetry = ThrottleTelemetry(self.registry, EventRecorder(self.events.append))
        executor = ThrottleExecutor(
            by.registry,
            self.actuator,
            self.actuator,
            self.actuator.switch_scheduling,
            self.telemetry,
            self.actuator.reclaim_memory,
        )
        state = state or WatermarkState(scheduling_off=False)
        self.trigger = WatermarkTrigger(by, state, executor, self.save)

    def save(self, state):
        if self.full:
            raise OSError(28, "No space left on device")
        self.saved.append((len(self.actuator.calls), state))

    def count(self, action, metric, outcome):
        labels = {"action": action, "metric": metric, "outcome": outcome}
        return self.registry.get_sample_value("compute_agent_watermark_actions_total", labels)


DOWN = line(throttle_down=7.2, throttle_up=5)


def test_plan_is_carried_out_in_order_and_kept():
    world = ExecutedWorld(rules(line(evict=9, throttle_down=5.5, throttle_up=4, disable_scheduling=2)))
    done = world.trigger.run_round(snapshot(guest("a", 4.0), guest("b", 3.0), guest("c", 3.0)))
    assert world.actuator.calls == [("switch", True), ("evict", "a"), ("throttle", "b", 2.04)]
    assert [type(one) for one in done] == [SwitchScheduling, EvictAction, ThrottleAction]
    state = world.trigger.state
    assert (state.scheduling_off, state.evicting_guests, len(state.throttles)) == (True, {"a"}, 1)
    assert world.saved[-1][1] == state
    assert world.count("throttle_down", "cpu_usage", "done") == 1


def test_next_guest_is_taken_when_an_action_fails(caplog):
    world = ExecutedWorld(rules(DOWN))
    world.actuator.broken["a"] = OSError("cpu.max: Device or resource busy")
    with caplog.at_level(logging.ERROR):
        done = world.trigger.run_round(snapshot(guest("a", 4.0), guest("b", 3.9)))
    assert [(one.guest, round(one.limit, 2)) for one in done] == [("b", 3.2)]
    assert world.actuator.calls == [("throttle", "a", 3.2), ("throttle", "b", 3.2)]
    assert "throttle a to 3.2 of cpu_quota for cpu_usage (line): OSError: cpu.max" in caplog.text
    assert world.count("throttle_down", "cpu_usage", "failed") == 1
    assert [one.guest for one in world.trigger.state.throttles] == ["b"]
    assert [(event.guest, event.outcome) for event in world.events] == [
        ("a", EventOutcome.FAILED), ("b", EventOutcome.DONE),
    ]  # fmt: skip


def test_memory_of_a_guest_is_reclaimed_at_intervals_and_a_failure_spares_it_for_minutes():
    world = ExecutedWorld(rules(line("m", "memory_usage", reclaim=2 * GIB)))
    host = [memory_guest("a", 2 * GIB), memory_guest("b", 2.1 * GIB)]
    world.actuator.broken["b"] = DriverError("the kernel found less than 256 MiB")
    for second in range(0, 312, 2):
        world.trigger.run_round(snapshot(*host, time=1000.0 + second))
    times = {name: sum(call[:2] == ("reclaim", name) for call in world.actuator.calls) for name in "ab"}
    assert times == {"a": 32, "b": 2}
    assert world.actuator.calls[:2] == [("reclaim", "b", 2**28), ("reclaim", "a", 2**28)]
    assert world.count("reclaim", "memory_usage", "done") == 32
    assert world.count("reclaim", "memory_usage", "failed") == 2
    assert world.trigger.state == WatermarkState(scheduling_off=False)


def test_round_ends_when_everything_fails():
    world = ExecutedWorld(rules(DOWN))
    world.actuator.broken = {name: RuntimeError("no") for name in "abc"}
    assert world.trigger.run_round(snapshot(guest("a", 4.0), guest("b", 3.9), guest("c", 3.8))) == ()
    assert [call[1] for call in world.actuator.calls] == ["a", "b", "c"]
    assert world.trigger.state.throttles == ()
    assert world.saved[-1][1].throttles == ()


def test_a_failure_does_not_throttle_the_others_twice_when_all_are_throttled():
    world = ExecutedWorld(rules(line("psi", "cpu_pressure", throttle_down=20, throttle_up=5)))
    world.actuator.broken["a"] = OSError("no")
    world.trigger.run_round(snapshot(guest("a"), guest("b"), host={MetricSeries("cpu_pressure"): 50.0}))
    assert world.actuator.calls == [("throttle", "a", 3.2), ("throttle", "b", 3.2)]


def test_guest_that_ended_meanwhile_is_no_failure():
    world = ExecutedWorld(rules(DOWN))
    world.actuator.broken["a"] = GuestGoneError("guest a has ended")
    world.trigger.run_round(snapshot(guest("a", 4.0), guest("b", 4.0)))
    assert world.actuator.calls == [("throttle", "a", 3.2)]
    assert world.count("throttle_down", "cpu_usage", "failed") is None
    world.trigger.run_round(snapshot(guest("b", 4.0)))
    assert world.trigger.state.throttles == ()


def test_switch_that_fails_is_tried_again_in_the_next_round():
    world = ExecutedWorld(rules(line(disable_scheduling=2)))
    world.actuator.broken[True] = OSError("placement is away")
    assert world.trigger.run_round(snapshot(guest("a", 4.0))) == ()
    world.actuator.broken.clear()
    assert world.trigger.run_round(snapshot(guest("a", 4.0))) == (SwitchScheduling(True, ("line",)),)


def test_limit_is_saved_before_it_is_set_and_forgotten_after_it_is_taken_away():
    world = ExecutedWorld(rules(DOWN))
    world.trigger.run_round(snapshot(guest("a", 4.0), guest("b", 4.0)))
    calls, state = world.saved[0]
    assert (calls, state.limit_of("a", QUOTA)) == (0, 3.2)
    world = ExecutedWorld(
        rules(DOWN), WatermarkState((ThrottledGuest("a", QUOTA, 3.9),), scheduling_off=False)
    )
    world.trigger.run_round(snapshot(guest("a", 1.0)))
    assert [(calls, state.limit_of("a", QUOTA)) for calls, state in world.saved] == [(0, 3.9), (1, None)]


def test_host_is_protected_although_the_state_cannot_be_saved(caplog):
    world = ExecutedWorld(rules(DOWN))
    world.full = True
    world.trigger.run_round(snapshot(guest("a", 4.0), guest("b", 4.0)))
    assert world.actuator.calls == [("throttle", "a", 3.2)]
    assert "cannot be saved: [Errno 28] No space left on device" in caplog.text
    world.full = False
    world.trigger.run_round(snapshot(guest("a", 3.2), guest("b", 4.0)))
    assert world.saved[-1][1].limit_of("a", QUOTA) == 3.2


def test_after_a_restart_limits_are_set_again_and_evictions_go_on():
    state = WatermarkState(
        (
            ThrottledGuest("a", QUOTA, 2.0),
            ThrottledGuest("gone", QUOTA, 1.0),
            ThrottledGuest("bad", QUOTA, 3.0),
        ),
        (EvictAction("c", "memory_usage"),),
        True,
    )
    world = ExecutedWorld(rules(DOWN), state)
    world.actuator.broken = {"gone": GuestGoneError("gone"), "bad": OSError("no")}
    world.trigger.resume_actions()
    assert world.actuator.calls == [
        ("throttle", "a", 2.0), ("throttle", "gone", 1.0), ("throttle", "bad", 3.0), ("evict", "c"),
    ]  # fmt: skip
    assert world.trigger.state == state


def test_eviction_ends_when_the_guest_has_been_seen_off():
    world = ExecutedWorld(rules(line("m", "memory_usage", evict=5)))
    world.trigger.run_round(snapshot(guest("a", 0.0, 6.0), guest("b", 0.0, 3.0)))
    world.trigger.run_round(snapshot(guest("a", 0.0, 6.0), guest("b", 0.0, 3.0)))
    assert world.actuator.calls == [("evict", "a")]
    world.actuator.over = {"a": None}
    world.trigger.run_round(snapshot(guest("b", 0.0, 3.0)))
    assert world.trigger.state.evictions == world.saved[-1][1].evictions == ()


def test_guest_that_left_after_it_was_measured_is_not_evicted_again():
    world = ExecutedWorld(rules(line("m", "memory_usage", evict=5)))
    both = guest("a", 0.0, 6.0), guest("b", 0.0, 3.0)
    world.trigger.run_round(snapshot(*both))
    world.actuator.over = {"a": None}
    world.trigger.run_round(snapshot(*both))
    assert world.actuator.calls == [("evict", "a")]
    assert world.trigger.state.evictions == ()


def test_next_guest_is_evicted_when_one_stays(caplog):
    world = ExecutedWorld(rules(line("m", "memory_usage", evict=5)))
    both = guest("a", 0.0, 6.0), guest("b", 0.0, 3.0)
    world.trigger.run_round(snapshot(*both))
    world.actuator.over = {"a": RuntimeError("migrate ended with 1")}
    world.trigger.run_round(snapshot(*both))
    assert world.actuator.calls == [("evict", "a"), ("evict", "b")]
    assert "evict a for memory_usage (m): migrate ended" in caplog.text
    assert world.count("evict", "memory_usage", "failed") == 1
    world.actuator.over = {"b": None}
    world.trigger.run_round(snapshot(both[0], time=399.0))
    assert len(world.actuator.calls) == 2
    world.trigger.run_round(snapshot(both[0], time=400.0))
    assert world.actuator.calls[-1] == ("evict", "a")


def test_preview_tells_once_and_does_nothing():
    world = ExecutedWorld(rules(line(throttle_down=7.2, throttle_up=5, disable_scheduling=2, preview=True)))
    for _ in range(3):
        assert world.trigger.run_round(snapshot(guest("a", 4.0), guest("b", 4.0))) == ()
    assert world.actuator.calls == []
    assert [(event.kind, event.outcome, event.guest) for event in world.events] == [
        ("disable_scheduling", EventOutcome.PREVIEW, ""), ("throttle_down", EventOutcome.PREVIEW, "a"),
    ]  # fmt: skip
    world.trigger.run_round(snapshot(guest("a", 1.0)))
    world.trigger.run_round(snapshot(guest("a", 4.0), guest("b", 4.0)))
    assert world.count("throttle_down", "cpu_usage", "preview") == 2


def test_lines_that_go_to_preview_give_back_what_they_took():
    world = ExecutedWorld(rules(DOWN))
    world.trigger.run_round(snapshot(guest("a", 4.0), guest("b", 4.0)))
    world.trigger.use_rules(rules(line(throttle_down=7.2, throttle_up=5, preview=True)))
    assert world.trigger.run_round(snapshot(guest("a", 3.2), guest("b", 4.1))) == (
        RestoreAction("a", QUOTA, None),
    )
    assert world.actuator.calls[-1] == ("restore", "a")


def test_metric_of_another_package_brings_its_own_hands():
    told = []
    series, knob = MetricSeries("disk_latency", "sda"), ThrottleControl("disk_weight", "sda")
    lever = ThrottleLever("disk_weight", "disk_latency", "weight", set_limit=lambda *call: told.append(call))
    metric = WatermarkMetric(
        "disk_latency", MetricUnit.OTHER, 8, lambda now, before: MetricUsage(),
        combined_order(by_usage), lever,
        throttle_quantified=True, evictable=True, evict_quantified=True, evict=print,
    )  # fmt: skip
    by = rules(
        line("disk", "disk_latency", throttle_down=9, throttle_up=5, evict=20),
        registry=MetricRegistry([*BUILT_IN, metric]),
    )
    world = ExecutedWorld(by)
    full = {knob: GuestAllotment(10.0, 1.0)}
    world.trigger.run_round(snapshot(guest("a", allotments=full, usage={series: 10.0}), host={series: 10.0}))
    assert told == [("a", "sda", 8.0)]
    world.trigger.run_round(snapshot(guest("a", allotments=full, usage={series: 25.0}), host={series: 25.0}))
    assert world.actuator.calls == [("evict", "a", print)]


def test_relapses_are_forgiven_after_a_long_quiet():
    state = WatermarkState(
        scheduling_off=False, relapses={"cpu_quota": 1}, giving_back=frozenset({"cpu_quota"})
    )
    world = ExecutedWorld(
        rules(line("psi", "cpu_pressure", throttle_down=7, throttle_up=5, cool_down=10)), state
    )
    for time in (100.0, 139.0):
        world.trigger.run_round(snapshot(guest("a", 1.0), time=time, host={PRESSURE: 1.0}))
        assert world.trigger.state.relapses == {"cpu_quota": 1}
    world.trigger.run_round(snapshot(guest("a", 1.0), time=140.0, host={PRESSURE: 1.0}))
    assert (world.trigger.state.relapses, world.trigger.state.giving_back) == ({}, frozenset())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("compute_agent_throttled_guests", 1),
        ("compute_agent_evicting_guests", 1),
        ("compute_agent_scheduling_disabled", 1),
    ],
)
def test_gauges_tell_what_is_in_force(name, value):
    world = ExecutedWorld(rules(line(evict=9, throttle_down=5.5, throttle_up=4, disable_scheduling=2)))
    world.trigger.run_round(snapshot(guest("a", 4.0), guest("b", 3.0), guest("c", 3.0)))
    assert world.registry.get_sample_value(name) == value
    usage = {"metric": "cpu_usage", "domain": ""}
    assert world.registry.get_sample_value("compute_agent_watermark_usage", usage) == 10.0


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

        def reclaim_memory(group, amount, seconds):
            assert (group, amount, seconds) == (str(tmp_path), 256 * MIB, 1.0)
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(executor, "reclaim_memory", reclaim_memory)
        reclaim_from_guest(Pipeline(tmp_path), FakeDriver({0}), uuid, 256 * MIB)

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
