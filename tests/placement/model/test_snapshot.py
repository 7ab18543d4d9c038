"""A world and the copy of it that others change meanwhile."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placement.model.index import Index
from placement.model.provider import Inventory, Provider
from placement.model.snapshot import Snapshot

CLASSES = ("VCPU", "MEMORY_MB")


@st.composite
def providers(draw: st.DrawFn, number: int) -> Provider:
    """A provider of one of three trees, whose roots are 1, 2 and 3."""
    root = (number - 1) % 3 + 1
    names = draw(st.sets(st.sampled_from(CLASSES)))
    return Provider(
        id=number,
        uuid=f"uuid-{number}",
        name=draw(st.sampled_from((f"name-{number}", f"other-{number}"))),
        generation=draw(st.integers(0, 3)),
        parent_id=None if number == root else root,
        root_id=root,
        updated_at=0.0,
        inventories={
            name: Inventory(draw(st.integers(1, 9)), 0, 1, 9, 1, 1.0, 0.0) for name in sorted(names)
        },
        used={name: draw(st.integers(0, 9)) for name in sorted(names)},
        traits=frozenset(draw(st.sets(st.sampled_from(("T1", "T2"))))),
        aggregates=frozenset(draw(st.sets(st.sampled_from(("a", "b"))))),
    )


@st.composite
def changes(draw: st.DrawFn) -> list[Provider | int]:
    """Providers to be put, and ids of those to be removed (children only)."""
    found: list[Provider | int] = []
    for number in draw(st.lists(st.integers(1, 9), max_size=8)):
        gone = number > 3 and draw(st.booleans())
        found.append(number if gone else draw(providers(number)))
    return found


def change(world: Snapshot, steps: Iterable[Provider | int]) -> None:
    for step in steps:
        if isinstance(step, int):
            world.remove(step)
        else:
            world.put(step)
    world.whole_trees()


def content(world: Snapshot) -> Any:
    """All that a search can see."""
    return (
        dict(world.providers),
        world.by_uuid.copy(),
        world.by_name.copy(),
        [{key: frozenset(members) for key, members in index.items()} for index in _indexes(world)],
        {root: (tree.members, tree.free, tree.max_free) for root, tree in world.whole_trees().items()},
        {name: [world.free_index(name).roots(amount) for amount in range(10)] for name in CLASSES},
        {name: world.roots_having(world.by_class, name) for name in CLASSES},
        {name: world.roots_having(world.by_trait, name) for name in ("T1", "T2")},
        {name: world.roots_having(world.by_aggregate, name) for name in ("a", "b")},
    )


def _indexes(world: Snapshot) -> tuple[Index[Any], ...]:
    return world.children, world.trees, world.by_class, world.by_trait, world.by_aggregate


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_what_changes_in_a_copy_changes_nothing_in_the_original(data: st.DataObject) -> None:
    first = [data.draw(providers(number)) for number in range(1, 7)]
    steps, more = data.draw(changes()), data.draw(changes())
    world, expected = Snapshot(first), Snapshot(first)
    world.whole_trees()
    before = content(expected)
    if data.draw(st.booleans()):
        content(world)  # which looks the roots up, so that they are remembered
    copy = world.copy()
    change(copy, steps)
    assert content(world) == before
    change(expected, steps)
    assert content(copy) == content(expected)
    last = copy.copy()
    change(last, more)
    assert (content(world), content(copy)) == (before, content(expected))
    change(expected, more)
    assert content(last) == content(expected)


def test_a_copy_shares_what_did_not_change() -> None:
    world = Snapshot(
        [
            Provider(n, f"u{n}", f"n{n}", 0, None, n, 0.0, {}, {}, frozenset({"T1"}), frozenset())
            for n in (1, 2)
        ]
    )
    one, two = world.whole_trees().values()
    copy = world.copy()
    copy.put(replace(copy.providers[1], generation=1))
    assert copy.by_trait["T1"] is world.by_trait["T1"]
    assert copy.whole_trees()[1] is not one
    assert copy.whole_trees()[2] is two


def test_names_that_nobody_has_are_not_remembered() -> None:
    world = Snapshot()
    for number in range(100):
        assert world.roots_having(world.by_aggregate, f"made-up-{number}") == ()
    assert not world.by_aggregate.roots
