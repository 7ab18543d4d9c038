"""Tests of the CPUs that are not offered: after broken promises, and for stolen time."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.reclaim.offers import (
    DAY_SECONDS,
    MAX_STEP_SECONDS,
    PAUSE_SECONDS,
    RESERVES_FORMAT,
    ZONES_FORMAT,
    HeldBackShare,
    StolenReserve,
    ZoneState,
    missing_cpus,
    stolen_part,
)

START = 3.6e9


EMPTY = StolenReserve()


def played(parts, cpus, zone=EMPTY, start=START, step=60.0):
    """The state of the zone after each reading, with the time of the reading."""
    found = []
    for index, part in enumerate(parts):
        zone = zone.with_part(part, cpus, start + step * index)
        found.append((start + step * index, zone))
    return found


def changes(found, before=0):
    times = []
    for time, zone in found:
        if zone.withheld != before:
            times.append(time)
            before = zone.withheld
    return times


def test_one_stolen_minute_is_ignored_and_two_count():
    assert [zone.withheld for _, zone in played([0.0] * 5 + [1.0] + [0.0] * 5, 8)] == [0] * 11
    found = played([0.0] * 5 + [0.3] * 2, 8)
    assert [zone.withheld for _, zone in found] == [0] * 6 + [3]
    assert found[-1][1].counted_part == pytest.approx(0.3)


def test_half_a_stolen_cpu_is_ignored_and_a_larger_part_is_rounded_up():
    assert played([0.06] * 5, 8)[-1][1].withheld == 0  # 0.48 of a CPU
    assert played([0.07] * 5, 8)[-1][1].withheld == 1
    assert played([0.99] * 5, 8)[-1][1].withheld == 8


def test_withheld_cpus_are_returned_in_tenths_after_15_minutes_without_theft():
    found = played([0.5] * 20 + [0.0] * 120, 40)
    levels = [(time - START, zone.withheld) for time, zone in found]
    steps = [one for last, one in itertools.pairwise(levels) if one[1] != last[1]]
    assert [level for _, level in steps][:3] == [20, 16, 12]
    assert steps[1][0] > 20 * 60 + 900
    assert all(b - a >= 900 for (a, _), (b, _) in itertools.pairwise(steps[1:]))
    assert levels[-1][1] == 0


def test_the_withheld_number_stays_while_unknown_and_over_a_restart():
    zone = played([0.5] * 5, 8)[-1][1]
    assert zone.withheld == 4
    again = RESERVES_FORMAT.parse(RESERVES_FORMAT.dump({"z": zone}))["z"]
    assert again == zone
    assert all(one.withheld == 4 for _, one in played([None] * 100, 8, again, START + 10_000))


def test_a_jump_of_the_clock_neither_causes_nor_blocks_a_change():
    zone = played([0.5] * 5, 8)[-1][1]
    back = played([0.0] * 90, 8, zone, START - 1e6)
    assert back[0][1].withheld == 4
    assert back[-1][1].withheld == 0
    ahead = played([0.5] * 3, 8, zone, START + 1e6)
    assert [one.withheld for _, one in ahead] == [4] * 3


def test_a_smaller_zone_has_all_its_cpus_withheld():
    assert played([0.5] * 5, 8)[-1][1].with_part(0.5, 2, START + 300).withheld == 2


parts = st.lists(st.none() | st.floats(0, 1) | st.sampled_from([0.0, 0.1, 0.12, 1.0]), max_size=150)


@given(parts, st.integers(1, 64))
def test_two_changes_are_at_least_five_minutes_apart(taken, cpus):
    times = changes(played(taken, cpus))
    assert all(later - earlier >= PAUSE_SECONDS for earlier, later in itertools.pairwise(times))
    assert all(sum(time <= one < time + 3600 for one in times) <= 12 for time in times)


@given(parts, st.integers(1, 64))
def test_the_withheld_number_follows_the_stolen_time(taken, cpus):
    """The number never exceeds the largest reading, and falls only if less time was stolen."""
    most, before = 0, 0
    for (_, zone), part in zip(played(taken, cpus), taken, strict=True):
        most = max(most, math.ceil((part or 0.0) * cpus))
        assert 0 <= zone.withheld <= min(most, cpus)
        if zone.withheld < before:
            assert zone.counted_part * cpus <= zone.withheld + 1e-6
            assert before - zone.withheld <= max(1, cpus // 10)
        before = zone.withheld


@given(st.floats(0, 1), st.integers(1, 64), st.integers(0, 2**32))
def test_noise_around_a_level_changes_nothing(level, cpus, seed):
    noise = [(level * cpus + 0.2 * math.sin(seed + index * index)) / cpus for index in range(200)]
    found = played([max(0.0, min(1.0, one)) for one in noise], cpus)
    assert len(changes(found)) <= 2


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"version": 2}', b'{"version": 1, "zones": {"z": {"readings": [[1]]}}}']
)
def test_other_content_is_refused(content):
    with pytest.raises(ValueError, match=r"."):
        RESERVES_FORMAT.parse(content)


def test_the_part_of_a_zone_is_the_mean_of_its_cpus():
    assert stolen_part({0: 0.2, 1: 0.4, 2: 1.0}, frozenset({0, 1, 7})) == pytest.approx(0.3)
    assert stolen_part({}, frozenset({0})) is None


def test_the_most_missing_cpus_are_held_back_for_a_day():
    found = HeldBackShare().after_breaches(0.0, 0, START)
    assert found.held_back(32) == 0
    found = found.after_breaches(2.0, 1, START + 60)
    assert found.held_back(16) == 2.0
    assert found.held_back(32) == pytest.approx(3.2)
    found = found.after_breaches(5.0, 1, START + 120).after_breaches(1.0, 2, START + 180)
    assert (found.held_back(32), found.count) == (5.0, 4)
    assert found.held_back(4) == 4
    for minute in range(24 * 60):
        assert found.held_back(32) == 5.0
        found = found.after_breaches(0.0, 0, START + 240 + 60 * minute)
    assert found.held_back(32) == 0
    assert found.after_breaches(1.0, 1, found.time + 60) == HeldBackShare(
        1.0, 1, DAY_SECONDS, found.time + 60
    )


def test_in_words():
    assert list(HeldBackShare().in_words(8)) == []
    ((words, cores),) = HeldBackShare(2.0, 3, 3600.0, START).in_words(8)
    assert (words, cores) == ("held back for 1.0 more hours, since the promise was broken 3 times", 2.0)
    ((words, _),) = HeldBackShare(2.0, 1, 3600.0, START).in_words(8)
    assert words.endswith("was broken once")


@given(st.lists(st.floats(-1e9, 1e9) | st.sampled_from([60.0, 0.0]), max_size=286))
def test_a_jump_of_the_clock_or_a_stopped_agent_does_not_shorten_the_day(steps):
    found, time, served = HeldBackShare().after_breaches(1.0, 1, START), START, 0.0
    for step in steps:
        time += step
        served += min(max(step, 0.0), MAX_STEP_SECONDS)
        found = found.after_breaches(0.0, 0, time)
        assert found.remaining == pytest.approx(max(0.0, DAY_SECONDS - served), abs=1)
    assert found.held_back(10) == 1.0  # the share is 1.0 until 288 readings exist


def test_a_breach_is_kept_and_older_files_have_none():
    states = {"z": ZoneState(breach=HeldBackShare(2.0, 3, 3600.0, START))}
    assert ZONES_FORMAT.parse(ZONES_FORMAT.dump(states)) == states
    document = json.loads(ZONES_FORMAT.dump(states))
    del document["zones"]["z"]["breach"]
    assert ZONES_FORMAT.parse(json.dumps(document).encode()) == {"z": ZoneState()}


def test_missing_cpus_are_promised_cpus_that_others_use():
    assert missing_cpus(6.0, 3.0, 8.0) == 1.0
    assert missing_cpus(5.0, 3.0, 8.0) == 0.0
    assert missing_cpus(9.0, 0, 8.0) == 0.0
