"""Tests of the pauses between reports, and of the load of 5,000 hosts after an outage of Placement, in
simulated time.
"""

import heapq
import random
from collections import Counter

import pytest

from compute_agent.loops.base import FIRST_PAUSE, pause

HOSTS, INTERVAL, LONGEST = 5000, 60.0, 60.0


@pytest.mark.parametrize(("drawn", "part"), [(0.0, 0.5), (1.0, 1.0)])
def test_pauses_grow_up_to_the_longest(drawn, part):
    pauses = [pause(failures, INTERVAL, 300, lambda: drawn) for failures in range(1, 12)]
    assert pauses[:3] == [part * FIRST_PAUSE, part * 2 * FIRST_PAUSE, part * 4 * FIRST_PAUSE]
    assert pauses[-1] == pause(10**6, INTERVAL, 300, lambda: drawn) == part * 300


def test_intervals_differ_by_a_tenth_at_most_and_not_on_average():
    rng = random.Random(1)
    pauses = [pause(0, INTERVAL, LONGEST, rng.random) for _ in range(10_000)]
    assert min(pauses) >= 54
    assert max(pauses) <= 66
    assert sum(pauses) / len(pauses) == pytest.approx(INTERVAL, rel=0.01)


def attempts(starts, away, until, seed=1):
    """The number of requests of all hosts in each second. The service is unavailable between two given
    times.
    """
    rng, counts = random.Random(seed), Counter()
    due = [(start, host, 0) for host, start in enumerate(starts)]
    heapq.heapify(due)
    while due[0][0] < until:
        now, host, failures = heapq.heappop(due)
        counts[int(now)] += 1
        failures = failures + 1 if away[0] <= now < away[1] else 0
        heapq.heappush(due, (now + pause(failures, INTERVAL, LONGEST, rng.random), host, failures))
    return counts


@pytest.mark.parametrize(("seconds", "most"), [(3, 3), (60, 6), (1800, 3)])
def test_hosts_do_not_come_back_together(seconds, most):
    rng = random.Random(2)
    starts = [rng.uniform(0, INTERVAL) for _ in range(HOSTS)]
    back = 300 + seconds
    counts = attempts(starts, (300, back), back + 600)
    even = HOSTS / INTERVAL  # 83 in a second
    after = [counts[second] for second in range(back, back + 600)]
    assert max(after) < most * even
    assert max(after[300:]) < 3 * even


def test_hosts_that_were_started_at_once_drift_apart():
    counts = attempts([0.0] * HOSTS, (0, 0), 3600)
    assert counts[0] == HOSTS
    assert max(counts[second] for second in range(3000, 3600)) < 3 * HOSTS / INTERVAL
