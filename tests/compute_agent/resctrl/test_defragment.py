"""Tests of joining free ways by moves of masks. Brute force finds no plan with fewer moves, and each step is
safe.
"""

from collections.abc import Iterator, Mapping

from hypothesis import given
from hypothesis import strategies as st

from compute_agent.resctrl.schemata import WayMask
from compute_agent.resctrl.ways import plan_moves

Places = Mapping[str, WayMask]
OWNER = "owner"


def runs_in(pool: WayMask, size: int) -> list[WayMask]:
    first = next(iter(pool))
    return [WayMask.from_range(at, size) for at in range(first, first + len(pool) - size + 1)]


def is_done(pool: WayMask, places: Places, count: int) -> bool:
    others = {way for name, block in places.items() if name != OWNER for way in block}
    return any(others.isdisjoint(run) for run in runs_in(pool, count))


def moves(pool: WayMask, places: Places) -> Iterator[tuple[str, WayMask]]:
    """All moves of one block to free ways."""
    for name, block in places.items():
        taken = {way for other, each in places.items() if other != name for way in each}
        for run in runs_in(pool, len(block)):
            if run != block and taken.isdisjoint(run):
                yield name, run


def fewest_moves(pool: WayMask, places: Places, count: int) -> int:
    """The smallest number of moves, by breadth-first search over all states."""
    reached, number = [dict(places)], 0
    seen = {frozenset(places.items())}
    while not any(is_done(pool, each, count) for each in reached):
        reached = [{**each, name: run} for each in reached for name, run in moves(pool, each)]
        new = {frozenset(each.items()): each for each in reached}
        reached = [each for key, each in new.items() if key not in seen]
        seen |= set(new)
        number += 1
    return number


@st.composite
def caches(draw: st.DrawFn) -> tuple[WayMask, Places, int]:
    """A strategy for a pool with at most four blocks, possibly one of the owner, and a number of ways that
    fits.
    """
    low, size = draw(st.integers(0, 3)), draw(st.integers(3, 8))
    lengths = draw(st.lists(st.integers(1, 2), min_size=1, max_size=4).filter(lambda all: sum(all) < size))
    gaps = draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths)))
    places, at = {}, low
    for number, (gap, length) in enumerate(zip(gaps, lengths, strict=True)):
        at += min(gap, low + size - at - sum(lengths[number:]))
        places[f"guest{number}"] = WayMask.from_range(at, length)
        at += length
    if draw(st.booleans()):
        places[OWNER] = places.pop(draw(st.sampled_from(sorted(places))))
    free = size - sum(len(block) for name, block in places.items() if name != OWNER)
    return WayMask.from_range(low, size), places, draw(st.integers(len(places.get(OWNER, ())) or 1, free))


@given(caches())
def test_each_plan_is_shortest_and_each_step_is_safe(cache: tuple[WayMask, Places, int]) -> None:
    pool, places, count = cache
    others = {name: block for name, block in places.items() if name != OWNER}
    steps = plan_moves(pool, others, OWNER, places.get(OWNER, WayMask()), count)
    now = dict(places)
    for step in steps:
        assert step in list(moves(pool, now))
        now |= dict([step])
    assert is_done(pool, now, count)
    assert len(steps) == fewest_moves(pool, places, count)


def test_a_block_moves_to_the_last_way_of_the_pool_if_that_saves_a_move() -> None:
    blocks = {"b": WayMask.from_range(2, 1), "c": WayMask.from_range(3, 1)}
    assert plan_moves(WayMask.from_range(0, 5), blocks, OWNER, WayMask.from_range(0, 1), 3) == (
        ("b", WayMask.from_range(4, 1)),
    )
