"""The simulation of reclaimed capacity still runs, and its judge judges."""

import random

from benchmarks import reclaimed
from benchmarks.reclaimed_traces import DAY, HostTrace, make_host, noise_table
from compute_agent.reclaim.estimate import EstimateLimits


def test_much_is_promised_and_few_promises_are_broken():
    noise = noise_table(random.Random(1))
    found = reclaimed.ReclaimResult()
    for number in range(6):
        trace = make_host(random.Random(f"quick {number}"), noise, 3)
        found.add(reclaimed.judge_host(trace, reclaimed.publish_promises(trace, EstimateLimits())))
    assert found.hours == 6 * 48
    assert found.broken <= 1
    assert found.promised >= 0.5 * found.oracle
    assert found.writes <= 12 * found.days


def test_the_judge_counts_hours_in_which_what_was_promised_was_needed():
    total = [2.0] * (2 * DAY)
    total[DAY + 13] = 6.0  # in the second hour that counts
    trace = HostTrace(8, (), [0.0] * len(total), total)
    found = reclaimed.judge_host(trace, [4] * (DAY + 40) + [0] * (DAY - 40))
    assert (found.hours, found.broken, found.writes) == (24, 1, 1)
    assert found.oracle == 23 * 6 + 2
    assert dict(found.shortage) == {2: 1}


def test_the_picture_has_a_panel_for_each_host():
    assert reclaimed.draw_picture(1, 1, EstimateLimits()).count("what is above is promised") >= 3
