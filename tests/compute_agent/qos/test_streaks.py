"""Lines over time."""

from compute_agent.qos.snapshot import Series, Snapshot
from compute_agent.qos.streaks import Streak, Watch, confirmed, observe, overloaded, quiet
from compute_agent.qos.watermarks import Action, Threshold
from tests.compute_agent.qos.builders import CPU, line, rules, seen

DOWN = Watch("line", Action.THROTTLE_DOWN, "")


def host(*usages):
    """A snapshot a second for each usage; None is a round without a sample."""
    return [
        Snapshot(float(second), {} if usage is None else {CPU: float(usage)})
        for second, usage in enumerate(usages)
    ]


def streak(*usages, **settings):
    return seen(rules(line(throttle_down=10, throttle_up=5, **settings)), *host(*usages))[DOWN]


def test_samples_in_a_row_are_counted():
    assert streak(11, 12, 13) == Streak(3, 0, 2.0)
    assert streak(11, 12, 10) == Streak(0, 0, 1.0)
    assert streak(11, 9, 12) == Streak(1, 0, 2.0)
    assert streak(9, 9) == Streak(0, 0, 0.0)


def test_round_without_a_sample_changes_nothing_until_there_are_as_many_as_would_confirm():
    assert streak(11, 11, None, None, for_samples=3) == Streak(2, 2, 1.0)
    assert streak(11, 11, None, 11, for_samples=3) == Streak(3, 0, 3.0)
    assert streak(11, 11, None, None, None, for_samples=3) == Streak(0, 3, 1.0)


def test_each_action_and_each_domain_has_a_streak_of_its_own():
    one = line("bw", "memory_bandwidth", throttle_down=10, throttle_up=5, evict=20)
    now = Snapshot(0.0, {Series("memory_bandwidth", "0"): 15.0, Series("memory_bandwidth", "1"): 25.0})
    streaks = observe({}, [one], now)
    assert {(watch.action, watch.domain) for watch, found in streaks.items() if found.samples} == {
        (Action.THROTTLE_DOWN, "0"), (Action.THROTTLE_DOWN, "1"), (Action.EVICT, "1"),
    }  # fmt: skip
    assert confirmed(streaks, one, Action.EVICT, "1")
    assert not confirmed(streaks, one, Action.EVICT, "0")


def test_percentage_of_an_unknown_capacity_is_no_sample():
    one = line(throttle_down=Threshold(80, True), throttle_up=Threshold(70, True))
    assert observe({}, [one], Snapshot(0.0, {CPU: 50.0}))[DOWN].unseen == 1
    now = Snapshot(0.0, {CPU: 50.0}, capacity={CPU: 60.0})
    assert observe({}, [one], now)[DOWN].samples == 1


def test_lines_that_are_configured_no_more_are_forgotten():
    streaks = observe({}, [line(evict=1)], Snapshot(0.0, {CPU: 5.0}))
    assert observe(streaks, [], Snapshot(1.0, {CPU: 5.0})) == {}


def test_quiet_needs_a_sample_and_the_cool_down():
    one = line(throttle_down=10, throttle_up=5, for_samples=2)
    assert quiet(Streak(0, 0, 90.0), one, 100.0, 10.0)
    assert not quiet(Streak(0, 0, 90.1), one, 100.0, 10.0)
    assert not quiet(Streak(1, 0, 0.0), one, 100.0, 10.0)
    assert not quiet(Streak(0, 1, 0.0), one, 100.0, 10.0)
    assert quiet(Streak(0, 2, 0.0), one, 100.0, 10.0)


def test_breach_of_the_scheduling_line_is_no_overload():
    assert not overloaded(observe({}, [line(disable_scheduling=1)], Snapshot(0.0, {CPU: 5.0})))
    assert overloaded(observe({}, [line(evict=1, for_samples=9)], Snapshot(0.0, {CPU: 5.0})))
