"""Tests of the CPU use of guests by hour of the week: learnt, forgotten slowly, limited, and read from its
file.
"""

import json

import pytest

from compute_agent.policy.load_profiles import WEEK_HOURS
from compute_agent.usage.week_uses import (
    ABSENT_SECONDS,
    MAX_GUESTS,
    USES_FORMAT,
    WeekUse,
    WeekUses,
    week_hour,
)

# 2026-06-01 0:00, a Monday, in UTC
MONDAY, HOUR = 1780272000.0, 3600.0
WEEK = WEEK_HOURS * HOUR


@pytest.fixture(autouse=True)
def in_utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")


def after_hour(uses, start, use, seconds=HOUR):
    """The use by hour of the week after an hour that begins at ``start``, of which ``seconds`` were
    measured.
    """
    uses = uses.with_use(use, seconds, start + HOUR - 1)
    return uses.with_use({}, 0.0, start + HOUR)


def test_hours_are_those_of_the_time_zone_of_the_host(monkeypatch):
    assert week_hour(MONDAY) == 0
    assert week_hour(MONDAY - 1) == WEEK_HOURS - 1
    monkeypatch.setenv("TZ", "UTC-2")
    assert week_hour(MONDAY) == 2


def test_an_hour_counts_half_against_those_of_former_weeks():
    uses = after_hour(WeekUses(), MONDAY, {"a": 4.0})
    assert uses.guests["a"].hours[:2] == (4.0, None)
    uses = after_hour(uses, MONDAY + WEEK, {"a": 0.0})
    assert uses.guests["a"].hours[0] == 2.0


def test_an_hour_that_was_measured_for_less_than_a_half_does_not_count():
    assert after_hour(WeekUses(), MONDAY, {"a": 4.0}, seconds=1700).guests == {}


def test_guests_are_forgotten_by_time_and_by_number():
    uses = after_hour(WeekUses(), MONDAY, {"old": 1.0})
    others = {f"g{number}": 0.1 for number in range(MAX_GUESTS)}
    many = after_hour(uses, MONDAY + HOUR, others)
    assert many.guests.keys() == others.keys()
    kept = after_hour(uses, MONDAY + ABSENT_SECONDS - HOUR, {"new": 1.0})
    assert kept.guests.keys() == {"old", "new"}
    assert after_hour(kept, MONDAY + ABSENT_SECONDS + HOUR, {}).guests.keys() == {"new"}


def test_the_file_is_read_back_and_small():
    uses = after_hour(WeekUses(), MONDAY, {"a": 1 / 3})
    assert USES_FORMAT.parse(USES_FORMAT.dump(uses.guests)) == uses.guests
    full = WeekUse((12.345,) * WEEK_HOURS, MONDAY)
    assert len(USES_FORMAT.dump({"a" * 36: full})) < 2000


@pytest.mark.parametrize(
    "damage",
    [
        {"hours": [1.0] * 3, "seen": 0},
        {"hours": [-1.0] * WEEK_HOURS, "seen": 0},
        {"hours": [None] * WEEK_HOURS, "seen": "yesterday"},
        {"hours": 7, "seen": 0},
        {},
    ],
)
def test_damaged_files_are_refused(damage):
    with pytest.raises(ValueError, match=r"unexpected content|a week has|is not a number"):
        USES_FORMAT.parse(json.dumps({"version": 1, "guests": {"a": damage}}).encode())


def test_parts_of_later_releases_are_ignored():
    one = {"hours": [None] * WEEK_HOURS, "seen": 1, "later": True}
    content = json.dumps({"version": 1, "guests": {"a": one}, "later": {}}).encode()
    assert USES_FORMAT.parse(content) == {"a": WeekUse((None,) * WEEK_HOURS, 1.0)}
