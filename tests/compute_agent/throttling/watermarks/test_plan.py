"""Tests of plans of watermarks, and of rehearsals at an imagined usage of the host."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling import levers
from compute_agent.throttling.levers import ThrottleLever, ThrottleSteps
from compute_agent.throttling.watermarks.breaches import observe_usage
from compute_agent.throttling.watermarks.metrics import (
    BUILT_IN,
    MetricRegistry,
    MetricUnit,
    MetricUsage,
    WatermarkMetric,
    by_usage,
    combined_order,
)
from compute_agent.throttling.watermarks.plan import make_plan, rehearse_usage
from compute_agent.throttling.watermarks.state import (
    EvictAction,
    ReclaimAction,
    RestoreAction,
    SwitchScheduling,
    ThrottleAction,
    ThrottledGuest,
    WatermarkState,
)
from compute_agent.throttling.watermarks.thresholds import WatermarkThreshold
from compute_agent.usage.snapshot import GuestAllotment, MetricSeries, UsageSnapshot
from tests.compute_agent.throttling.watermarks.builders import (
    BEST_EFFORT,
    CPU,
    GIB,
    MEMORY,
    MEMORY_CONTROL,
    PRESSURE,
    QUOTA,
    guest,
    line,
    memory_guest,
    rules,
    seen,
    snapshot,
)
from tests.examples import examples

EPSILON = 1e-6


def plan(by, now, state=None, **left_alone):
    return make_plan(by, now, seen(by, now), state or WatermarkState(scheduling_off=False), **left_alone)


def planned(kind, by, now, state=None, **left_alone):
    return [one for one in plan(by, now, state, **left_alone) if isinstance(one, kind)]


def limits(actions):
    return [(one.guest, round(one.limit, 6)) for one in actions if isinstance(one, ThrottleAction)]


# Throttle down


def test_guests_are_throttled_one_after_the_other_until_usage_is_below_the_line():
    by = rules(line(throttle_down=7, throttle_up=5))
    now = snapshot(guest("small", 1.0), guest("large", 4.0), guest("middle", 3.0))
    # 8 cores are used: the largest is enough, and a step of 20 % takes it from 4 to 3.2 and then to 2.56.
    assert limits(plan(by, now)) == [("large", 2.56)]


def test_a_plan_takes_the_needed_steps_and_no_more():
    by = rules(line(throttle_down=7.2, throttle_up=5))
    now = snapshot(guest("a", 4.0), guest("b", 4.0))
    assert limits(plan(by, now)) == [("a", 3.2)]
    by = rules(line(throttle_down=7.19, throttle_up=5))
    assert limits(plan(by, now)) == [("a", 2.56)]


def test_next_guest_is_taken_when_the_first_is_at_its_floor():
    by = rules(line(throttle_down=5, throttle_up=2), min_share=0.5)
    now = snapshot(guest("a", 4.0), guest("b", 3.9))
    assert limits(plan(by, now)) == [("a", 2.0), ("b", 2.56)]


def test_margin_widens_the_gap():
    now = snapshot(guest("a", 4.0), guest("b", 4.0))
    exactly = line(throttle_down=7.2, throttle_up=5)
    assert limits(plan(rules(exactly, margin=0.0), now)) == [("a", 3.2)]
    assert limits(plan(rules(exactly, margin=0.1), now)) == [("a", 2.56)]


def test_usage_at_the_line_is_no_breach():
    by = rules(line(throttle_down=8, throttle_up=5))
    assert plan(by, snapshot(guest("a", 4.0), guest("b", 4.0))) == ()


def test_throttling_goes_on_from_the_present_limit():
    by = rules(line(throttle_down=6, throttle_up=5))
    now = snapshot(guest("a", 3.2), guest("b", 3.0))
    state = WatermarkState((ThrottledGuest("a", QUOTA, 3.2),), scheduling_off=False)
    assert limits(plan(by, now, state)) == [("a", 2.56)]


def test_guest_that_would_free_nothing_is_not_touched():
    by = rules(line(throttle_down=3, throttle_up=2), min_share=0.5)
    # `idle` comes first by its priority, and uses less than its floor.
    now = snapshot(guest("idle", 1.9, priority=-1), guest("busy", 4.0))
    assert [one.guest for one in plan(by, now)] == ["busy"]


@pytest.mark.parametrize(
    "shield",
    [{"protected": True}, {"qos_class": "LS"}, {"priority": 5}],
    ids=["protected", "class not selected", "priority not selected"],
)
def test_guests_that_are_not_selected_are_never_touched(shield):
    by = rules(line(throttle_down=1, throttle_up=0.5, evict=2, qos_classes={"BE"}, max_priority=4))
    assert plan(by, snapshot(guest("a", 4.0, **shield))) == ()


def test_lowest_line_counts_and_a_higher_one_only_for_guests_that_the_lowest_does_not_select():
    low = line("low", throttle_down=10, throttle_up=1, qos_classes={"BE"})
    high = line("high", throttle_down=12, qos_classes={"BE", "LS"})
    by = rules(low, high, min_share=0.5)
    best_effort = guest("be", 4.0)
    others = guest("ls", 4.0, qos_class="LS")
    # 13 cores: `low` wants 3 of them, and gets 2 of the only guest it selects, which serves `high` as well.
    now = snapshot(best_effort, others, own=5.0)
    assert [(one.guest, one.watermark) for one in plan(by, now)] == [("be", "low")]
    now = snapshot(best_effort, others, own=8.0)
    assert [(one.guest, one.watermark) for one in plan(by, now)] == [("be", "low"), ("ls", "high")]


def test_a_throttle_counts_for_each_metric_of_its_lever():
    by = rules(
        line("cpu", throttle_down=7.2, throttle_up=5),
        line("ratio", "best_effort_cpu", throttle_down=90, throttle_up=50),
    )
    # Two guests with 4 cores each, which is 100 % of their promise; 0.8 cores are 10 % of the promise.
    now = snapshot(
        guest("a", 4.0, usage={BEST_EFFORT: 50.0}), guest("b", 4.0, usage={BEST_EFFORT: 50.0}),
        host={BEST_EFFORT: 100.0},
    )  # fmt: skip
    assert limits(plan(by, now)) == [("a", 3.2)]


def test_metric_of_higher_priority_is_seen_to_first():
    latency, lever = MetricSeries("latency"), ThrottleLever("weight", "latency", "weight")
    knob, full = ThrottleControl("weight"), GuestAllotment(10.0, 1.0)
    for priority, first in ((8, "latency"), (6, "cpu_usage")):
        metric = WatermarkMetric(
            "latency", MetricUnit.OTHER, priority, lambda now, before: MetricUsage(),
            combined_order(by_usage), lever, throttle_quantified=True,
        )  # fmt: skip
        by = rules(
            line("a", "latency", throttle_down=5, throttle_up=1),
            line("b", throttle_down=3.5, throttle_up=1),
            registry=MetricRegistry([*BUILT_IN, metric]),
        )
        both = {QUOTA: GuestAllotment(4.0), knob: full}
        now = snapshot(guest("g", 4.0, usage={latency: 8.0}, allotments=both), host={latency: 8.0})
        assert next(one.metric for one in plan(by, now)) == first


def test_domains_are_throttled_apart():
    bandwidth = ThrottleControl("memory_bandwidth", "1")
    full = {ThrottleControl("memory_bandwidth", domain): GuestAllotment(100, 10, None) for domain in "01"}
    there, here = MetricSeries("memory_bandwidth", "1"), MetricSeries("memory_bandwidth", "0")
    by = rules(line("bw", "memory_bandwidth", throttle_down=50, throttle_up=20))
    now = snapshot(
        guest("a", allotments=full, usage={there: 10.0, here: 30.0}),
        guest("b", allotments=full, usage={there: 45.0, here: 1.0}),
        host={there: 55.0, here: 31.0},
    )
    assert plan(by, now) == (ThrottleAction("b", bandwidth, 80.0, "memory_bandwidth", "bw"),)


def test_an_unquantified_metric_throttles_all_by_the_metric_of_highest_priority():
    by = rules(
        line("psi", "cpu_pressure", throttle_down=20, throttle_up=5),
        line("cpu", throttle_down=7.9, throttle_up=5),
    )
    now = snapshot(guest("a", 4.0), guest("b", 4.0), guest("c", 0.1), host={PRESSURE: 50.0})
    actions = plan(by, now)
    assert sorted(limits(actions)) == [("a", 3.2), ("b", 3.2), ("c", 3.2)]
    assert {one.metric for one in actions} == {"cpu_usage"}


def test_all_guests_are_throttled_when_no_usage_is_known():
    by = rules(line(throttle_down=7, throttle_up=5))
    now = snapshot(guest("a"), guest("b"), own=8.0)
    assert sorted(limits(plan(by, now))) == [("a", 3.2), ("b", 3.2)]


def test_guest_of_unknown_usage_is_left_alone_when_others_are_enough():
    by = rules(line(throttle_down=7.2, throttle_up=5))
    assert limits(plan(by, snapshot(guest("a", 4.0), guest("new"), own=4.0))) == [("a", 3.2)]


def test_guests_of_unknown_usage_get_a_step_when_the_others_are_not_enough():
    by = rules(line(throttle_down=4, throttle_up=2), min_share=0.5)
    assert limits(plan(by, snapshot(guest("a", 4.0), guest("new"), own=4.0))) == [("a", 2.0), ("new", 3.2)]


def test_no_action_before_enough_samples_of_a_breach():
    by = rules(line(throttle_down=7, throttle_up=5, for_samples=3))
    above, below = snapshot(guest("a", 4.0), guest("b", 4.0)), snapshot(guest("a", 1.0), guest("b", 1.0))
    twice = seen(by, above, above)
    again = seen(by, above, above, below, above, above)
    thrice = seen(by, above, above, below, above, above, above)
    state = WatermarkState(scheduling_off=False)
    assert make_plan(by, above, twice, state) == make_plan(by, above, again, state) == ()
    assert len(make_plan(by, above, thrice, state)) == 1


# Evict


def test_guests_are_evicted_until_usage_is_below_the_line():
    by = rules(line("memory", "memory_usage", evict=70))
    now = snapshot(guest("a", memory=20.0), guest("b", memory=30.0), guest("c", memory=40.0))
    assert plan(by, now) == (EvictAction("c", "memory_usage", "memory"),)


def test_a_guest_that_uses_nothing_of_what_is_short_stays():
    by = rules(line("memory", "memory_usage", evict=70))
    now = snapshot(guest("a", memory=0.0), guest("b"), guest("c", memory=1.0), host={MEMORY: 90.0})
    assert plan(by, now) == (EvictAction("c", "memory_usage", "memory"),)


def test_guest_that_is_being_evicted_counts_as_gone_and_is_not_evicted_twice():
    by = rules(line("memory", "memory_usage", evict=70))
    now = snapshot(guest("a", memory=20.0), guest("b", memory=30.0), guest("c", memory=40.0))
    on_its_way = WatermarkState(evictions=(EvictAction("c", "memory_usage"),), scheduling_off=False)
    assert plan(by, now, on_its_way) == ()
    on_its_way = WatermarkState(evictions=(EvictAction("a", "memory_usage"),), scheduling_off=False)
    assert plan(by, snapshot(*now.guests.values(), own=0.0), on_its_way) == ()
    lower = rules(line("memory", "memory_usage", evict=50))
    assert plan(lower, now, on_its_way) == (EvictAction("c", "memory_usage", "memory"),)


def test_an_unquantified_metric_evicts_all_guests_that_its_line_selects():
    by = rules(line("psi", "memory_pressure", evict=20, max_priority=0))
    now = snapshot(
        guest("a", memory=1.0), guest("b", memory=2.0), guest("dear", memory=9.0, priority=1),
        host={MetricSeries("memory_pressure"): 60.0},
    )  # fmt: skip
    assert sorted(one.guest for one in plan(by, now)) == ["a", "b"]


def test_an_eviction_is_not_counted_again_by_a_throttle():
    by = rules(line(evict=9, throttle_down=6, throttle_up=4))
    now = snapshot(guest("a", 4.0), guest("b", 3.0), guest("c", 3.0))
    assert plan(by, now) == (EvictAction("a", "cpu_usage", "line"),)
    by = rules(line(evict=9, throttle_down=5.5, throttle_up=4))
    assert [type(one) for one in plan(by, now)] == [EvictAction, ThrottleAction]


def test_a_guest_after_a_failed_eviction_is_passed_over_and_may_be_throttled():
    by = rules(line(evict=7, throttle_down=7, throttle_up=4))
    now = snapshot(guest("a", 4.0), guest("b", 3.9))
    assert plan(by, now, unevictable=frozenset("a"))[0].guest == "b"
    both = plan(by, now, unevictable=frozenset("ab"))
    assert [(type(one), one.guest) for one in both] == [(ThrottleAction, "a")]


# Scheduling switch


def test_order_is_switch_then_evict_then_throttle():
    by = rules(
        line("m", "memory_usage", disable_scheduling=5, evict=10),
        line("c", throttle_down=3, throttle_up=2),
    )
    now = snapshot(guest("a", 1.0, 11.0), guest("b", 4.0, 0.5))
    kinds = [type(one) for one in plan(by, now)]
    assert kinds == [SwitchScheduling, EvictAction, ThrottleAction]


def test_switch_is_turned_once_and_back_after_the_cool_down():
    by = rules(line(disable_scheduling=3, for_samples=2, cool_down=10))
    state = WatermarkState(scheduling_off=False)
    streaks, turns = {}, []
    for number, cores in enumerate([4, 4, 4, 2, 2, 4, 2, 2, 2, 2]):
        now = snapshot(guest("a", float(cores)), time=number * 4.0)
        streaks = observe_usage(streaks, by.watermarks, now)
        for action in make_plan(by, now, streaks, state):
            turns.append((number, action.off))
            state = state.after_action(action)
    # Above the line in rounds 0, 1, 2 and 5; 10 seconds after the last of these is round 8.
    assert turns == [(1, True), (8, False)]


def test_unknown_switch_is_turned_on_explicitly():
    by = rules(line(disable_scheduling=3))
    assert plan(by, snapshot(guest("a", 1.0)), WatermarkState()) == (SwitchScheduling(False),)
    assert plan(rules(), snapshot(), WatermarkState(scheduling_off=True)) == (SwitchScheduling(False),)
    assert plan(by, snapshot(guest("a", 4.0)), WatermarkState()) == (SwitchScheduling(True, ("line",)),)


def test_switch_stays_off_while_usage_is_not_known_yet():
    by = rules(line(disable_scheduling=3, for_samples=3))
    assert plan(by, UsageSnapshot(100.0, {}), WatermarkState(scheduling_off=True)) == ()


def test_percentage_is_of_what_the_host_has():
    by = rules(line(throttle_down=WatermarkThreshold(50, True), throttle_up=WatermarkThreshold(40, True)))
    now = snapshot(guest("a", 4.0), guest("b", 4.0), cpus=16.0)
    assert plan(by, now) == ()
    assert len(plan(by, snapshot(guest("a", 4.0), guest("b", 4.0), cpus=15.0))) == 1


# Properties

guests = st.lists(
    st.builds(
        dict,
        cores=st.one_of(st.none(), st.floats(0, 8)),
        vcpus=st.sampled_from([1.0, 2.0, 8.0]),
        qos_class=st.sampled_from(["BE", "LS"]),
        priority=st.integers(0, 2),
        protected=st.booleans(),
        started=st.integers(0, 3),
        throttled=st.integers(0, 12),
    ),
    max_size=6,
)


def build(described, steps):
    """Guests, some of which are already throttled by a few steps and use at most their limit."""
    built, throttles = [], []
    for number, one in enumerate(described):
        one = dict(one)
        times, cores = one.pop("throttled"), one.pop("cores")
        allotment, limit = GuestAllotment(one["vcpus"]), None
        for _ in range(times if times > 6 else 0):
            limit = levers.step_down(limit, allotment, steps) or limit
        if limit is not None:
            throttles.append(ThrottledGuest(f"g{number}", QUOTA, limit))
        if cores is not None:
            cores = min(cores, one["vcpus"] if limit is None else limit)
        built.append(guest(f"g{number}", cores, **one))
    return built, WatermarkState(tuple(throttles), scheduling_off=False)


def freeable(one, state, steps):
    """The amount that is freed if a guest is throttled to its lowest limit."""
    allotment = one.allotments[QUOTA]
    floor = levers.lowest_limit(allotment, steps)
    present = state.limit_of(one.uuid, QUOTA) or allotment.full
    return max(0.0, one.usage[CPU] - floor) if present > floor + EPSILON else 0.0


def acting_order(built):
    """The order of guests for CPU, written again from the specification."""
    return sorted(
        (one for one in built if not one.protected),
        key=lambda one: (
            one.rank, one.priority, -one.usage[CPU], -one.usage[CPU] / one.allotments[QUOTA].full,
            -one.started, one.uuid,
        ),
    )  # fmt: skip


def after(by, now, state, actions):
    """The usage of the host after a plan, by simple arithmetic."""
    usage = now.host[CPU]
    for action in actions:
        if isinstance(action, ThrottleAction):
            use = now.guests[action.guest].usage[CPU]
            usage -= use - min(use, action.limit)
        elif isinstance(action, EvictAction):
            usage -= now.guests[action.guest].usage[CPU]
    return usage


@settings(max_examples=examples(300), deadline=None)
@given(
    guests,
    st.floats(0, 30),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([0.05, 0.2, 0.5]),
    st.sampled_from([0.1, 0.5, 1.0]),
)
def test_throttling_is_enough_where_it_can_be_and_never_in_excess(described, down, margin, step, min_share):
    steps = ThrottleSteps(step, min_share)
    by = rules(line(throttle_down=down, throttle_up=down / 2), margin=margin, step=step, min_share=min_share)
    built, state = build(described, steps)
    known = [one for one in built if CPU in one.usage]
    now = snapshot(*known)
    actions = [one for one in plan(by, now, state) if isinstance(one, ThrottleAction)]
    touched = [one.guest for one in actions]
    target = down - margin * (now.host[CPU] - down)
    # Within bounds: no protected guest, none twice, none below the floor, always less than before.
    assert len(set(touched)) == len(touched)
    for action in actions:
        one = now.guests[action.guest]
        assert not one.protected
        assert action.limit >= one.allotments[QUOTA].full * min_share - EPSILON
        assert action.limit < (state.limit_of(one.uuid, QUOTA) or one.allotments[QUOTA].full)
    if now.host[CPU] <= down:
        assert touched == []
        return
    # In order, and the fewest that this order allows: brute force over the prefixes of all guests.
    order = [one for one in acting_order(known) if freeable(one, state, steps) > EPSILON]
    enough = [
        count
        for count in range(len(order) + 1)
        if now.host[CPU] - sum(freeable(one, state, steps) for one in order[:count]) <= target + EPSILON
    ]
    needed = order[: enough[0]] if enough else order
    assert touched == [one.uuid for one in needed]
    # Enough where that can be reached; without the last action, or with a step less in it, not enough.
    if enough:
        assert after(by, now, state, actions) <= target + EPSILON
    if actions:
        assert after(by, now, state, actions[:-1]) > target - EPSILON
        *others, last = actions
        allotment = now.guests[last.guest].allotments[QUOTA]
        limit = before_last = state.limit_of(last.guest, QUOTA)
        while limit is None or limit > last.limit + EPSILON:
            before_last, limit = limit, levers.step_down(limit, allotment, steps)
        assert limit == pytest.approx(last.limit)
        if before_last is not None:
            softer = ThrottleAction(last.guest, QUOTA, before_last, "", "")
            assert after(by, now, state, [*others, softer]) > target - EPSILON


@settings(max_examples=examples(200), deadline=None)
@given(guests, st.floats(0, 30), st.sampled_from([0.0, 0.1]))
def test_evictions_are_enough_where_they_can_be_and_never_in_excess(described, evict, margin):
    by = rules(line(evict=evict), margin=margin)
    built, state = build(described, ThrottleSteps())
    known = [one for one in built if CPU in one.usage]
    now = snapshot(*known)
    actions = [one for one in plan(by, now, state) if isinstance(one, EvictAction)]
    target = evict - margin * (now.host[CPU] - evict)
    assert not any(now.guests[one.guest].protected for one in actions)
    if now.host[CPU] <= evict:
        assert actions == []
        return
    order = [one for one in acting_order(known) if one.usage[CPU] > 0]
    assert [one.guest for one in actions] == [one.uuid for one in order[: len(actions)]]
    if len(actions) < len(order):
        assert after(by, now, state, actions) <= target + EPSILON
    if actions:
        assert after(by, now, state, actions[:-1]) > target - EPSILON


@settings(max_examples=examples(100), deadline=None)
@given(guests, st.floats(0, 30))
def test_guests_of_one_class_are_as_few_as_any_choice_could_make_them_when_all_have_the_same_floor(
    described, down
):
    steps = ThrottleSteps()
    same = [one | {"vcpus": 8.0, "qos_class": "BE", "priority": 0, "throttled": 0} for one in described]
    built, state = build(same, steps)
    known = [one for one in built if CPU in one.usage]
    now = snapshot(*known)
    by = rules(line(throttle_down=down, throttle_up=down / 2))
    touched = len(limits(plan(by, now, state)))
    free = [freeable(one, state, steps) for one in known if not one.protected]
    gap = now.host[CPU] - down
    sizes = [
        size
        for size in range(len(free) + 1)
        if any(sum(chosen) >= gap - EPSILON for chosen in itertools.combinations(free, size))
    ]
    assert gap <= 0 or not sizes or touched == sizes[0]


@settings(max_examples=examples(200), deadline=None)
@given(guests, st.floats(0, 60), st.floats(0, 60), st.floats(1, 99))
def test_plans_with_several_metrics_keep_the_bounds_and_close_what_can_be_closed(
    described, cpu_line, memory_line, ratio_line
):
    built, state = build(described, ThrottleSteps())
    built = [
        guest(
            one.uuid, one.usage.get(CPU), 10.0 + number, vcpus=one.allotments[QUOTA].full,
            qos_class=one.qos_class, priority=one.priority, protected=one.protected,
            usage={BEST_EFFORT: one.usage[CPU] * 2} if CPU in one.usage else {},
        )
        for number, one in enumerate(built)
    ]  # fmt: skip
    by = rules(
        line("cpu", throttle_down=cpu_line, throttle_up=cpu_line / 2),
        line("ratio", "best_effort_cpu", throttle_down=ratio_line, throttle_up=ratio_line / 2),
        line("memory", "memory_usage", evict=memory_line),
        margin=0.1,
    )
    now = snapshot(*built, host={BEST_EFFORT: sum(one.usage.get(BEST_EFFORT, 0.0) for one in built)})
    actions = plan(by, now, state)
    kinds = [type(one) for one in actions]
    assert kinds == sorted(kinds, key=[SwitchScheduling, EvictAction, ThrottleAction, RestoreAction].index)
    acted = [one.guest for one in actions if not isinstance(one, RestoreAction)]
    assert len(acted) == len(set(acted))
    assert not any(now.guests[one].protected for one in acted)
    evicted = {one.guest for one in actions if isinstance(one, EvictAction)}
    left = [one for one in built if one.uuid not in evicted]
    held = sum(one.usage[MEMORY] for one in left)
    assert held <= memory_line + EPSILON or all(one.protected for one in left)
    known = [one for one in left if not one.protected and CPU in one.usage]
    if all(CPU in one.usage for one in built):
        limited = {one.guest: one.limit for one in actions if isinstance(one, ThrottleAction)}
        usage = sum(min(one.usage[CPU], limited.get(one.uuid, 99.0)) for one in left)
        at_floor = all(
            min(one.usage[CPU], limited.get(one.uuid, 99.0))
            <= levers.lowest_limit(one.allotments[QUOTA], ThrottleSteps()) + EPSILON
            for one in known
        )
        assert usage <= cpu_line + EPSILON or at_floor


def test_planning_changes_nothing_of_what_it_is_given():
    by = rules(line(throttle_down=2, throttle_up=1))
    now = snapshot(guest("a", 4.0))
    state, streaks = WatermarkState(), seen(by, now)
    before = repr((now, state, streaks))
    assert make_plan(by, now, streaks, state)
    assert repr((now, state, streaks)) == before


def test_memory_is_taken_by_one_bounded_step_of_each_guest_in_a_round():
    by = rules(line("m", "memory_usage", throttle_down=3 * GIB, throttle_up=GIB))
    host = snapshot(memory_guest("a", 3 * GIB), memory_guest("b", 2 * GIB))
    actions = planned(ThrottleAction, by, host)
    # From 4 GiB down to the first limits below what they use.
    assert {one.guest: one.limit for one in actions} == {"a": 2.75 * GIB, "b": 1.75 * GIB}


def test_memory_guest_gets_no_further_step_while_the_kernel_still_reclaims():
    by = rules(line("m", "memory_usage", throttle_down=2 * GIB, throttle_up=GIB))
    state = WatermarkState(throttles=(ThrottledGuest("a", MEMORY_CONTROL, 2.75 * GIB),))
    above, reached = (snapshot(memory_guest("a", used * GIB)) for used in (3, 2.75))
    assert planned(ThrottleAction, by, above, state) == []
    (action,) = planned(ThrottleAction, by, reached, state)
    assert action.limit == 2.5 * GIB


def test_memory_is_reclaimed_from_the_lowest_class_by_as_much_as_is_lacking():
    by = rules(line("m", "memory_usage", reclaim=6 * GIB), min_share=0.5)
    be, low, ls = (
        memory_guest("be", 2.125 * GIB),
        memory_guest("low", 2 * GIB),
        memory_guest("ls", 2.375 * GIB, qos_class="LS"),
    )
    dear = memory_guest("dear", 3 * GIB, protected=True)
    now = snapshot(be, low, ls, dear, host={MEMORY: 6.3 * GIB})
    amounts = {one.guest: one.amount for one in planned(ReclaimAction, by, now)}
    # "low" has no more than half of its 4 GiB, which each guest keeps.
    assert amounts == {"be": 0.125 * GIB, "ls": pytest.approx(0.175 * GIB)}
    # A step has at most 256 MiB, and guests at rest are left out.
    full = snapshot(be, low, ls, dear, host={MEMORY: 9 * GIB})
    steps = {one.guest: one.amount for one in planned(ReclaimAction, by, full, resting=frozenset({"be"}))}
    assert steps == {"ls": 0.25 * GIB}


def test_reclaim_comes_after_evictions_and_before_limits():
    settings = {"reclaim": 3 * GIB, "throttle_down": 4 * GIB, "throttle_up": GIB, "evict": 5 * GIB}
    by = rules(line("m", "memory_usage", **settings))
    now = snapshot(memory_guest("a", 3.9 * GIB), memory_guest("b", 2 * GIB), memory_guest("c", GIB))
    kinds = [
        (type(one).__name__, one.guest) for one in plan(by, now) if not isinstance(one, SwitchScheduling)
    ]
    assert kinds == [("EvictAction", "a")]
    now = snapshot(memory_guest("a", 2.4 * GIB), memory_guest("b", 2 * GIB))
    kinds = [
        (type(one).__name__, one.guest) for one in plan(by, now) if not isinstance(one, SwitchScheduling)
    ]
    assert kinds[:2] == [("ReclaimAction", "a"), ("ReclaimAction", "b")]
    assert {name for name, _ in kinds[2:]} == {"ThrottleAction"}


BUSY = rules(
    line(
        throttle_down=80,
        evict=WatermarkThreshold(95.0, relative=True),
        disable_scheduling=90,
        for_samples=3,
        preview=True,
    ),
    line("memory", "memory_usage", evict=10),
)
HOST = snapshot(guest("a", 4.0), guest("b", 4.0, protected=True), own=2.0)


def rehearse(usage, metric="cpu_usage", by=BUSY, host=HOST):
    return rehearse_usage(by, host, WatermarkState(), metric, usage)


def test_below_all_thresholds_nothing_would_be_done():
    assert rehearse("80%") == []


def test_above_a_threshold_unprotected_guests_would_be_throttled():
    (action,) = rehearse("82")
    assert isinstance(action, ThrottleAction)
    assert (action.guest, action.knob) == ("a", QUOTA)


def test_higher_up_guests_are_kept_away_and_evicted():
    switch, *rest = rehearse("92%")
    assert isinstance(switch, SwitchScheduling)
    assert [type(action) for action in rest] == [ThrottleAction]
    assert EvictAction("a", "cpu_usage", "line") in rehearse("97%")


@pytest.mark.parametrize(
    ("metric", "usage", "words"),
    [
        (
            "io_pressure",
            "50%",
            "no watermark watches io_pressure; the watermarks here watch cpu_usage, memory",
        ),
        ("cpu_usage", "much", "'much' is not a threshold"),
        ("memory_usage", "50%", "the capacity for memory_usage is not known; give a number such as 12G"),
    ],
)
def test_impossible_rehearsals_are_refused(metric, usage, words):
    with pytest.raises(ValueError, match=words):
        rehearse(usage, metric)
