"""The table of NUMA schedulers agrees with their formulas and is reproducible."""

import pytest

from benchmarks.numa_schedulers import (
    SCHEDULERS,
    ScheduleOutcome,
    ZonedHost,
    choose_crane,
    choose_crane_aware,
    choose_least_numa,
    choose_single_numa,
    fill_zones,
    mean_distance,
)

GIB = 1024


def hosts(*free: tuple[tuple[int, int], ...]) -> list[ZonedHost]:
    return [ZonedHost(list(each)) for each in free]


def test_fewest_zones_win_then_the_nearest() -> None:
    two_far = ((8, GIB), (1, GIB), (8, GIB), (1, GIB))
    two_near = ((8, GIB), (8, GIB), (1, GIB), (1, GIB))
    one = ((1, GIB), (12, GIB))
    assert choose_least_numa(hosts(two_far, two_near), (12, GIB)) == (1, (0, 1))
    assert choose_least_numa(hosts(two_far, two_near, one), (12, GIB)) == (2, (1,))
    assert choose_single_numa(hosts(two_far, two_near), (12, GIB)) is None
    assert choose_single_numa(hosts(two_far, two_near, one), (12, GIB)) == (2, (1,))
    assert choose_least_numa(hosts(one), (14, GIB)) is None


def test_crane_counts_zones_by_their_cpus_alone() -> None:
    without_memory = ((8, 0), (4, 2 * GIB))
    assert choose_crane(hosts(without_memory), (8, GIB)) == (0, [0])
    assert choose_crane(hosts(without_memory), (10, GIB)) == (0, [0, 1])
    assert choose_crane_aware(hosts(without_memory), (10, GIB)) is None
    # the memory then belongs to another zone
    assert fill_zones(hosts(without_memory)[0], [0], (8, GIB)) == {0: (8, 0), 1: (0, GIB)}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_scheduler_gets_the_same_guests_in_each_run(name: str) -> None:
    first, second = (SCHEDULERS[name](1, 3, 60) for _ in range(2))
    assert first == second
    assert len(first.zones) + first.refused == len(SCHEDULERS["crane"](1, 3, 60).zones) + refused("crane")
    if name in ("LeastNUMANodes, single-numa-node", "claims, single-numa-node"):
        assert {len(each) for each in first.zones} == {1}


def refused(name: str) -> int:
    outcome: ScheduleOutcome = SCHEDULERS[name](1, 3, 60)
    return outcome.refused


def test_distances_are_those_of_all_pairs() -> None:
    assert mean_distance((0,)) == 10
    assert mean_distance((0, 1)) == 11
    assert mean_distance((0, 2)) == 16
