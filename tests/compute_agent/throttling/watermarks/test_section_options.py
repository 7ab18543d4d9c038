"""Tests of options that one watermark section sets differently from all others: steps, order and
evictions.
"""

import pytest
from oslo_config import cfg

from compute_agent.throttling.levers import ThrottleSteps
from compute_agent.throttling.settings import read_settings
from compute_agent.throttling.watermarks.breaches import observe_usage, restart_streaks
from compute_agent.throttling.watermarks.metrics import BUILT_IN, MetricRegistry, by_age, by_class
from compute_agent.throttling.watermarks.plan import make_plan
from compute_agent.throttling.watermarks.state import (
    EvictAction,
    RestoreAction,
    ThrottleAction,
    WatermarkState,
    state_from_json,
    state_to_json,
)
from tests.compute_agent.builders import load_text
from tests.compute_agent.throttling.watermarks.builders import (
    PRESSURE,
    QUOTA,
    guest,
    line,
    rules,
    seen,
    snapshot,
)

KEPT = WatermarkState(scheduling_off=False)


def settings(folder, text):
    return read_settings(load_text(folder, text), MetricRegistry(BUILT_IN))


def actions(by, host, state=KEPT):
    return make_plan(by, host, seen(by, host), state)


def test_section_has_its_options_and_the_others_those_of_qos(tmp_path):
    found = settings(
        tmp_path,
        "[qos]\nstep = 30\n[watermark:a]\nmetric = cpu_usage\nevict = 3\nmin_share = 50\n"
        "order = oldest, class\nevict_grace = 5\nevict_at_once = 2\n"
        "[watermark:b]\nmetric = memory_usage\nevict = 9G\n",
    ).rules.watermarks
    own, usual = found
    assert (own.steps, own.order) == (ThrottleSteps(0.3, 0.5), (by_age, by_class))
    assert (own.evict_grace, own.evict_at_once) == (5.0, 2)
    assert (usual.steps, usual.order, usual.evict_grace, usual.evict_at_once) == (None, None, None, None)


def test_unknown_criterion_is_refused(tmp_path):
    with pytest.raises(cfg.Error, match=r"\[watermark:a\] order"):
        settings(tmp_path, "[watermark:a]\nmetric = cpu_usage\nevict = 3\norder = luck\n")


def test_step_and_share_of_a_section_limit_its_guests():
    own = line(throttle_down=3.0, throttle_up=1.0, steps=ThrottleSteps(0.5, 0.4))
    (action,) = actions(rules(own), snapshot(guest("a", 4.0), own=10.0))
    # 4 cores, 2, and no third step below 1.6.
    assert (action.guest, action.limit) == ("a", 1.6)


def test_limits_are_given_back_by_the_smallest_step_of_their_sections():
    by = rules(
        line("x", throttle_down=9.0, throttle_up=8.0, steps=ThrottleSteps(0.5)),
        line("y", throttle_down=9.0, steps=ThrottleSteps(0.1)),
    )
    state = KEPT.after_action(ThrottleAction("a", QUOTA, 1.8, "cpu_usage", "x"))
    host = snapshot(guest("a", 1.8), time=1000.0)
    assert actions(by, host, state) == (RestoreAction("a", QUOTA, pytest.approx(2.0)),)


def test_order_of_a_section_decides_which_guest_comes_first():
    guests = (guest("big", 4.0, started=1.0), guest("small", 2.0, started=2.0))
    assert actions(rules(line(evict=5.0)), snapshot(*guests))[0].guest == "big"
    youngest = line(evict=5.0, order=(lambda one, series: -one.started,))
    assert actions(rules(youngest), snapshot(*guests))[0].guest == "small"


PRESSED = line("p", "memory_pressure", evict=10.0, evict_at_once=1, for_samples=2, evict_grace=7.0)


def pressed(*guests, time):
    return snapshot(*guests, time=time, host={PRESSURE._replace(metric="memory_pressure"): 50.0})


def test_guests_without_a_known_effect_leave_one_after_the_other():
    by, guests = rules(PRESSED), [guest("a", 1.0, started=1.0), guest("b", 1.0, started=2.0)]
    first, second = (pressed(*guests, time=time) for time in (1.0, 2.0))
    streaks = seen(by, first, second)
    plan = make_plan(by, second, streaks, KEPT)
    assert plan == (EvictAction("b", "memory_pressure", "p", 7.0),)
    leaving = KEPT.after_action(plan[0])
    # While the guest leaves, no other guest has to leave.
    assert make_plan(by, second, streaks, leaving) == ()
    streaks = restart_streaks(streaks, {"p"})
    third, fourth = (pressed(guests[0], time=time) for time in (3.0, 4.0))
    streaks = observe_usage(streaks, by.watermarks, third)
    assert make_plan(by, third, streaks, KEPT) == ()
    streaks = observe_usage(streaks, by.watermarks, fourth)
    assert make_plan(by, fourth, streaks, KEPT) == (EvictAction("a", "memory_pressure", "p", 7.0),)


def test_built_in_metric_without_the_option_evicts_all_selected_guests_at_once():
    by = rules(line("p", "memory_pressure", evict=10.0))
    host = pressed(guest("a", 1.0), guest("b", 1.0), time=1.0)
    assert [one.guest for one in actions(by, host)] == ["a", "b"]


def test_grace_outlives_the_agent():
    state = WatermarkState(evictions=(EvictAction("a", "cpu_usage", grace=7.0), EvictAction("b", "x")))
    content = state_to_json(state)
    assert content["evictions"] == [["a", "cpu_usage", 7.0], ["b", "x"]]
    assert state_from_json(content).evictions == state.evictions
    for wrong in (-1, True, "7", float("nan")):
        content["evictions"] = [["a", "cpu_usage", wrong]]
        with pytest.raises(ValueError, match="is not a number from 0"):
            state_from_json(content)


def test_expressions_and_sources_evict_one_guest_at_a_time(tmp_path):
    found = settings(
        tmp_path,
        "[metric:heat]\ncommand = echo 1\n[watermark:a]\nmetric = heat\nevict = 3\n"
        "[watermark:b]\nmetric = swap_in > 1M\nevict = true\n",
    ).rules.watermarks
    assert [one.evict_at_once for one in found] == [1, 1]


def pressed_twice(*guests, time=1.0):
    breached = {PRESSURE._replace(metric=name): 50.0 for name in ("memory_pressure", "cpu_steal")}
    return snapshot(*guests, time=time, host=breached)


def test_each_section_limits_and_times_its_own_guests_only():
    own = line(
        "p", "memory_pressure", evict=10.0, evict_at_once=1, evict_grace=7.0,
        qos_classes={"BE"},
    )  # fmt: skip
    other = line("s", "cpu_steal", evict=10.0, evict_grace=3.0)
    by = rules(own, other)
    guests = [guest("a", 1.0), guest("b", 1.0), guest("x", qos_class="LS"), guest("y", qos_class="LS")]
    host = pressed_twice(*guests)
    expected = (
        EvictAction("a", "memory_pressure", "p", 7.0),
        EvictAction("x", "cpu_steal", "s", 3.0),
        EvictAction("y", "cpu_steal", "s", 3.0),
    )
    assert actions(by, host) == expected
    # The eviction by another section does not count, and one from before a restart does.
    for before, told in ((EvictAction("z", "cpu_steal", "s"), expected), (
        EvictAction("z", "memory_pressure", "p"), expected[1:]
    )):  # fmt: skip
        state = state_from_json(state_to_json(WatermarkState((), (before,), False)))
        assert actions(by, host, state) == told
