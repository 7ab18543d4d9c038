"""Tests of cold memory: the size of probes depends on pressure, and swap that a guest does not read back
counts as cold.
"""

import pytest

from compute_agent.reclaim.zone import (
    CALM_SECONDS,
    MAX_PROBE,
    ColdReading,
    cold_memory,
    probe_size,
    track_calm,
)

GIB = 2**30


@pytest.mark.parametrize(
    ("used", "pressure", "size"),
    [
        (8 * GIB, 0.0, 8 * GIB // 2000),
        (8 * GIB, 0.05, 4 * GIB // 2000),
        (8 * GIB, 0.1, 0),
        (8 * GIB, 7.0, 0),
        (8 * GIB, None, 0),
        (1024 * GIB, 0.0, MAX_PROBE),
        (2**20, 0.0, 0),
    ],
)
def test_a_probe_becomes_smaller_with_pressure(used, pressure, size):
    assert probe_size(ColdReading(used, 0, pressure), 0.1) == pytest.approx(size, abs=1)


def test_swap_is_cold_after_ten_minutes_without_pressure():
    calm, waits = ColdReading(GIB, 7, 0.0), ColdReading(GIB, 7, 0.2)
    since = track_calm({}, {"a": calm, "b": waits, "c": calm}, 0.1, 1000.0)
    assert since == {"a": 1000.0, "c": 1000.0}
    assert cold_memory(since, {"a": calm, "c": calm}, 1000.0 + CALM_SECONDS - 1) == {}
    later = 1000.0 + CALM_SECONDS
    since = track_calm(since, {"a": calm, "b": calm, "c": waits}, 0.1, later)
    assert cold_memory(since, {"a": calm, "b": calm, "c": waits}, later) == {"a": 7}
    assert cold_memory(since, {"a": ColdReading(GIB, 0, 0.0)}, later) == {}
