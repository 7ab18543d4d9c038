"""Tests that amounts are divided over zones as evenly as by a brute-force search."""

from itertools import product
from math import lcm

from hypothesis import given, settings
from hypothesis import strategies as st

from placement.search.budget import SearchBudget
from placement.search.claims.even_division import (
    ZoneRoom,
    even_divisions,
    exact_division,
    sum_squares,
    zone_sums,
)
from tests.examples import examples


@st.composite
def rooms(draw: st.DrawFn) -> ZoneRoom:
    step = draw(st.integers(1, 6))
    return ZoneRoom(0, draw(st.integers(1, 3)) * step, draw(st.integers(0, 24)) // step * step, step)


zones = st.lists(st.lists(rooms(), min_size=1, max_size=3), min_size=1, max_size=4)


def sums_of(zone: list[ZoneRoom], limit: int) -> set[int]:
    ways = product(*([0, *range(each.least, each.most + 1, each.step)] for each in zone))
    return {sum(way) for way in ways if sum(way) <= limit}


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(rooms(), max_size=3), st.integers(1, 60))
def test_sums_of_a_zone_are_those_of_all_ways(zone: list[ZoneRoom], limit: int) -> None:
    bits = zone_sums(zone, limit)
    assert {amount for amount in range(bits.bit_length()) if bits >> amount & 1} == sums_of(zone, limit)


@settings(max_examples=examples(1000), deadline=None)
@given(st.integers(1, 60), zones)
def test_all_even_divisions_are_found_and_the_most_even_one_is_first(
    amount: int, given_zones: list[list[ZoneRoom]]
) -> None:
    useful = [room for zone in given_zones for room in zone if room.least <= min(room.most, amount)]
    unit = lcm(*(room.step for room in useful))
    parts = [sorted(sums_of(zone, amount) - {0}) for zone in given_zones]
    expected = {way for way in product(*parts) if sum(way) == amount if max(way) - min(way) <= unit}
    found = list(even_divisions(amount, given_zones, SearchBudget()))
    assert set(found) <= expected
    assert list(map(sum_squares, found)) == sorted(map(sum_squares, found))
    assert min(map(sum_squares, expected), default=None) == (sum_squares(found[0]) if found else None)
    if any(sum(room.least <= min(room.most, amount) for room in zone) > 1 for zone in given_zones):
        assert sorted(found) == sorted(expected)


def test_large_amounts_with_unlike_steps_are_divided_evenly() -> None:
    rooms_of = [[ZoneRoom(0, 1024, 262_144, 1024), ZoneRoom(1, 2, 262_144, 2)], [ZoneRoom(2, 3, 262_143, 3)]]
    division = next(even_divisions(131_072, rooms_of, SearchBudget()))
    # 65,536 is not a multiple of 3, and 65,535 beside it leaves an odd amount
    assert division == (65_534, 65_538)


@settings(max_examples=examples(500), deadline=None)
@given(st.integers(1, 24), zones)
def test_an_exact_division_is_the_most_even_one_of_any_gap(
    amount: int, given_zones: list[list[ZoneRoom]]
) -> None:
    sums = [sums_of(zone, amount) - {0} for zone in given_zones]
    possible = [parts for parts in product(*sums) if sum(parts) == amount]
    found = exact_division(amount, given_zones, SearchBudget())
    if found is None:
        assert not possible
    else:
        assert found in possible
        assert sum_squares(found) == min(map(sum_squares, possible))
