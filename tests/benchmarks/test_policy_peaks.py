"""The comparison of load profiles and averages still runs, in small."""

import random

import pytest

from benchmarks import policy_peaks
from benchmarks.policy_peaks import AVERAGES, OFF, PROFILES, make_guests, run_host
from benchmarks.reclaimed_traces import DAY, noise_table
from tests.compute_agent.inventory.machines import machine

DEFAULT_GAIN = 2.0
"""The default of ``[policy] rebalance_gain``."""


@pytest.fixture
def seldom(monkeypatch):
    monkeypatch.setattr(policy_peaks, "ROUND", 24)
    monkeypatch.setenv("TZ", "UTC")


def test_profiles_separate_guests_better_than_averages_without_more_moves(seldom):
    topology = machine(l3=1, cores=8, threads=2)
    common, moves = dict.fromkeys((OFF, AVERAGES, PROFILES), 0.0), dict.fromkeys((OFF, AVERAGES, PROFILES), 0)
    for seed in ("quick 3", "quick 5"):
        here = make_guests(random.Random(seed), noise_table(random.Random(1)), len(topology.online), weeks=2)
        assert {len(one.samples) for one in here} == {14 * DAY}
        scores = {side: run_host(topology, here, side, DEFAULT_GAIN) for side in common}
        assert len({score.busy for score in scores.values()}) == 1
        for side, score in scores.items():
            common[side] += score.common
            moves[side] += score.moves
    assert common[PROFILES] < common[AVERAGES] < common[OFF]
    assert moves[OFF] == 0
    assert moves[PROFILES] <= moves[AVERAGES]
