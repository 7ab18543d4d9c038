"""Tests of baselines and suspects: a lasting change becomes usual slowly, and few samples prove nothing."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.throttling.interference.evidence import (
    LEARNING,
    MIN_CORRELATION,
    SignalBaseline,
    SignalTrack,
    find_suspects,
    least_correlation,
)
from compute_agent.throttling.interference.signals import SIGNALS, GuestReading, GuestSamples
from tests.compute_agent.throttling.interference.rooms import CPUS, facts, watch


@given(st.lists(st.tuples(st.floats(0, 0.9), st.floats(0, 0.4)), min_size=12, max_size=60))
def test_the_correlation_is_pearsons(pairs):
    """The server waits for ``one`` of its time while the hog uses ``one + more`` cores."""
    waits, uses = [one for one, _ in pairs], [one + more for one, more in pairs]
    played = [
        GuestSamples(
            10.0 * (number + 1),
            {
                "server": GuestReading(facts("server", "LS"), CPUS, False, 1 - wait, wait),
                "hog": GuestReading(facts("hog"), CPUS, False, use, 0.0),
            },
        )
        for number, (wait, use) in enumerate(zip(waits, uses, strict=True))
    ]
    found = find_suspects(watch(), "server", "", played)
    if min(statistics.pstdev(waits), statistics.pstdev(uses)) > 1e-3:
        correlation = statistics.correlation(waits, uses)
        if found:
            assert found[0].correlation == pytest.approx(correlation, abs=1e-6)
            assert found[0].part == pytest.approx(correlation * statistics.pstdev(uses), abs=1e-6)
        else:
            assert least_correlation(correlation, len(pairs)) < MIN_CORRELATION + 1e-6


def test_few_samples_or_chance_are_no_evidence():
    assert least_correlation(1.0, 9) < MIN_CORRELATION
    assert least_correlation(0.6, 60) < MIN_CORRELATION < least_correlation(0.75, 60)
    assert [least_correlation(r, 60) for r in (-0.5, 0.2, 0.9)] == sorted(
        least_correlation(r, 60) for r in (-0.5, 0.2, 0.9)
    )


def samples(**uses):
    """Samples of two quiet minutes, and of two minutes in which the server waits. The arguments are the
    guests' use in each part.
    """
    rng = random.Random(1)
    found = []
    for number in range(60):
        loud = number >= 40
        readings = {"server": GuestReading(facts("server", "LS"), CPUS, False, 1.0, 0.9 if loud else 0.02)}
        for guest, both in uses.items():
            readings[guest] = GuestReading(facts(guest), CPUS, False, both[loud] * rng.gauss(1, 0.05), 0.0)
        found.append(GuestSamples(10.0 * (number + 1), readings))
    return found


def test_cycles_are_disturbed_only_by_guests_on_the_same_cache():
    """A recorded run, in which the server needs twice the cycles while the guest "thief" is busy on other
    CPUs.
    """
    rng, played = random.Random(1), []
    for number in range(60):
        loud, readings = number >= 40, {}
        server = facts("server", "LS")
        readings["server"] = GuestReading(
            server, frozenset({0}), cpu=1.0, cpi=(2.0 if loud else 1.0) * rng.gauss(1, 0.05), near=CPUS
        )
        for guest, cpus in (("thief", frozenset({1, 2})), ("far", frozenset({8, 9}))):
            readings[guest] = GuestReading(
                facts(guest), cpus, cpu=(4.0 if loud else 0.5) * rng.gauss(1, 0.05)
            )
        played.append(GuestSamples(10.0 * (number + 1), readings))
    found = find_suspects(watch(signal=SIGNALS["cpi"]), "server", "", played)
    assert [one.guest for one in found] == ["thief"]
    assert find_suspects(watch(), "server", "", played) == []


def test_the_best_explanation_is_tried_first_and_weak_ones_never():
    found = find_suspects(watch(), "server", "", samples(hog=(0.5, 4.0), half=(1.0, 3.0), small=(0.1, 0.3)))
    assert [one.guest for one in found] == ["hog", "half"]
    assert find_suspects(watch(), "server", "", samples(less=(2.0, 1.0), same=(1.0, 1.0))) == []


VALUES = st.lists(st.floats(0, 100), min_size=2, max_size=200)


@given(VALUES)
def test_mean_and_variance_are_those_of_all_while_there_are_few(values):
    baseline = SignalBaseline()
    for value in values:
        baseline = baseline.with_value(value)
    assert baseline.mean == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert baseline.variance == pytest.approx(statistics.pvariance(values), abs=1e-6, rel=1e-6)


def track(values, start=0.0):
    found = SignalTrack()
    for number, value in enumerate(values):
        found = found.with_sample(start + 10.0 * number, value, 1.0, 0.1, learns=True)
    return found


def test_no_sample_is_a_violation_before_the_baseline_is_learnt():
    assert track([1.0] * (LEARNING - 1) + [100.0]).since == math.inf
    assert track([1.0] * LEARNING + [100.0]).since == 10.0 * LEARNING


def test_a_violation_lasts_after_a_whole_window_above_the_threshold():
    """The first sample may be partly from before the disturbance, which begins between two samples."""
    quiet = [1.0] * LEARNING
    loud = [4.0, 9.0, 9.0, 9.0]
    assert not track([*quiet, *loud[:3]]).suffers_lastingly(10.0 * (LEARNING + 2))
    found = track([*quiet, *loud])
    assert found.suffers_lastingly(10.0 * (LEARNING + 3))
    assert found.mean_level(10.0 * (LEARNING + 3)) == 9.0
    assert not found.without_recent().suffers_lastingly(10.0 * (LEARNING + 3))


def test_a_calm_sample_or_an_empty_window_begins_the_violation_again():
    calm_between = [*[1.0] * LEARNING, 9.0, 9.0, 1.0, 9.0, 9.0, 9.0]
    now = 10.0 * (len(calm_between) - 1)
    assert track(calm_between).suffers_now(now)
    assert not track(calm_between).suffers_lastingly(now)
    found = track([*[1.0] * LEARNING, 9.0, 9.0]).with_sample(now + 100, 9.0, 1.0, 0.1, learns=True)
    assert found.suffers_now(now + 100)
    assert not found.suffers_lastingly(now + 100)


def test_a_level_of_hours_becomes_the_baseline():
    calm, loud = [1.0, 1.2] * 200, [9.0, 9.2] * 2000
    assert track([*calm, *loud[:60]]).suffers_now(10.0 * 459)
    assert not track([*calm, *loud]).suffers_now(10.0 * 4399)


def test_a_window_without_samples_tells_nothing():
    assert track([1.0] * 50).mean_level(10_000.0) is None
