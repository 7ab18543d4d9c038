"""Tests of breaches: usage above a threshold over time."""

from dataclasses import replace

from compute_agent.throttling.watermarks.breaches import (
    ThresholdStreak,
    WatermarkWatch,
    find_near_watermarks,
    is_confirmed,
    is_overloaded,
    is_quiet,
    lacks_rates,
    observe_usage,
)
from compute_agent.throttling.watermarks.plan import make_plan
from compute_agent.throttling.watermarks.sections import WatermarkAction
from compute_agent.throttling.watermarks.state import SwitchScheduling, WatermarkState
from compute_agent.throttling.watermarks.thresholds import WatermarkThreshold
from compute_agent.usage.snapshot import MetricSeries, UsageSnapshot
from tests.compute_agent.throttling.watermarks.builders import CPU, line, rules, seen

DOWN = WatermarkWatch("line", WatermarkAction.THROTTLE_DOWN, "")


def host(*usages):
    """A snapshot for each usage, one second apart. None stands for a round without a sample."""
    return [
        UsageSnapshot(float(second), {} if usage is None else {CPU: float(usage)})
        for second, usage in enumerate(usages)
    ]


def streak(*usages, **settings):
    return seen(rules(line(throttle_down=10, throttle_up=5, **settings)), *host(*usages))[DOWN]


def test_samples_in_a_row_are_counted():
    assert streak(11, 12, 13) == ThresholdStreak(3, 0, 2.0)
    assert streak(11, 12, 10) == ThresholdStreak(0, 0, 1.0)
    assert streak(11, 9, 12) == ThresholdStreak(1, 0, 2.0)
    assert streak(9, 9) == ThresholdStreak(0, 0, 0.0)


def test_round_without_a_sample_changes_nothing_until_there_are_as_many_as_would_confirm():
    assert streak(11, 11, None, None, for_samples=3) == ThresholdStreak(2, 2, 1.0)
    assert streak(11, 11, None, 11, for_samples=3) == ThresholdStreak(3, 0, 3.0)
    assert streak(11, 11, None, None, None, for_samples=3) == ThresholdStreak(0, 3, 1.0)


def test_each_action_and_each_domain_has_a_streak_of_its_own():
    one = line("bw", "memory_bandwidth", throttle_down=10, throttle_up=5, evict=20)
    now = UsageSnapshot(
        0.0, {MetricSeries("memory_bandwidth", "0"): 15.0, MetricSeries("memory_bandwidth", "1"): 25.0}
    )
    streaks = observe_usage({}, [one], now)
    assert {(watch.action, watch.domain) for watch, found in streaks.items() if found.samples} == {
        (WatermarkAction.THROTTLE_DOWN, "0"), (WatermarkAction.THROTTLE_DOWN, "1"),
        (WatermarkAction.EVICT, "1"),
    }  # fmt: skip
    assert is_confirmed(streaks, one, WatermarkAction.EVICT, "1")
    assert not is_confirmed(streaks, one, WatermarkAction.EVICT, "0")


def test_percentage_of_an_unknown_capacity_is_no_sample():
    one = line(throttle_down=WatermarkThreshold(80, True), throttle_up=WatermarkThreshold(70, True))
    assert observe_usage({}, [one], UsageSnapshot(0.0, {CPU: 50.0}))[DOWN].unseen == 1
    now = UsageSnapshot(0.0, {CPU: 50.0}, capacity={CPU: 60.0})
    assert observe_usage({}, [one], now)[DOWN].samples == 1


def test_lines_that_are_configured_no_more_are_forgotten():
    streaks = observe_usage({}, [line(evict=1)], UsageSnapshot(0.0, {CPU: 5.0}))
    assert observe_usage(streaks, [], UsageSnapshot(1.0, {CPU: 5.0})) == {}


def test_quiet_needs_a_sample_and_the_cool_down():
    one = line(throttle_down=10, throttle_up=5, for_samples=2)
    assert is_quiet(ThresholdStreak(0, 0, 90.0), one, 100.0, 10.0)
    assert not is_quiet(ThresholdStreak(0, 0, 90.1), one, 100.0, 10.0)
    assert not is_quiet(ThresholdStreak(1, 0, 0.0), one, 100.0, 10.0)
    assert not is_quiet(ThresholdStreak(0, 1, 0.0), one, 100.0, 10.0)
    assert is_quiet(ThresholdStreak(0, 2, 0.0), one, 100.0, 10.0)


def test_breach_of_the_scheduling_line_is_no_overload():
    assert not is_overloaded(observe_usage({}, [line(disable_scheduling=1)], UsageSnapshot(0.0, {CPU: 5.0})))
    assert is_overloaded(observe_usage({}, [line(evict=1, for_samples=9)], UsageSnapshot(0.0, {CPU: 5.0})))


BANDWIDTH = [MetricSeries("memory_bandwidth", cache) for cache in "01"]


def bandwidth(time, *series):
    return UsageSnapshot(time, dict.fromkeys(series, 15.0))


def test_watch_before_the_first_sample_ends_with_it():
    by = rules(line("bw", "memory_bandwidth", disable_scheduling=20, for_samples=2))
    assert {watch.domain for watch in seen(by, bandwidth(0.0))} == {""}
    assert {watch.domain for watch in seen(by, bandwidth(0.0), bandwidth(1.0, *BANDWIDTH))} == {"0", "1"}


def test_domain_that_is_gone_while_others_are_measured_has_no_watch():
    by = rules(line("bw", "memory_bandwidth", disable_scheduling=20, for_samples=2))
    both, one = bandwidth(0.0, *BANDWIDTH), bandwidth(1.0, BANDWIDTH[0])
    # A single reading may fail.
    assert {watch.domain for watch in seen(by, both, one)} == {"0", "1"}
    assert {watch.domain for watch in seen(by, both, one, one)} == {"0"}
    # Without any sample nothing tells which domains exist.
    nothing = bandwidth(2.0)
    assert {watch.domain for watch in seen(by, both, nothing, nothing, nothing)} == {"0", "1"}
    # The limit of a throttled guest is still to be removed.
    streaks = observe_usage(seen(by, both, one), by.watermarks, one, expected=[BANDWIDTH[1]])
    assert {watch.domain for watch in streaks} == {"0", "1"}


def test_scheduling_resumes_after_a_first_round_without_a_sample():
    by = rules(line("bw", "memory_bandwidth", disable_scheduling=20, for_samples=2, external=True))
    snapshots = [bandwidth(0.0), *(bandwidth(time, *BANDWIDTH) for time in (1.0, 2.0))]
    state = WatermarkState(scheduling_off=True)
    assert make_plan(by, snapshots[-1], seen(by, *snapshots), state) == (SwitchScheduling(False),)


NEAR_LINES = rules(line("busy", "cpu_usage", throttle_down=4, throttle_up=1, disable_scheduling=6))
MEMORY = MetricSeries("memory_usage")
ABOVE_LINES = rules(line("full", "memory_usage", evict=100))


def test_guests_are_needed_from_half_of_the_lowest_threshold_on_for_rates():
    assert [len(find_near_watermarks(NEAR_LINES, one)) for one in host(0.0, 2.0, 2.1, 5.0)] == [0, 0, 1, 1]
    assert [lacks_rates(NEAR_LINES, one, frozenset()) for one in host(2.1, 4.0, 4.1)] == [0, 0, 1]
    assert not lacks_rates(NEAR_LINES, host(4.1)[0], {"cpu_usage", "memory_usage"})


def test_rates_of_other_metrics_do_not_help():
    assert lacks_rates(NEAR_LINES, host(4.1)[0], {"memory_usage"})


def test_rates_of_the_metric_that_the_lever_limits_are_needed():
    by = rules(line("thrash", "swap_in", throttle_down=10, throttle_up=1))
    jump = UsageSnapshot(0.0, {MetricSeries("swap_in"): 11.0})
    assert lacks_rates(by, jump, {"swap_in"})
    assert not lacks_rates(by, jump, {"swap_in", "cpu_usage"})


def test_guests_are_needed_above_a_threshold_for_amounts():
    found = [UsageSnapshot(0.0, {MEMORY: usage}) for usage in (99.0, 100.0, 101.0)]
    assert [len(find_near_watermarks(ABOVE_LINES, one)) for one in found] == [0, 0, 1]
    assert not any(lacks_rates(ABOVE_LINES, one, frozenset()) for one in found)


def test_only_watermarks_near_their_thresholds_need_guests():
    both = replace(NEAR_LINES, watermarks=(*NEAR_LINES.watermarks, *ABOVE_LINES.watermarks))
    snapshot = UsageSnapshot(0.0, {CPU: 3.0, MEMORY: 100.0})
    assert [one.name for one in find_near_watermarks(both, snapshot)] == ["busy"]


def test_guests_are_always_needed_for_metrics_that_are_computed_from_them():
    by = rules(line("cache", "llc_occupancy", throttle_down=4, throttle_up=1))
    assert find_near_watermarks(by, *host(0)) == by.watermarks
    assert not find_near_watermarks(rules(), *host(0))


def test_usage_or_capacity_that_is_not_known_needs_no_guests():
    share = rules(line("busy", "cpu_usage", throttle_down=WatermarkThreshold(50, True)))
    assert not find_near_watermarks(share, *host(7))
    assert not find_near_watermarks(NEAR_LINES, *host(None))
