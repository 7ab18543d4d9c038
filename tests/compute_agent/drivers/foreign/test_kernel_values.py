"""Differences between the properties of a service and the files of its group."""

import pytest

from compute_agent.drivers.foreign.kernel_values import FILES, IDLE_FILE, differing_files
from compute_agent.drivers.foreign.values import (
    CPUS,
    IDLE,
    INFINITY,
    IO_WEIGHT,
    MEMORY_LOW,
    MEMORY_MAX,
    NODES,
    QUOTA,
    WEIGHT,
)

WHOLE = {CPUS: frozenset(range(4)), NODES: frozenset({0})}
NONE = frozenset()


@pytest.mark.parametrize(
    ("name", "value", "text", "idle", "agrees"),
    [
        (CPUS, frozenset({1, 2}), "1-2", None, True),
        (CPUS, frozenset({1, 2}), "1-3", None, False),
        (CPUS, frozenset({1}), None, None, False),
        (CPUS, NONE, None, None, True),
        (CPUS, NONE, "", None, True),
        (CPUS, NONE, "0-3", None, True),
        (CPUS, NONE, "0-7", None, True),
        (CPUS, NONE, "0-2", None, False),
        (CPUS, frozenset({1}), "nonsense", None, False),
        (NODES, NONE, "0", None, True),
        (NODES, frozenset({1}), "0", None, False),
        (WEIGHT, INFINITY, "100", "0", True),
        (WEIGHT, INFINITY, "100", None, True),
        (WEIGHT, INFINITY, "200", "0", False),
        (WEIGHT, 300, "300", "0", True),
        (WEIGHT, 300, "0", "1", False),
        (WEIGHT, IDLE, "0", "1", True),
        (WEIGHT, IDLE, "1", None, True),
        (WEIGHT, IDLE, "100", "0", False),
        (WEIGHT, INFINITY, None, None, True),
        (WEIGHT, 300, None, None, False),
        (QUOTA, INFINITY, "max 100000", None, True),
        (QUOTA, 500_000, "max 100000", None, False),
        (QUOTA, INFINITY, "50000 100000", None, False),
        (QUOTA, 500_000, "50000 100000", None, True),
        (QUOTA, 500_000, "5000 10000", None, True),
        (QUOTA, 500_000, "60000 100000", None, False),
        (QUOTA, 500_000, "nonsense", None, False),
        (MEMORY_MAX, INFINITY, "max", None, True),
        (MEMORY_MAX, 4096, "4096", None, True),
        (MEMORY_MAX, 4096, "max", None, False),
        (MEMORY_LOW, 0, "0", None, True),
        (MEMORY_LOW, INFINITY, "max", None, True),
        (IO_WEIGHT, 50, "default 50\n8:0 20", None, True),
        (IO_WEIGHT, 50, "default 100", None, False),
        (IO_WEIGHT, 50, "50", None, True),
        (IO_WEIGHT, INFINITY, "default 100", None, True),
        (IO_WEIGHT, 50, None, None, True),
        (IO_WEIGHT, 50, "", None, False),
    ],
)
def test_the_kernel_has_a_value_or_not(name, value, text, idle, agrees):
    texts = {FILES[name]: text, IDLE_FILE: idle}
    assert differing_files({name: value}, texts, WHOLE) == ([] if agrees else [name])
