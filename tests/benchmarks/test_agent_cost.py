"""The measurement of the agent's cost still runs; no test asserts the measured values."""

import os

import pytest

from benchmarks.agent_cost import measure_agent, measure_reconciles
from tests.demo.system import SCRIPTS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs"),
]


def test_starts_and_reconciles():
    starts, reconciles = measure_reconciles(guests=3, rounds=2)
    assert (starts.guests, reconciles.guests) == (3, 3)
    assert 0 < reconciles.cpu <= reconciles.cpu_worst


def test_a_running_agent():
    if not (SCRIPTS / "compute-agent").exists():
        pytest.skip("the distribution is not installed")
    cost = measure_agent("as it comes", "", guests=2, seconds=0.5)
    assert (cost.guests, cost.sampling) == (2, "as it comes")
    assert cost.resident_mb > 1
