"""Tests of the loop of watermarks with the real worker: guests are throttled, and their limits are always
removed later.
"""

import logging
import re
from dataclasses import replace

import pytest

from compute_agent.agent.documents import watermark_rows
from compute_agent.model.guest import ConsumerAllocations
from compute_agent.model.resource import ThrottleControl
from compute_agent.pipeline.events import GuestStarted, LimitGuest
from compute_agent.throttling.arbiter import limit_differences
from compute_agent.throttling.watermarks.metrics import (
    GuestSampling,
    MetricRegistry,
    MetricUnit,
    WatermarkMetric,
    host_usage,
)
from compute_agent.throttling.watermarks.state import ThrottledGuest, WatermarkState
from compute_agent.throttling.watermarks.thresholds import WeekMoment
from compute_agent.usage.snapshot import MetricSeries
from tests.compute_agent.loops.configurations import configuration
from tests.compute_agent.loops.overload import LINES, NODE, QUOTA, Overload
from tests.waits import wait_for

SWITCH = LINES + "disable_scheduling = 3.5\n"
EVICT = """
[qos]
evict_grace = 0.2

[watermark:cpu]
metric = cpu_usage
evict = 4
for_samples = 1
"""


class TraitsPlacement:
    """A client of a Placement in which each consumer has an allocation on this host."""

    def __init__(self):
        self.given_back = []

    def get_allocations(self, consumer):
        held = {} if consumer in self.given_back else {NODE: {"VCPU": 4}}
        return ConsumerAllocations(consumer, held, 1, "p", "u", "INSTANCE")

    def set_allocations(self, held):
        assert held.resources == {}
        self.given_back.append(held.consumer)


@pytest.fixture
def host(tmp_path):
    with Overload(tmp_path) as host:
        yield host


@pytest.fixture
def overloaded(host):
    """A host on which guests want 3 + 2 cores, and may use 4."""
    host.run("big", 3.0)
    host.run("small", 2.0)
    return host


def calm_down(host):
    host.demand = dict.fromkeys(host.demand, 0.5)


def test_one_guest_is_throttled_and_released(overloaded):
    overloaded.watermarks.run_round()
    assert overloaded.usage() <= 4
    assert overloaded.limits().keys() == {"big"}
    (view,) = (one for one in overloaded.pipeline.guest_views() if one.limits)
    assert view.limits == {QUOTA: pytest.approx(overloaded.limits()["big"])}
    calm_down(overloaded)
    overloaded.rounds(until=lambda: not overloaded.limits())
    assert overloaded.saved().throttles == ()


def test_a_line_of_another_time_of_day_counts_from_its_first_minute_on(host):
    host.lines = LINES.replace("throttle_down = 4", "throttle_down = 4, 22:00-06:00 6")
    host.crash()
    host.boot()
    host.moment = WeekMoment(0, 22 * 60)
    host.run("big", 3.0)
    host.run("small", 2.0)
    host.watermarks.run_round()
    assert host.limits() == {}
    host.moment = WeekMoment(1, 6 * 60)
    host.watermarks.run_round()
    assert host.usage() <= 4


def test_guests_with_dedicated_cpus_or_unknown_allocations_are_left_alone(host):
    host.run("dedicated", 3.0, allocation={NODE: {"PCPU": 1}}, vcpus=1)
    host.run("better", 2.0, qos_class="LS")
    host.find("unknown", 2.0)
    host.rounds(3)
    assert host.limits() == {}
    host.run("mine", 3.0)
    host.rounds(1)
    assert host.limits() == {"mine": 0.4}


def test_a_guest_that_cannot_be_limited_costs_others_and_one_line_in_the_log(overloaded, caplog):
    overloaded.driver.unlimited.add("big")
    with caplog.at_level(logging.INFO):
        overloaded.rounds(5)
    assert overloaded.limits().keys() == {"small"}
    assert caplog.text.count("guest big cannot be limited") == 1
    assert "Watermark: throttle small to" in caplog.text


def test_throttled_guests_outlive_the_agent(overloaded):
    overloaded.rounds(2)
    before = overloaded.limits()
    overloaded.crash()
    overloaded.boot()
    overloaded.rounds(3)
    assert overloaded.limits() == before
    calm_down(overloaded)
    overloaded.rounds(until=lambda: not overloaded.limits())
    assert overloaded.saved().throttles == ()


def test_no_guest_stays_throttled_after_an_agent_died_while_it_throttled(overloaded):
    """The limit is in the saved state, but not in the kernel yet."""
    overloaded.crash()
    overloaded.file.keep_watermarks(WatermarkState((ThrottledGuest("big", QUOTA, 1.0),)))
    calm_down(overloaded)
    overloaded.boot()
    overloaded.rounds(1)
    overloaded.rounds(until=lambda: not overloaded.limits())
    assert overloaded.saved().throttles == ()


def test_the_loop_without_watermarks_releases_limits_and_ends(overloaded):
    overloaded.reload(SWITCH)
    overloaded.rounds(2)
    assert overloaded.switches == [True]
    overloaded.crash()
    overloaded.lines = ""
    overloaded.boot()
    overloaded.watermarks.start()
    wait_for(lambda: not overloaded.has_loop())
    assert overloaded.limits() == {}
    assert overloaded.switches[-1] is False
    assert overloaded.saved().throttles == ()
    assert overloaded.saved().scheduling_off is False


def test_there_is_no_loop_without_watermarks_and_limits(tmp_path):
    host = Overload(tmp_path)
    host.lines = ""
    host.boot()
    host.watermarks.start()
    assert not host.has_loop()
    host.lines = LINES
    host.watermarks.reload(configuration(settings=host.settings()))
    assert host.has_loop()
    host.crash()
    assert not host.has_loop()


def test_a_removed_section_releases_its_limits(overloaded):
    overloaded.rounds(1)
    assert overloaded.limits()
    overloaded.reload("")
    overloaded.rounds(until=lambda: not overloaded.limits())


def test_the_switch_outlives_the_agent(overloaded):
    overloaded.reload(SWITCH)
    overloaded.rounds(2)
    assert overloaded.switches == [True]
    overloaded.crash()
    calm_down(overloaded)
    overloaded.boot()
    overloaded.rounds(until=lambda: overloaded.switches == [True, False])
    assert overloaded.saved().scheduling_off is False


def test_limits_are_remembered_while_the_driver_does_not_answer(overloaded):
    overloaded.rounds(1)
    before = overloaded.saved()
    assert before.throttles
    overloaded.crash()
    overloaded.driver.absent = True
    overloaded.boot()
    overloaded.rounds(3)
    assert overloaded.saved() == before
    overloaded.driver.absent = False
    calm_down(overloaded)
    overloaded.pipeline.submit(LimitGuest("nobody", QUOTA, None)).exception(10)  # the driver is asked again
    overloaded.rounds(until=lambda: not overloaded.limits())


def test_a_rebooted_guest_is_throttled_again(overloaded):
    overloaded.rounds(1)
    before = overloaded.limits()["big"]
    guest = overloaded.driver.running["big"]
    overloaded.driver.running["big"] = replace(guest, pid=5)
    overloaded.driver.affinities["big"] = {5: overloaded.driver.cpus}
    event = GuestStarted(overloaded.driver.running["big"], {NODE: {"VCPU": 4}}, started=True)
    overloaded.pipeline.submit(event).result(10)
    assert overloaded.limits() == {}
    overloaded.rounds(1)
    assert overloaded.limits()["big"] == before


def test_a_limit_without_a_record_is_removed(overloaded):
    """The worker's answer came too late and counted as a failure, but the limit is in effect."""
    calm_down(overloaded)
    overloaded.pipeline.submit(LimitGuest("small", QUOTA, 1.0)).result(10)
    overloaded.rounds(1)
    assert overloaded.limits() == {}


def test_limits_of_other_controls_are_not_the_pipelines(overloaded):
    settings = overloaded.settings()
    levers = settings.rules.registry.levers
    levers["cpu_quota"] = replace(levers["cpu_quota"], set_limit=lambda *_: None)
    assert settings.foreign_levers == {"cpu_quota"}
    state = WatermarkState(
        (ThrottledGuest("big", QUOTA, 1.0), ThrottledGuest("big", ThrottleControl("other"), 2.0))
    )
    wanted = state.guest_limits({"cpu_quota"})
    assert limit_differences(wanted, overloaded.pipeline.guest_views()) == [
        LimitGuest("big", ThrottleControl("other"), 2.0)
    ]


def test_a_failed_round_is_logged_once_and_counted(overloaded, caplog, monkeypatch):
    overloaded.lines = LINES.replace("[qos]", "[qos]\ninterval = 0.1")
    overloaded.watermarks.reload(configuration(settings=overloaded.settings()))
    monkeypatch.setattr(overloaded.pipeline, "guest_views", lambda: 1 / 0)
    failures = "compute_agent_watermark_round_failures_total"
    wait_for(lambda: overloaded.metrics.get_sample_value(failures) >= 3)
    assert caplog.text.count("A round of the watermarks failed") == 1


def test_evicted_guests_are_stopped_the_largest_first_and_no_more_than_needed(overloaded):
    overloaded.client = TraitsPlacement()
    overloaded.reload(EVICT)
    overloaded.rounds(1)
    assert overloaded.saved().evicting_guests == {"big"}
    overloaded.rounds(until=lambda: not overloaded.saved().evictions)
    assert overloaded.driver.running.keys() == {"small"}
    assert [view.guest.uuid for view in overloaded.pipeline.guest_views()] == ["small"]
    assert overloaded.client.given_back == ["big"]


def test_an_eviction_is_finished_by_the_next_agent(overloaded):
    overloaded.driver.stubborn.add("big")
    overloaded.client = TraitsPlacement()
    overloaded.reload(EVICT)
    overloaded.rounds(1)
    assert overloaded.driver.stopping.wait(10)
    overloaded.crash()
    assert overloaded.saved().evicting_guests == {"big"}
    overloaded.driver.stubborn.clear()
    overloaded.boot()
    overloaded.rounds(until=lambda: not overloaded.saved().evictions)
    assert overloaded.driver.running.keys() == {"small"}
    assert overloaded.client.given_back == ["big"]


def test_rows_show_line_usage_gap_streak_and_action(overloaded):
    overloaded.reload(SWITCH)
    overloaded.rounds(1)
    rows = {row["action"]: row for row in watermark_rows(overloaded.watermarks.status)}
    assert rows["throttle_down"] == {
        "section": "cpu",
        "metric": "cpu_usage",
        "unit": "cores",
        "domain": "",
        "mode": "act",
        "action": "throttle_down",
        "line": "4",
        "amount": 4.0,
        "usage": 5.0,
        "gap": 1.0,
        "streak": 1,
        "for_samples": 1,
        "in_force": [f"big has {overloaded.limits()['big']:g} cores"],
    }
    assert rows["disable_scheduling"]["in_force"] == ["new guests are kept away"]
    assert (rows["throttle_up"]["gap"], rows["throttle_up"]["in_force"]) == (None, [])
    calm_down(overloaded)
    overloaded.rounds(1)
    rows = {row["action"]: row for row in watermark_rows(overloaded.watermarks.status)}
    assert (rows["throttle_up"]["gap"], rows["throttle_down"]["gap"]) == (2.0, None)


def test_new_guests_are_kept_away_by_the_line_in_breach_and_no_other(overloaded):
    overloaded.reload(
        SWITCH.replace("cool_down = 0", "cool_down = 1000")
        + "\n[watermark:far]\nmetric = cpu_usage\ndisable_scheduling = 7\nfor_samples = 1\ncool_down = 0\n"
    )

    def in_force():
        rows = watermark_rows(overloaded.watermarks.status)
        return {row["section"]: row["in_force"] for row in rows if row["action"] == "disable_scheduling"}

    overloaded.rounds(1)
    assert in_force() == {"cpu": ["new guests are kept away"], "far": []}
    calm_down(overloaded)
    overloaded.rounds(2)
    assert in_force()["far"] == []
    assert re.fullmatch(r"new guests are kept away for (1000|9\d\d) s more", *in_force()["cpu"])


def test_no_row_is_wrong_before_the_first_round(host):
    rows = watermark_rows(host.watermarks.status)
    assert [(row["action"], row["line"], row["usage"]) for row in rows] == [
        ("throttle_down", "4", None),
        ("throttle_up", "3", None),
    ]


def test_rows_are_of_the_settings_in_force_though_a_round_of_others_ended_later(overloaded, monkeypatch):
    views = overloaded.pipeline.guest_views()

    def reload_in_the_round():
        overloaded.reload("")
        return views

    monkeypatch.setattr(overloaded.pipeline, "guest_views", reload_in_the_round)
    overloaded.rounds(1)
    assert watermark_rows(overloaded.watermarks.status) == []


class Measured(Overload):
    """A host of 8 cores, of which ``used`` are in use.

    ``rounds_with_guests`` has the times of the rounds in which guests were measured.
    """

    def __init__(self, folder):
        super().__init__(folder)
        self.time, self.used, self.rounds_with_guests = 100.0, 0.0, []
        self.clock = lambda: self.time
        (metric,) = self.registry.values()
        sampled = replace(metric, measure=self._measure_rates, guest_sampling=GuestSampling.NEAR)
        self.registry = MetricRegistry([sampled])

    def _measure_rates(self, now, before):
        if now.subjects:
            self.rounds_with_guests.append(now.time)
        has_rates = before is not None and before.subjects
        used = {one.facts.uuid: self._used(one.facts.uuid) for one in now.subjects} if has_rates else {}
        return host_usage(self.used, used, 8.0)

    def run_seconds(self, seconds):
        """Run one round a second; return the rounds in which guests were measured."""
        self.rounds_with_guests.clear()
        for _ in range(seconds):
            self.time += 1
            self.watermarks.run_round()
        return sorted(set(self.rounds_with_guests))


@pytest.fixture
def measured(tmp_path):
    with Measured(tmp_path) as host:
        host.run("big", 3.0)
        host.run("small", 2.0)
        yield host


def test_a_host_far_below_its_thresholds_measures_guests_now_and_then(measured):
    assert measured.run_seconds(20) == [101, 102, 116, 117]
    shown = measured.watermarks.status.snapshot
    assert shown.time == 120
    assert [*shown.guests["big"].usage.values()] == [3.0]


def test_a_jump_is_acted_on_in_the_first_round_that_has_rates(measured):
    measured.run_seconds(5)
    measured.used = 5.0
    assert measured.run_seconds(1) == [106]
    assert not measured.limits()
    assert measured.run_seconds(1) == [107]
    assert measured.limits().keys() == {"big"}


def test_usage_near_a_threshold_is_acted_on_at_once(measured):
    measured.used = 2.5
    measured.run_seconds(5)
    measured.used = 5.0
    measured.run_seconds(1)
    assert measured.limits().keys() == {"big"}


def test_guests_are_measured_in_each_round_while_a_limit_is_in_force(measured):
    measured.used = 5.0
    measured.run_seconds(3)
    assert measured.limits()
    measured.used = 1.0
    measured.driver.unlimited = {"big"}
    assert len(measured.run_seconds(3)) == 3 or not measured.limits()
    measured.driver.unlimited = set()
    measured.run_seconds(60)
    assert not measured.limits()
    assert len(measured.run_seconds(30)) <= 4


def test_a_round_reads_only_the_metrics_of_guests_near_their_thresholds(tmp_path):
    class TwoMetrics(Measured):
        """A host that also measures the memory of guests, far below its threshold."""

        def __init__(self, folder):
            super().__init__(folder)
            self.memory_rounds = []
            (cpu,) = self.registry.values()
            memory = WatermarkMetric(
                "held", MetricUnit.OTHER, 3, self._measure_memory, guest_sampling=GuestSampling.ABOVE
            )
            self.registry = MetricRegistry([cpu, memory])

        def _measure_memory(self, now, before):
            if now.subjects:
                self.memory_rounds.append(now.time)
            return host_usage(10.0, {one.facts.uuid: now.time for one in now.subjects})

    with TwoMetrics(tmp_path) as host:
        host.reload(f"{LINES}\n[watermark:held]\nmetric = held\ndisable_scheduling = 50\n")
        host.run("big", 1.0)
        host.used = 3.0  # near the threshold, and below it
        assert host.run_seconds(20) == [*range(101, 121)]
        assert host.memory_rounds == [101, 102, 116, 117]
        shown = host.watermarks.status.snapshot
        assert (shown.time, shown.host[MetricSeries("held")]) == (120, 10.0)
        usage = {series.metric: used for series, used in shown.guests["big"].usage.items()}
        assert usage == {"cpu_usage": 1.0, "held": 117}
