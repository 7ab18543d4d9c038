"""Tests of assigning exclusive ways, and of the moves of masks that make room."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.resctrl.schemata import MaskRules, WayMask
from compute_agent.resctrl.ways import MaskMove, WayPartition, assign_ways, partition_ways
from tests.examples import examples


def rules(count, min_bits=1, sparse=False):
    return MaskRules(WayMask.from_range(0, count), min_bits, sparse)


def mask(text):
    return WayMask.parse_hex(text)


@pytest.mark.parametrize(
    ("cache", "shareable", "shared_ways", "locked", "pool"),
    [
        (rules(20), "c0000", 2, "0", "3ffff"),
        (rules(20), "c0000", 4, "0", "ffff"),
        (rules(20), "0", 2, "0", "3ffff"),
        (rules(20), "0", 0, "0", "7ffff"),  # one way is kept in any case
        (rules(20, min_bits=2), "0", 0, "0", "3ffff"),
        (rules(20), "c0001", 2, "0", "3fffe"),  # devices fill both ends
        (rules(12), "400", 1, "0", "3ff"),  # and here a way within
        (rules(11), "600", 1, "0", "1ff"),
        (rules(8), "0", 8, "0", "0"),
        (rules(8), "0", 20, "0", "0"),
        (rules(8), "0", 2, "f", "30"),
        (rules(16, sparse=True), "8010", 3, "0", "3fef"),
        (rules(16, sparse=True), "8010", 1, "0", "7fef"),
        (rules(64), "0", 4, "0", "fffffffffffffff"),
        (rules(8, min_bits=2), "81", 0, "0", "3e"),  # a piece of two is needed beside what devices fill
    ],
)
def test_a_cache_is_partitioned_into_pool_and_shared_ways(cache, shareable, shared_ways, locked, pool):
    assert str(partition_ways(cache, mask(shareable), shared_ways, mask(locked)).pool) == pool


@pytest.mark.parametrize(("shareable", "given_away"), [("3", "f0000"), ("c0000", "f")])
def test_exclusive_ways_leave_the_open_ways_in_one_run(shareable, given_away):
    """All other groups may fill one run of ways: the ways shared with devices, and adjacent ways."""
    division = partition_ways(rules(20), mask(shareable), 2)
    assert str(assign_ways(division, {}, {"a": 4}).masks["a"]) == given_away


@given(st.integers(1, 20), st.integers(0, 2**20 - 1), st.integers(0, 22), st.integers(1, 3), st.booleans())
@settings(deadline=None)
def test_shared_ways_are_enough_and_include_the_ways_of_devices(count, shareable, shared, min_bits, sparse):
    cache = rules(count, min(min_bits, count), sparse)
    devices = WayMask(shareable) & cache.all_ways
    division = partition_ways(cache, devices, shared)
    assert division.shared_ways.contains_mask(devices)
    assert len(division.shared_ways) >= min(count, max(shared, cache.min_bits))
    assert cache.all_ways.contains_mask(division.pool)
    if not sparse:
        assert len(division.pool.split_runs()) <= 1
    for exclusive in (WayMask(), division.pool):
        assert cache.find_fault(division.open_ways(exclusive)) is None


def test_every_assignment_leaves_one_run_of_open_ways():
    division = partition_ways(rules(20), mask("c0000"), 2)
    assert str(division.open_ways(mask("0"))) == "fffff"
    assert str(division.open_ways(mask("f"))) == "ffff0"
    assert str(division.open_ways(mask("f00"))) == "ff000"  # the piece that is shared, not the one below
    sparse = partition_ways(rules(16, sparse=True), mask("0"), 2)
    assert str(sparse.open_ways(mask("f00"))) == "f0ff"


POOL_8 = WayPartition(rules(12), mask("ff"))
FOUR_APART = {"a": mask("2"), "b": mask("10"), "c": mask("80")}


@pytest.mark.parametrize(
    ("held", "wanted", "masks", "moves"),
    [
        # the first guests start at the end that is farthest from the shared ways
        ({}, {"a": 3}, {"a": "7"}, 1),
        ({}, {"a": 3, "b": 4}, {"b": "f", "a": "70"}, 2),
        ({"a": "7"}, {"a": 3}, {"a": "7"}, 0),
        ({"a": "7"}, {"a": 3, "b": 2}, {"a": "7", "b": "18"}, 1),
        ({"a": "e0"}, {"a": 3, "b": 2}, {"a": "e0", "b": "3"}, 1),
        # the gap that fits is taken before the large one
        ({"a": "1", "b": "8"}, {"a": 1, "b": 1, "c": 2}, {"a": "1", "b": "8", "c": "6"}, 1),
        # an ended guest leaves its ways
        ({"a": "f", "b": "f0"}, {"b": 4, "c": 4}, {"b": "f0", "c": "f"}, 1),
        # a shrinking mask leaves the ways next to the open ways
        ({"a": "f0"}, {"a": 2}, {"a": "30"}, 1),
        ({"a": "f"}, {"a": 2}, {"a": "3"}, 1),
        # growing keeps the old ways where it can
        ({"a": "6"}, {"a": 4}, {"a": "f"}, 1),
        ({"a": "3", "b": "c"}, {"a": 4, "b": 2}, {"a": "f0", "b": "c"}, 1),
        # one move makes room for four
        ({"a": "2", "b": "10", "c": "80"}, {"a": 1, "b": 1, "c": 1, "d": 4}, None, 2),
    ],
)
def test_masks_are_chosen_with_the_fewest_moves(held, wanted, masks, moves):
    result = assign_ways(POOL_8, {name: mask(text) for name, text in held.items()}, wanted)
    assert len(result.moves) == moves
    assert not result.refused
    assert {name: len(found) for name, found in result.masks.items()} == wanted
    if masks is not None:
        assert {name: str(found) for name, found in result.masks.items()} == masks


def test_running_guests_take_precedence_over_new_ones():
    result = assign_ways(POOL_8, {"z": mask("3f")}, {"a": 3, "z": 6})
    assert result.refused == {"a": "3 exclusive ways do not fit: 2 of 8 are left"}
    assert {name: str(found) for name, found in result.masks.items()} == {"z": "3f"}


def test_fewer_ways_than_a_mask_needs_are_refused():
    result = assign_ways(partition_ways(rules(20, min_bits=2), WayMask(), 2), {}, {"a": 1})
    assert result.refused == {"a": "1 ways are fewer than the 2 that a mask needs"}


def test_a_misplaced_owner_moves_first_to_ways_without_a_mask_in_force():
    held = {"a": mask("3"), "b": mask("6"), "c": mask("e")}
    result = assign_ways(POOL_8, held, {"a": 2, "b": 2, "c": 3})
    assert result.moves[0] == MaskMove("b", mask("6"), mask("30"))
    assert {name: len(found) for name, found in result.masks.items()} == {"a": 2, "b": 2, "c": 3}
    assert len(WayMask.union_of(result.masks.values())) == 7


def test_masks_that_break_the_rules_are_replaced_without_overlap():
    # b has ways of devices, after shared_ways has grown
    result = assign_ways(POOL_8, {"a": mask("3"), "b": mask("300")}, {"a": 2, "b": 2})
    assert {name: str(found) for name, found in result.masks.items()} == {"a": "3", "b": "c"}
    assert result.moves == (MaskMove("b", mask("300"), mask("c")),)


def test_no_mask_moves_where_holes_are_allowed():
    division = partition_ways(rules(8, sparse=True), WayMask(), 2)
    result = assign_ways(division, {"a": mask("2"), "b": mask("10")}, {"a": 1, "b": 1, "c": 4})
    assert {name: str(found) for name, found in result.masks.items()} == {"a": "2", "b": "10", "c": "2d"}
    grown = assign_ways(division, result.masks, {"a": 1, "b": 1, "c": 2})
    assert str(grown.masks["c"]) == "5"


@st.composite
def worlds(draw, width):
    """A strategy for a pool of one run, masks in it that do not overlap, and new numbers of ways that fit."""
    pool = draw(st.integers(2, width))
    low = draw(st.integers(0, 3))
    held, at = {}, low
    while True:
        at += draw(st.integers(0, 3))
        size = draw(st.integers(1, 4))
        if at + size > low + pool:
            break
        held[f"g{len(held)}"] = WayMask.from_range(at, size)
        at += size
    wanted = {}
    for name, found in held.items():
        change = draw(st.sampled_from(["keep", "keep", "keep", "gone", "other"]))
        if change != "gone":
            wanted[name] = draw(st.integers(1, 4)) if change == "other" else len(found)
    for index in range(draw(st.integers(0, 2))):
        wanted[f"new{index}"] = draw(st.integers(1, pool))
    division = WayPartition(rules(low + pool + 2), WayMask.from_range(low, pool))
    return division, held, wanted


def check_safe(division, held, wanted, result):
    """Replay the moves; check at each step that the masks are allowed, are in the pool and do not overlap."""
    now = {name: found for name, found in held.items() if name in wanted and name not in result.refused}
    for move in result.moves:
        assert now.get(move.owner, WayMask()) == move.before
        assert division.rules.find_fault(move.after) is None
        assert division.pool.contains_mask(move.after)
        now[move.owner] = move.after
        for one in now:
            for other in now:
                assert one == other or not now[one] & now[other]
    assert now == dict(result.masks)
    assert {name: len(found) for name, found in now.items()} == {
        name: count for name, count in wanted.items() if name not in result.refused
    }


@given(worlds(20))
@settings(max_examples=examples(300), deadline=None)
def test_no_step_lets_exclusive_masks_overlap(world):
    division, held, wanted = world
    result = assign_ways(division, held, wanted)
    check_safe(division, held, wanted, result)
    if sum(wanted.values()) <= len(division.pool):
        assert not result.refused


@given(worlds(20))
@settings(deadline=None)
def test_a_second_assignment_changes_nothing(world):
    division, held, wanted = world
    first = assign_ways(division, held, wanted)
    kept = {name: count for name, count in wanted.items() if name not in first.refused}
    assert assign_ways(division, first.masks, kept).moves == ()


def fewest_moves(division, held, owner, count):
    """The fewest moves, by breadth-first search over all placements of masks. A changed size counts as one
    move.
    """
    pool = list(division.pool)
    low, high = pool[0], pool[-1] + 1
    start = tuple(sorted((name, found.bits) for name, found in held.items()))
    todo, seen = deque([(start, 0)]), {start}
    while todo:
        state, moves = todo.popleft()
        now = dict(state)
        if now.get(owner, 0).bit_count() == count:
            return moves
        candidates = [(name, bits.bit_count()) for name, bits in state] + [(owner, count)]
        for name, size in candidates:
            taken = sum(bits for other, bits in state if other != name)
            for at in range(low, high - size + 1):
                bits = (1 << size) - 1 << at
                if bits & taken or now.get(name) == bits:
                    continue
                after = tuple(sorted({**now, name: bits}.items()))
                if after not in seen:
                    seen.add(after)
                    todo.append((after, moves + 1))
    return None


@st.composite
def narrow_worlds(draw):
    division, held, _ = draw(worlds(9))
    held = dict(list(held.items())[:4])
    free = len(division.pool) - sum(map(len, held.values()))
    if held and draw(st.booleans()):
        owner = draw(st.sampled_from(sorted(held)))
        return division, held, owner, len(held[owner]) + draw(st.integers(0, free))
    return division, held, "new", draw(st.integers(1, free)) if free else 0


@given(narrow_worlds())
@settings(max_examples=examples(200), deadline=None)
def test_brute_force_finds_no_plan_with_fewer_moves(world):
    division, held, owner, count = world
    if count == 0:
        return
    wanted = {name: len(found) for name, found in held.items()} | {owner: count}
    result = assign_ways(division, held, wanted)
    check_safe(division, held, wanted, result)
    assert len(result.moves) == fewest_moves(division, held, owner, count)


def test_a_large_fragmented_cache_is_defragmented():
    division = partition_ways(rules(64), WayMask(), 4)
    held = {f"g{index}": WayMask.from_range(index * 4 + 1, 2) for index in range(15)}
    wanted = dict.fromkeys(held, 2) | {"new": 20}
    result = assign_ways(division, held, wanted)
    check_safe(division, held, wanted, result)
    assert len(result.moves) <= 16


def test_a_refusal_has_the_same_reason_in_the_next_call():
    division = partition_ways(rules(12), WayMask(), shared_ways=2)
    wanted = {"b": 5, "c": 3, "d": 3, "a": 1}
    first = assign_ways(division, {}, wanted)
    assert first.refused == {"d": "3 exclusive ways do not fit: 1 of 10 are left"}
    assert assign_ways(division, first.masks, wanted).refused == first.refused


def test_the_worked_example_of_the_documentation():
    division = partition_ways(rules(12), WayMask(), shared_ways=2)
    assert division.pool == mask("3ff")
    first = assign_ways(division, {}, {"web": 4, "db": 3})
    assert first.masks == {"web": mask("f"), "db": mask("70")}
    open_ways = division.open_ways(WayMask.union_of(first.masks.values()))
    assert open_ways == mask("f80")
    assert open_ways.percent_range(0, 30) == mask("180")
    then = assign_ways(division, {"db": first.masks["db"]}, {"db": 3, "big": 7})
    assert then.moves == (
        MaskMove("db", mask("70"), mask("7")),
        MaskMove("big", WayMask(), mask("3f8")),
    )
    assert not then.refused
