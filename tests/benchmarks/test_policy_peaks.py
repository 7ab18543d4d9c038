"""The comparison of load profiles and averages still runs, in small."""

import random

import pytest

from benchmarks import policy_peaks
from benchmarks.policy_peaks import AVERAGES, OFF, PROFILES, guests, run
from benchmarks.reclaimed_traces import DAY, noise_table
from tests.compute_agent.inventory.machines import machine


@pytest.fixture
def seldom(monkeypatch):
    monkeypatch.setattr(policy_peaks, "ROUND", 24)
    monkeypatch.setenv("TZ", "UTC")


def test_guests_are_separated_and_profiles_need_no_further_moves(seldom):
    topology = machine(l3=1, cores=8, threads=2)
    here = guests(random.Random("quick 3"), noise_table(random.Random(1)), len(topology.online), weeks=2)
    assert {len(one.samples) for one in here} == {14 * DAY}
    scores = {side: run(topology, here, side, 0.5) for side in (OFF, AVERAGES, PROFILES)}
    assert scores[OFF].busy == scores[PROFILES].busy
    assert scores[PROFILES].common < scores[OFF].common
    assert scores[OFF].moves == 0
    assert scores[PROFILES].moves < scores[AVERAGES].moves
