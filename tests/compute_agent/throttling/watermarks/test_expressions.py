"""Tests of expressions of metrics: their values are compared with Python's own, and some are refused."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.model.messages import ConfigError
from compute_agent.throttling.settings import read_settings
from compute_agent.throttling.watermarks.expressions import MAX_LENGTH, MAX_WORDS, parse_expression
from compute_agent.throttling.watermarks.metrics import (
    BUILT_IN,
    MetricRegistry,
    MetricUnit,
    MetricUsage,
    WatermarkMetric,
)
from compute_agent.throttling.watermarks.plan import make_plan, rehearse_usage
from compute_agent.throttling.watermarks.state import (
    EvictAction,
    RestoreAction,
    SwitchScheduling,
    ThrottleAction,
    WatermarkState,
)
from compute_agent.usage.rounds import MeasuringRound
from compute_agent.usage.snapshot import MetricSeries
from tests.compute_agent.builders import load_text
from tests.compute_agent.throttling.watermarks.builders import guest, seen, snapshot

NOW = MeasuringRound(1.0, "/", ())


def metric_of(name, unit, usage, capacity=None):
    return WatermarkMetric(name, unit, 5, lambda now, before: MetricUsage(usage, {}, capacity or {}))


def registry(**usage):
    """A registry of metrics of the whole host, in cores."""
    return MetricRegistry([metric_of(name, MetricUnit.CORES, {"": value}) for name, value in usage.items()])


def value_of(text, metrics):
    return parse_expression(text, metrics).measure(NOW, None).host


NUMBERS = st.integers(0, 20).map(str)
DIVISORS = st.integers(1, 20).map(str)
NAMES = st.sampled_from(["a", "b", "c"])
SUMS = st.recursive(
    NAMES,
    lambda part: (
        st.tuples(part, st.sampled_from(["+", "-"]), st.one_of(part, NUMBERS)).map(" ".join)
        | st.tuples(part, NUMBERS).map(lambda one: f"({one[0]}) * {one[1]}")
        | st.tuples(part, DIVISORS).map(lambda one: f"({one[0]}) / {one[1]}")
    ),
    max_leaves=4,
)
COMPARISONS = st.tuples(SUMS, st.sampled_from(["<", "<=", ">", ">="]), st.one_of(SUMS, NUMBERS)).map(" ".join)
CONDITIONS = st.recursive(
    COMPARISONS,
    lambda part: (
        st.tuples(part, st.sampled_from(["and", "or"]), part).map(" ".join)
        | part.map("not ({})".format)
        | part.map("({})".format)
    ),
    max_leaves=3,
)


@given(CONDITIONS | SUMS, st.fixed_dictionaries({name: st.integers(0, 20).map(float) for name in "abc"}))
def test_values_are_those_of_python(text, usage):
    if len(text.split()) > MAX_WORDS // 2:
        return
    assert value_of(text, registry(**usage)) == {"": float(eval(text, {}, usage))}


def test_division_by_a_metric_that_is_zero_has_no_value():
    assert value_of("a / b > 1", registry(a=1.0, b=0.0)) == {}


@given(st.text("abc()<>=+-*/0123456789.GM% andornot", max_size=40))
def test_any_other_text_is_parsed_or_refused(text):
    with contextlib.suppress(ValueError):
        parse_expression(text, registry(a=1.0, b=2.0))


def test_amounts_are_read_in_the_unit_of_the_metric_beside_them():
    metrics = MetricRegistry(
        [
            metric_of("used", MetricUnit.BYTES, {"": 5.0 * 1024**3}, {"": 8.0 * 1024**3}),
            metric_of("waits", MetricUnit.PERCENT, {"": 12.0}),
        ]
    )
    assert value_of("used > 4G", metrics) == {"": 1.0}
    assert value_of("used > 60%", metrics) == {"": 1.0}
    assert value_of("65% < used", metrics) == {"": 0.0}
    assert value_of("waits >= 12% and used - 1G <= 4G", metrics) == {"": 1.0}
    assert value_of("used / used", metrics) == {"": 1.0}


def test_share_of_an_unknown_capacity_has_no_value():
    assert value_of("a > 50%", registry(a=1.0)) == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a > memory_usage", "'a > memory_usage': a is in cores, and memory_usage in bytes"),
        ("a + memory_usage > 1", "a is in cores, and memory_usage in bytes"),
        ("a > 1G", "G is for bytes, and the metric is in cores"),
        ("a > 120%", "120% is above 100 percent"),
        ("part > 80%", "80%: a percentage needs a capacity, which the metric does not have; write an amount"),
        ("a / 0 > 1", "'a / 0' divides by 0"),
        ("a / (0.00) > 1", "'a / 0.00' divides by 0"),
        ("a * 2G > memory_usage", "2G has a unit; multiply and divide by plain numbers"),
        ("a * b", "'a \\* b' has no unit"),
        ("a + b > 50%", "50% is a share of a metric's capacity: compare it with one metric alone"),
        ("a and b > 1", "'a' is an amount, not a condition"),
        ("(a > 1) > 1", "takes a condition for an amount"),
        ("(a > 1) * 2", "multiplies or divides a condition"),
        ("1 > 2 and a > 1", "'1 > 2' has no metric"),
        ("(12)", "names no metric"),
        ("a > 1 b", "'b' is unexpected after 'a > 1'"),
        ("a > 1 > 0", "'>' is unexpected"),
        ("(a > 1", "a parenthesis is missing after 'a > 1'"),
        ("a > ", "a metric or an amount is missing before 'the end'"),
        ("a > and", "a metric or an amount is missing before 'and'"),
        ("c > 1", "there is no metric 'c'; choose one of a, b, memory_usage, part"),
        ("a.__class__ > 1", r"'\.__class__ > 1' is no part of an expression"),
        ("a > 1" + " " * MAX_LENGTH, f"longer than {MAX_LENGTH} characters"),
        ("(" * MAX_WORDS + "a", f"more than {MAX_WORDS} words"),
    ],
)
def test_expression_that_means_nothing_is_refused(text, told):
    part = replace(metric_of("part", MetricUnit.CORES, {}), has_capacity=False)
    metrics = registry(a=1.0, b=2.0).with_metrics([metric_of("memory_usage", MetricUnit.BYTES, {}), part])
    with pytest.raises(ValueError, match=told):
        parse_expression(text, metrics)


def test_deepest_expression_is_parsed():
    depth = (MAX_WORDS - 3) // 2
    assert value_of("(" * depth + "a" + ")" * depth + " > 1", registry(a=2.0)) == {"": 1.0}


def test_domains_are_those_of_the_first_metric():
    caches = metric_of("moved", MetricUnit.BYTES_PER_SECOND, {"0": 5.0, "1": 20.0})
    metrics = registry(a=3.0).with_metrics([caches])
    assert value_of("moved > 10 and a > 2", metrics) == {"0": 0.0, "1": 1.0}
    # The whole host has no cache of its own: the busiest one counts.
    assert value_of("a > 2 and moved > 10", metrics) == {"": 1.0}


def test_expression_without_the_value_of_a_metric_has_none():
    missing = metric_of("gone", MetricUnit.CORES, {})
    metrics = registry(a=3.0).with_metrics([missing])
    assert value_of("a > 2 or gone > 1", metrics) == {}
    assert value_of("gone > 1 or a > 2", metrics) == {}


def test_expression_acts_as_its_first_metric_does():
    metric = parse_expression("memory_pressure >  10 and swap_in > 50M", MetricRegistry())
    first = MetricRegistry()["memory_pressure"]
    assert metric.name == "memory_pressure > 10 and swap_in > 50M"
    assert (metric.lever, metric.sorter, metric.evictable) == (first.lever, first.sorter, True)
    assert not metric.throttle_quantified
    assert metric.inputs == ("memory_pressure", "swap_in")


def test_expression_evicts_in_the_way_of_its_first_metric():
    moved = []
    own = replace(metric_of("own", MetricUnit.CORES, {"": 3.0}), evictable=True, evict=moved.append)
    metric = parse_expression("own > 2", MetricRegistry([own]))
    metric.evict("a")
    assert moved == ["a"]


def test_guests_of_an_expression_are_ordered_by_the_use_of_its_first_metric(tmp_path):
    text = "memory_usage > 10 and cpu_usage > 1"
    section = f"[watermark:w]\nmetric = {text}\nevict = true\norder = usage\nfor_samples = 1\n"
    conf = load_text(tmp_path, section)
    by = read_settings(conf, MetricRegistry(BUILT_IN)).rules
    guests = (guest("a", 9.0, memory=1.0), guest("b", 1.0, memory=9.0), guest("c", 5.0, memory=5.0))
    now = snapshot(*guests, host={MetricSeries(text): 1.0})
    plan = make_plan(by, now, seen(by, now), WatermarkState(scheduling_off=False))
    assert [one.guest for one in plan] == ["b"]


SECTION = """
[watermark:thrash]
metric = memory_pressure > 10 and swap_in > 50M
throttle_down = true
throttle_up = false
disable_scheduling = true
for_samples = 2
cool_down = 0
"""


def rules_of(folder, text):
    return read_settings(load_text(folder, text), MetricRegistry(BUILT_IN)).rules


def test_section_with_a_condition_throttles_while_it_holds_and_gives_back_after_it(tmp_path):
    rules = rules_of(tmp_path, SECTION)
    (watermark,) = rules.watermarks

    def at(time, holds=1.0):
        return snapshot(guest("a", 2.0), time=time, host={MetricSeries(watermark.metric): holds})

    both = [at(1.0), at(2.0)]
    assert make_plan(rules, both[0], seen(rules, both[0]), WatermarkState()) == ()
    plan = make_plan(rules, both[1], seen(rules, *both), WatermarkState())
    assert [type(action) for action in plan] == [SwitchScheduling, ThrottleAction]
    state = WatermarkState()
    for action in plan:
        state = state.after_action(action)
    later = at(3.0, 0.0)
    plan = make_plan(rules, later, seen(rules, *both, later), state)
    assert [type(action) for action in plan] == [SwitchScheduling, RestoreAction]


def test_condition_is_rehearsed_as_true(tmp_path):
    rules = rules_of(tmp_path, SECTION)
    name = rules.watermarks[0].metric
    host = snapshot(guest("a", 2.0), host={MetricSeries(name): 0.0})
    assert [type(one) for one in rehearse_usage(rules, host, WatermarkState(), name, "true")] == [
        SwitchScheduling,
        ThrottleAction,
    ]
    assert rehearse_usage(rules, host, WatermarkState(), name, "false") == []


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("metric = memory_pressure > 10 and\nevict = true", r"\[watermark:x\] metric: a metric or an amount"),
        ("metric = io_pressure > 10\nevict = true", r"\[watermark:x\] evict: guests cannot be evicted"),
        (
            "metric = swap_in > 10M\nevict = 5",
            r"evict: the metric is a condition: write true",
        ),
        ("metric = swap_in > 1\nthrottle_down = true\nthrottle_up = true", r"throttle_up: .*: write false"),
        ("metric = swap_in > 1\nthrottle_down = true", r"throttle_down: without a throttle_up"),
        ("metric = swap_in + 1M\nevict = true", r"evict: 'true' is not a threshold"),
    ],
)
def test_section_with_a_wrong_expression_is_refused_by_option(tmp_path, lines, told):
    with pytest.raises(ConfigError, match=told):
        rules_of(tmp_path, f"[watermark:x]\n{lines}\n")


def test_evictions_for_an_expression_are_planned(tmp_path):
    rules = rules_of(tmp_path, "[watermark:x]\nmetric = swap_in > 1M\nevict = true\nfor_samples = 1\n")
    name = rules.watermarks[0].metric
    host = snapshot(guest("a", 2.0), host={MetricSeries(name): 1.0})
    assert make_plan(rules, host, seen(rules, host), WatermarkState()) == (
        SwitchScheduling(False),
        EvictAction("a", name, "x"),
    )
