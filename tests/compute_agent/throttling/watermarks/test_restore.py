"""Tests of raising and removing the limits of guests."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.watermarks.breaches import observe_usage
from compute_agent.throttling.watermarks.plan import forgive_relapses, make_plan
from compute_agent.throttling.watermarks.state import RestoreAction, ThrottledGuest, WatermarkState
from compute_agent.usage.snapshot import GuestAllotment, MetricSeries, UsageSnapshot
from tests.compute_agent.throttling.watermarks.builders import (
    CPU,
    PRESSURE,
    QUOTA,
    guest,
    line,
    rules,
    seen,
    snapshot,
)
from tests.examples import examples

DOWN_AND_UP = {"throttle_down": 10, "throttle_up": 8}


def throttled(**limits):
    """A state in which guests were throttled in this order."""
    return WatermarkState(
        tuple(ThrottledGuest(name, QUOTA, limit) for name, limit in limits.items()), scheduling_off=False
    )


def restores(by, now, state, *earlier):
    actions = make_plan(by, now, seen(by, *earlier, now), state)
    assert all(isinstance(action, RestoreAction) for action in actions)
    return [(action.guest, None if action.limit is None else round(action.limit, 2)) for action in actions]


def test_last_throttled_guest_is_first_restored_by_a_step():
    by = rules(line(**DOWN_AND_UP))
    now = snapshot(guest("a", 2.0), guest("b", 2.0), own=3.9)
    # Half a core for b brings usage to 8.4, above throttle_up: nothing for a in this round.
    assert restores(by, now, throttled(a=2.0, b=2.0)) == [("b", 2.5)]
    assert restores(by, now, throttled(b=2.0, a=2.0)) == [("a", 2.5)]


def test_others_follow_as_long_as_usage_stays_below_throttle_up():
    by = rules(line(**DOWN_AND_UP))
    now = snapshot(guest("a", 2.0), guest("b", 2.0), guest("c", 2.0), own=0.5)
    assert restores(by, now, throttled(a=2.0, b=2.0, c=2.0)) == [("c", 2.5), ("b", 2.5), ("a", 2.5)]


def test_no_restore_that_would_lead_above_throttle_down():
    by = rules(line(throttle_down=8.2, throttle_up=8))
    now = snapshot(guest("a", 0.2), guest("b", 2.0), own=5.7)
    # a restore of b would add half a core, which leads to 8.4; a restore of a fits
    assert restores(by, now, throttled(a=0.4, b=2.0)) == [("a", 0.5)]


def test_guest_that_does_not_use_its_limit_is_restored_though_it_could_fill_the_host():
    by = rules(line(throttle_down=8.2, throttle_up=8))
    assert restores(by, snapshot(guest("a", 0.5), own=7.0), throttled(a=2.0)) == [("a", 2.5)]


def test_limit_is_taken_away_at_full_allotment():
    by = rules(line(**DOWN_AND_UP))
    assert restores(by, snapshot(guest("a", 3.5)), throttled(a=3.5)) == [("a", None)]


@pytest.mark.parametrize("usage", [8.0, 9.0])
def test_no_restore_between_the_lines(usage):
    by = rules(line(**DOWN_AND_UP))
    assert restores(by, snapshot(guest("a", 0.4), own=usage - 0.4), throttled(a=0.4)) == []


def test_no_restore_while_another_metric_is_in_breach_even_unconfirmed():
    by = rules(line(**DOWN_AND_UP), line("m", "memory_usage", evict=10, for_samples=5))
    calm, tight = snapshot(guest("a", 0.4, 9.0)), snapshot(guest("a", 0.4, 11.0))
    assert restores(by, tight, throttled(a=0.4)) == []
    assert restores(by, calm, throttled(a=0.4)) == [("a", 0.5)]


def test_scheduling_line_alone_does_not_keep_guests_throttled():
    by = rules(line(**DOWN_AND_UP, disable_scheduling=1, for_samples=5))
    assert restores(by, snapshot(guest("a", 0.4), own=5.0), throttled(a=0.4)) == [("a", 0.5)]


def test_cool_down_counts_from_the_last_breach():
    by = rules(line(**DOWN_AND_UP, cool_down=10, for_samples=9))
    breach = snapshot(guest("a", 0.4), own=11.0, time=100.0)
    assert restores(by, snapshot(guest("a", 0.4), time=109.9), throttled(a=0.4), breach) == []
    assert restores(by, snapshot(guest("a", 0.4), time=110.0), throttled(a=0.4), breach) == [("a", 0.5)]


def test_cool_down_doubles_with_each_relapse_where_nothing_can_be_computed():
    state = WatermarkState(
        (ThrottledGuest("a", QUOTA, 0.4),), scheduling_off=False, relapses={"cpu_quota": 2}
    )

    def given_back(by, seconds):
        breach = snapshot(guest("a", 0.4), own=99.0, time=100.0, host={PRESSURE: 50.0})
        now = snapshot(guest("a", 0.4), time=100.0 + seconds, host={PRESSURE: 1.0})
        return restores(by, now, state, breach) != []

    pressure = rules(line("psi", "cpu_pressure", **DOWN_AND_UP, cool_down=10, for_samples=9))
    assert [given_back(pressure, seconds) for seconds in (39.9, 40.0)] == [False, True]
    usage = rules(line(**DOWN_AND_UP, cool_down=10, for_samples=9))
    assert [given_back(usage, seconds) for seconds in (9.9, 10.0)] == [False, True]


def test_metric_that_is_not_quantified_gives_one_guest_a_step_in_a_round():
    by = rules(line("psi", "cpu_pressure", throttle_down=20, throttle_up=5))
    now = snapshot(guest("a", 1.0), guest("b", 1.0), host={PRESSURE: 1.0})
    assert restores(by, now, throttled(a=1.0, b=1.0)) == [("b", 1.25)]


def test_all_metrics_of_a_lever_must_be_below_their_lines():
    by = rules(line(**DOWN_AND_UP), line("psi", "cpu_pressure", throttle_down=20, throttle_up=5))
    tight = snapshot(guest("a", 1.0), host={PRESSURE: 6.0})
    assert restores(by, tight, throttled(a=1.0)) == []


def test_lowest_line_counts():
    by = rules(line("high", throttle_down=20, throttle_up=15), line("low", **DOWN_AND_UP))
    assert restores(by, snapshot(guest("a", 1.0), own=8.0), throttled(a=1.0)) == []


def test_everything_is_given_back_when_there_is_no_line_any_more():
    by = rules(line("m", "memory_usage", evict=10))
    now = snapshot(guest("a", 1.0, 1.0), guest("b", 1.0, 1.0), own=99.0)
    assert restores(by, now, throttled(a=0.4, b=1.0)) == [("b", None), ("a", None)]


def test_a_throttle_of_an_unknown_lever_is_removed():
    state = WatermarkState((ThrottledGuest("a", ThrottleControl("gone"), 0.4),), scheduling_off=False)
    assert restores(rules(line(**DOWN_AND_UP)), snapshot(guest("a", 1.0)), state) == [("a", None)]


@pytest.mark.parametrize("lever", [QUOTA, ThrottleControl("gone")], ids=["a lever", "no lever any more"])
def test_a_lost_allotment_is_not_limited_even_in_a_breach(lever):
    by = rules(line(**DOWN_AND_UP))
    breach = snapshot(guest("a", 1.0, allotments={}), own=99.0)
    state = WatermarkState((ThrottledGuest("a", lever, 0.4),), scheduling_off=False)
    assert restores(by, breach, state) == [("a", None)]


@pytest.mark.parametrize(
    ("metric", "forgets"), [("cpu_usage", 20.0), ("cpu_pressure", 40.0)], ids=["quantified", "not quantified"]
)
def test_relapses_are_forgotten_after_twice_the_time_that_was_waited(metric, forgets):
    by = rules(line("line", metric, **DOWN_AND_UP, cool_down=10))
    state = WatermarkState((), scheduling_off=False, relapses={"cpu_quota": 1, "cache_ways": 2})
    breach = snapshot(guest("a", 1.0), own=99.0, time=100.0, host={PRESSURE: 50.0})

    def left(after, state=state):
        now = snapshot(guest("a", 1.0), time=100.0 + after, host={PRESSURE: 1.0})
        return forgive_relapses(by, now, seen(by, breach, now), state).relapses

    assert left(forgets - 0.1) == {"cpu_quota": 1}  # no watermark has a metric of the other lever
    assert left(forgets) == {}
    in_use = replace(state, throttles=(ThrottledGuest("a", QUOTA, 1.0),))
    assert left(forgets, in_use) == {"cpu_quota": 1}


def test_guest_that_became_protected_gets_everything_back_at_once():
    by = rules(line(**DOWN_AND_UP))
    breach = snapshot(guest("a", 1.0, protected=True), own=99.0)
    assert restores(by, breach, throttled(a=0.4)) == [("a", None)]


def test_usage_that_is_not_known_yet_keeps_what_is_throttled():
    by = rules(line(**DOWN_AND_UP, for_samples=3))
    now = UsageSnapshot(100.0, {}, {"a": guest("a")})
    assert restores(by, now, throttled(a=0.4), now) == []


def test_usage_that_is_lost_for_good_gives_back_by_steps():
    by = rules(line(**DOWN_AND_UP, for_samples=3, cool_down=5))
    lost = [UsageSnapshot(100.0 + number, {}, {"a": guest("a")}) for number in range(7)]
    streaks, given = {}, []
    state = throttled(a=0.4)
    for now in lost:
        streaks = observe_usage(streaks, by.watermarks, now, by.throttled_series(state))
        given.append(len(make_plan(by, now, streaks, state)))
    assert given == [0, 0, 0, 0, 0, 1, 1]


def test_domains_are_given_back_apart():
    knobs = {domain: ThrottleControl("memory_bandwidth", domain) for domain in "01"}
    series = {domain: MetricSeries("memory_bandwidth", domain) for domain in "01"}
    by = rules(line("bw", "memory_bandwidth", throttle_down=50, throttle_up=40))
    one = guest(
        "a", allotments={knob: GuestAllotment(100, 10, None) for knob in knobs.values()},
        usage={series["0"]: 4.0, series["1"]: 4.0},
    )  # fmt: skip
    state = WatermarkState(
        tuple(ThrottledGuest("a", knob, 40.0) for knob in knobs.values()), scheduling_off=False
    )
    now = snapshot(one, host={series["0"]: 30.0, series["1"]: 45.0})
    assert make_plan(by, now, seen(by, now), state) == (RestoreAction("a", knobs["0"], 50.0),)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.4, 3.9), st.floats(0, 1)), min_size=1, max_size=6),
    st.floats(0, 20),
)
def test_usage_stays_below_throttle_down_even_if_all_guests_take_everything(parts, own):
    by = rules(line(**DOWN_AND_UP))
    limits = {f"g{number}": round(limit, 2) for number, (limit, _) in enumerate(parts)}
    # The use of a guest is either at its limit or well below it; a use in between counts as one of the two
    # cases.
    used = {
        name: limit if part > 0.5 else limit * part
        for (name, limit), (_, part) in zip(limits.items(), parts, strict=True)
    }
    now = snapshot(*(guest(name, cores) for name, cores in used.items()), own=own)
    actions = make_plan(by, now, seen(by, now), throttled(**limits))
    given_back = {action.guest: action.limit for action in actions if isinstance(action, RestoreAction)}
    if now.host[CPU] >= 8:
        assert not given_back
        return
    most = sum(
        (4.0 if given_back[name] is None else given_back[name])
        if name in given_back and used[name] == limit
        else used[name]
        for name, limit in limits.items()
    )
    assert most + own <= 10 + 1e-6
    idle = [name for name in limits if used[name] < limits[name]]
    if len(idle) == len(limits):
        assert set(given_back) == set(limits)
    order = [name for name in reversed(limits) if name in given_back]
    assert [action.guest for action in actions] == order
