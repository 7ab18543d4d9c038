"""Tests of periods of the week, and of the thresholds at a given minute."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.classes.guest_classes import parse_classes
from compute_agent.model.messages import ConfigError
from compute_agent.throttling.watermarks.metrics import MetricRegistry
from compute_agent.throttling.watermarks.sections import WatermarkAction, parse_watermarks
from compute_agent.throttling.watermarks.thresholds import (
    DAYS,
    WeekMoment,
    WeekPeriod,
    parse_period,
    week_bounds,
)
from tests.compute_agent.builders import load_text

MON, FRI, SAT, SUN = (DAYS.index(day) for day in ("mon", "fri", "sat", "sun"))


def at(day, clock):
    hours, minutes = map(int, clock.split(":"))
    return WeekMoment(day, hours * 60 + minutes)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("22:00-06:00", [(MON, "22:00"), (MON, "05:59"), (SUN, "23:59")], [(MON, "06:00"), (MON, "21:59")]),
        ("sat-sun", [(SAT, "00:00"), (SUN, "23:59")], [(FRI, "23:59"), (MON, "00:00")]),
        ("mon-fri 08:00-18:00", [(MON, "08:00"), (FRI, "17:59")], [(SAT, "12:00"), (MON, "18:00")]),
        ("fri 22:00-06:00", [(FRI, "22:00"), (SAT, "05:59")], [(FRI, "05:59"), (SAT, "22:00")]),
        ("SUN 23:00-01:00", [(SUN, "23:30"), (MON, "00:59")], [(SUN, "00:30"), (MON, "23:30")]),
        ("fri-mon 00:00-24:00", [(SUN, "12:00"), (MON, "23:59")], [(1, "00:00"), (3, "23:59")]),
    ],
)
def test_a_period_includes_its_minutes(text, inside, outside):
    period = parse_period(text)
    assert all(period.has_moment(at(*one)) for one in inside)
    assert not any(period.has_moment(at(*one)) for one in outside)


@pytest.mark.parametrize(
    "text",
    ["", "22-06", "24:00-06:00", "22:00-24:01", "06:00-06:00", "mo-fr", "day 1:00-2:00", "mon tue", "08:00",
     "mon-fri 08:00-18:00 x", "mon,fri", "\u0660\u0660:00-06:00"],
)  # fmt: skip
def test_another_text_is_no_period(text):
    with pytest.raises(ValueError, match=r"period|weekday"):
        parse_period(text)


@given(
    st.lists(
        st.builds(
            WeekPeriod,
            st.frozensets(st.integers(0, 6), min_size=1),
            st.integers(0, 1439),
            st.integers(1, 1440),
        ).filter(lambda period: period.begin != period.end),
        max_size=3,
    )
)
def test_a_period_begins_and_ends_at_bounds_only(periods):
    bounds = [day * 1440 + minute for day, minute in week_bounds(periods)]
    for begin, end in pairwise([*bounds, 7 * 1440]):
        for minute in {begin, (begin + end) // 2, end - 1}:
            moments = WeekMoment(*divmod(begin, 1440)), WeekMoment(*divmod(minute, 1440))
            assert all(period.has_moment(moments[0]) == period.has_moment(moments[1]) for period in periods)


def watermarks(folder, **options):
    text = "".join(f"{name} = {value}\n" for name, value in options.items())
    conf = load_text(folder, f"[watermark:night]\nmetric = cpu_usage\n{text}")
    return parse_watermarks(conf, MetricRegistry(), parse_classes(conf))


def test_an_amount_may_have_a_blank_before_its_unit(tmp_path):
    text = "[watermark:m]\nmetric = memory_usage\nevict = 8 G, sat 12 G, 22:00-06:00 10G\n"
    conf = load_text(tmp_path, text)
    (section,) = parse_watermarks(conf, MetricRegistry(), parse_classes(conf))
    found = [
        section.at_moment(at(*one)).thresholds["evict"].value / 2**30
        for one in ((MON, "9:00"), (SAT, "9:00"), (MON, "23:00"))
    ]
    assert found == [8, 12, 10]


def test_the_last_period_with_the_present_time_counts(tmp_path):
    (section,) = watermarks(
        tmp_path, throttle_down="80%, 22:00-06:00 95%, sat-sun 90%", throttle_up="60%, sat 75%"
    )

    def lines(*moment):
        present = section.at_moment(at(*moment))
        return [str(present.threshold_for(one)) for one in WatermarkAction if present.threshold_for(one)]

    assert lines(MON, "12:00") == ["80%", "60%"]
    assert lines(MON, "23:00") == ["95%", "60%"]
    assert lines(SAT, "23:00") == ["90%", "75%"]
    assert lines(SUN, "01:00") == ["90%", "60%"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"throttle_down": "80%, 22:00-06:00", "throttle_up": "60%"},
            "'22:00-06:00' has no period and amount",
        ),
        ({"throttle_down": "22:00-06:00 95%", "throttle_up": "60%"}, "throttle_down: .* is not a threshold"),
        ({"throttle_down": "80%", "throttle_up": "60%, sat 85%"}, r"is not below .*80% \(on sat 00:00\)"),
        ({"throttle_down": "80%, 22:00-23:00 12", "throttle_up": "60%"}, r"mixes .* \(on mon 22:00\)"),
        ({"throttle_down": ",".join(["80%"] + ["sat 90%"] * 21), "throttle_up": "6%"}, "more than 20"),
    ],
)
def test_a_bad_schedule_is_refused_with_its_time(tmp_path, options, words):
    with pytest.raises(ConfigError, match=words):
        watermarks(tmp_path, **options)
