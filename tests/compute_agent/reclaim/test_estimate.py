"""Tests that offers of shared CPUs never exceed the CPUs that other guests leave unused. Unknown use counts
as full use.
"""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.reclaim.estimate import (
    HOUR,
    HOURS,
    KNOWN_HOURS,
    PERIOD,
    PERIODS,
    STALE_SECONDS,
    SUM,
    SYSTEM,
    EstimateLimits,
    ZoneHistory,
    ZoneReading,
    estimate_use,
)
from compute_agent.reclaim.offers import GROWTH, GROWTH_SECONDS, CapacityOffer, step_of

LIMITS = EstimateLimits(burst=0.0)
EPOCH = 1_000_000 * HOUR
CORES = st.floats(0, 8)


def grown(samples, history=None, begin=EPOCH, seconds=60.0):
    """The history after readings that are a minute apart. Each reading maps guests to their CPU use."""
    history = history or ZoneHistory()
    for n, used in enumerate(samples):
        reading = ZoneReading(begin + n * seconds, sum(used.values()), used)
        history = history.with_reading(reading, LIMITS.percentile)
    return history


def steady(hours=25, **used):
    return grown([{SYSTEM: 0.5, **used}] * int(hours * 60))


STEADY = steady(a=1.0)


def test_the_worked_example_of_a_steady_zone():
    history = steady(a=2.0, b=3.0)
    found = estimate_use(history, {"a": 4.0, "b": 4.0}, 32.0, LIMITS, history.time)
    assert found.expected_use == pytest.approx(5.5 * 1.05)
    assert found.free_amount == pytest.approx(32 - 5.775)
    terms = [32, 5.5, 5.5, 5.5, 5.775, 0, 5.775, 26.225]
    assert [cores for _, cores in found.in_words()] == pytest.approx(terms)


def test_the_largest_guest_is_assumed_to_use_all_its_cpus_in_a_few_hours():
    history = steady(a=2.0, b=3.0)
    entitled = {"a": 10.0, "b": 4.0, "new": 30.0}
    found = estimate_use(history, entitled, 64.0, EstimateLimits(burst=1.0), history.time)
    assert found.largest == 10.0  # all of a guest without a history counts anyway
    assert found.burst_peaks.deviation == pytest.approx(10 * math.sqrt(0.01 * 0.99))
    assert found.expected_use == pytest.approx(5.5 + 4 * found.burst_peaks.deviation + 30)
    said = "if the largest guest uses all of its 10 in 1 % of hours"
    assert sum(said in words for words, _ in found.in_words()) == 1


def test_all_cpus_of_a_guest_without_a_history_count():
    history = steady(a=2.0)
    for minutes, unknown in ((0, 8.0), (KNOWN_HOURS * 60 - 1, 8.0), ((KNOWN_HOURS + 1) * 60, 0.0)):
        later = grown([{SYSTEM: 0.5, "a": 2.0, "new": 1.0}] * minutes, history, history.time + 60)
        found = estimate_use(later, {"a": 4.0, "new": 8.0}, 32.0, LIMITS, later.time)
        assert found.unknown == unknown
        assert found.expected_use >= 2.5 + unknown


def test_a_guest_that_ended_and_returned_has_no_history():
    history = steady(a=2.0, b=1.0)
    history = grown([{SYSTEM: 0.5, "a": 2.0}], history, history.time + 60)
    history = grown([{SYSTEM: 0.5, "a": 2.0, "b": 1.0}], history, history.time + 60)
    assert estimate_use(history, {"a": 4.0, "b": 4.0}, 32.0, LIMITS, history.time).unknown == 4.0


def test_all_counts_as_used_without_a_day_of_history_or_a_recent_reading():
    young = steady(hours=23)
    assert estimate_use(young, {}, 32.0, LIMITS, young.time).free_amount == 0
    old = steady()
    assert estimate_use(old, {}, 32.0, LIMITS, old.time + STALE_SECONDS).free_amount > 0
    for time in (old.time + STALE_SECONDS + 1, old.time - 1):
        assert estimate_use(old, {}, 32.0, LIMITS, time).free_amount == 0
    assert estimate_use(ZoneHistory(), {}, 32.0, LIMITS, EPOCH).free_amount == 0


@given(st.lists(st.tuples(CORES, CORES), min_size=1, max_size=700), st.integers(1, 100))
def test_the_history_equals_one_computed_from_all_readings(samples, percentile):
    used = [{"a": a, SYSTEM: system} for a, system in samples]
    history = ZoneHistory()
    for n, each in enumerate(used):
        history = history.with_reading(ZoneReading(EPOCH + n * 60, sum(each.values()), each), percentile)
    sums = [sum(each.values()) for each in used]
    whole = (len(sums) - 1) // 5
    periods = [max(sums[5 * n : 5 * n + 5]) for n in range(whole)][-PERIODS:]
    assert history.periods == tuple(periods)
    if periods:
        assert history.recent.mean == pytest.approx(statistics.fmean(periods))
        assert history.recent.deviation == pytest.approx(statistics.pstdev(periods), abs=1e-6)
    for uuid, values in (("a", [a for a, _ in samples]), (SUM, sums)):
        closed = (len(sums) - 1) // 60
        hours = [max(values[60 * n : 60 * n + 60]) for n in range(closed)][-HOURS:]
        found = history.peaks[uuid] if hours else None
        assert (found.hours if found else ()) == tuple(hours)
        if found:
            assert sum(one <= found.percentile for one in hours) >= len(hours) * percentile / 100 - 1e-9
            assert sum(one < found.percentile for one in hours) < len(hours) * percentile / 100 + 1e-9


@given(
    st.lists(st.tuples(CORES, CORES, st.integers(1, 400)), min_size=1, max_size=40),
    st.floats(1, 64),
    st.floats(0, 8),
)
def test_the_rest_is_within_the_capacity_and_excludes_present_use(changes, capacity, entitled):
    history, used = STEADY, {}
    for a, system, minutes in changes:
        used = {"a": a, SYSTEM: system}
        history = history.with_reading(
            ZoneReading(history.time + 60 * minutes, a + system, used), LIMITS.percentile
        )
    found = estimate_use(history, {"a": entitled}, capacity, LIMITS, history.time)
    assert 0 <= found.free_amount <= capacity
    assert found.free_amount <= max(0.0, capacity - sum(used.values())) + 1e-9
    more = estimate_use(history, {"a": entitled, "new": 2.0}, capacity, LIMITS, history.time)
    assert more.free_amount == pytest.approx(max(0.0, found.free_amount - 2.0))


def test_the_history_continues_after_the_clock_is_set_back():
    history = steady(a=1.0)
    back = grown([{SYSTEM: 0.5, "a": 1.0}] * 10, history, history.time - 5 * HOUR)
    assert estimate_use(back, {"a": 2.0}, 32.0, LIMITS, back.time).free_amount > 0


@given(st.lists(st.tuples(st.floats(0, 40), st.floats(1, 1000)), max_size=120), st.floats(1, 40))
def test_offers_shrink_at_once_and_grow_slowly(steps, capacity):
    offer, time = CapacityOffer(), EPOCH
    for left, seconds in steps:
        time += seconds
        left, before = min(left, capacity), offer
        offer = offer.next_offer(left, capacity, time)
        assert 0 <= offer.published <= left + 1e-6
        grown_by = offer.level - before.level
        assert grown_by <= GROWTH * capacity * min(seconds / GROWTH_SECONDS, 1.0) + 1e-6  # of a large time
        if offer.published < before.published:
            assert offer.published == math.floor(offer.level + 1e-9)
        if offer.published > before.published:
            step = step_of(before.published)
            assert step <= offer.published - before.published <= max(step, GROWTH * capacity)


def test_a_steady_offer_changes_a_few_times_and_then_never():
    offer, published = CapacityOffer(), []
    for n in range(600):
        offer = offer.next_offer(20.0 + 0.4 * (n % 2), 32.0, EPOCH + n * PERIOD)
        published.append(offer.published)
    assert published[-1] in (18, 19, 20)
    assert len({*published}) <= 8
    assert len({*published[100:]}) == 1


@pytest.mark.parametrize("jump", [-30 * 86_400.0, 8 * 3600.0])
def test_an_offer_grows_after_15_minutes_despite_jumps_of_the_clock(jump):
    """The clock jumps if it is set, or if the machine sleeps."""
    offer, time = CapacityOffer(), EPOCH
    for n in range(60):
        time += 60.0 if n != 8 else jump
        offer = offer.next_offer(16.0, 16.0, time)
        assert bool(offer.published) is (n >= 8 + 15)
