"""Tests of the cache of parsed queries, which is limited in memory."""

import gc
import tracemalloc

import pytest

from placement.schemas import candidates
from tests.placement.running import Admin

LIMIT = 16 << 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "queries"),
    [
        (
            lambda number: f"resources=CUSTOM_{number}:1," + ",".join(f"C{each}:1" for each in range(8_000)),
            32,
        ),
        (
            lambda number: (
                f"resources=CUSTOM_{number}:1&required=in:" + ",".join(f"T{n}" for n in range(9_000))
            ),
            24,
        ),
        (
            lambda number: (
                f"resources=CUSTOM_{number}:1&group_policy=none&"
                + "&".join(f"resources{n}=C:1&required{n}=!A" for n in range(1, 2_000))
            ),
            16,
        ),
    ],
    ids=["resources", "traits", "groups"],
)
def test_long_queries_take_bounded_memory(admin: Admin, query, queries: int) -> None:
    """Without a limit, the parsed queries would take 29 to 32 MiB."""
    admin("GET", f"/allocation_candidates?{query(0)}")
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(1, 1 + queries):
            assert admin("GET", f"/allocation_candidates?{query(number)}").status_code == 400
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < LIMIT


def test_the_same_query_is_parsed_once(admin: Admin) -> None:
    pairs, version = [("resources", "VCPU:1"), ("required", "HW_CPU_X86_VMX")], (1, 39)
    first = candidates.parse_candidates(pairs, version)
    assert candidates.parse_candidates(list(pairs), version) is first
