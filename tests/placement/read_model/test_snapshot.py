"""A snapshot, and the copy of it that others change meanwhile."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placement.read_model.index import ProviderIndex
from placement.read_model.provider import Inventory, Provider
from placement.read_model.snapshot import ModelSnapshot
from tests.examples import examples

CLASSES = ("VCPU", "MEMORY_MB")
EXAMPLES = examples(200)


@st.composite
def providers(draw: st.DrawFn, provider_id: int) -> Provider:
    """A provider of one of three trees with the roots 1, 2 and 3."""
    root = (provider_id - 1) % 3 + 1
    names = draw(st.sets(st.sampled_from(CLASSES)))
    return Provider(
        id=provider_id,
        uuid=f"uuid-{provider_id}",
        name=draw(st.sampled_from((f"name-{provider_id}", f"other-{provider_id}"))),
        generation=draw(st.integers(0, 3)),
        parent_id=None if provider_id == root else root,
        root_id=root,
        updated_at=0.0,
        inventories={name: Inventory(draw(st.integers(1, 9)), 0, 1, 9, 1, 1.0) for name in sorted(names)},
        used={name: draw(st.integers(0, 9)) for name in sorted(names)},
        traits=frozenset(draw(st.sets(st.sampled_from(("T1", "T2"))))),
        aggregates=frozenset(draw(st.sets(st.sampled_from(("a", "b"))))),
        attributes=draw(st.sampled_from(({}, {"price": 1.0}, {"price": 2.0}, {"price": "dear"}))),
    )


@st.composite
def changes(draw: st.DrawFn) -> list[Provider | int]:
    """Providers to put, and ids of children to remove."""
    found: list[Provider | int] = []
    for provider_id in draw(st.lists(st.integers(1, 9), max_size=8)):
        gone = provider_id > 3 and draw(st.booleans())
        found.append(provider_id if gone else draw(providers(provider_id)))
    return found


def change(snapshot: ModelSnapshot, steps: Iterable[Provider | int]) -> None:
    for step in steps:
        if isinstance(step, int):
            snapshot.remove(step)
        else:
            snapshot.put(step)
    snapshot.whole_trees()


def content(snapshot: ModelSnapshot) -> Any:
    """All data that a search can read."""
    return (
        dict(snapshot.providers),
        snapshot.by_uuid.copy(),
        snapshot.by_name.copy(),
        [{key: frozenset(members) for key, members in index.items()} for index in _indexes(snapshot)],
        {root: (tree.members, tree.free, tree.max_free) for root, tree in snapshot.whole_trees().items()},
        {
            name: [sorted(snapshot.free_index(name).roots_with(amount)) for amount in range(10)]
            for name in CLASSES
        },
        {name: dict(snapshot.sums_of(name)) for name in CLASSES},
        (snapshot.attribute_range("price"), dict(snapshot.attribute_ranges("price"))),
        snapshot.roots(),
        {name: snapshot.roots_having(snapshot.by_class, name) for name in CLASSES},
        {name: snapshot.roots_having(snapshot.by_trait, name) for name in ("T1", "T2")},
        {name: snapshot.roots_having(snapshot.by_aggregate, name) for name in ("a", "b")},
    )


def _indexes(snapshot: ModelSnapshot) -> tuple[ProviderIndex[Any], ...]:
    return snapshot.trees, snapshot.by_class, snapshot.by_trait, snapshot.by_aggregate


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sets(st.integers(4, 9)).flatmap(lambda ids: st.tuples(*map(providers, (1, 2, 3, *ids)))))
def test_a_snapshot_of_providers_equals_one_made_step_by_step(
    some: tuple[Provider, ...],
) -> None:
    one_by_one = ModelSnapshot()
    change(one_by_one, some)
    assert content(ModelSnapshot(some)) == content(one_by_one)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_changes_of_a_copy_do_not_change_the_original(data: st.DataObject) -> None:
    first = [data.draw(providers(provider_id)) for provider_id in range(1, 7)]
    steps, more = data.draw(changes()), data.draw(changes())
    snapshot, expected = ModelSnapshot(first), ModelSnapshot(first)
    snapshot.whole_trees()
    before = content(expected)
    if data.draw(st.booleans()):
        content(snapshot)  # reads the roots, so that they are remembered
    copy = snapshot.copy()
    change(copy, steps)
    assert content(snapshot) == before
    change(expected, steps)
    assert content(copy) == content(expected)
    last = copy.copy()
    change(last, more)
    assert (content(snapshot), content(copy)) == (before, content(expected))
    change(expected, more)
    assert content(last) == content(expected) == content(ModelSnapshot(expected))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_snapshot_with_more_usage_equals_one_made_with_it(data: st.DataObject) -> None:
    first = [data.draw(providers(provider_id)) for provider_id in range(1, 7)]
    snapshot = ModelSnapshot(first)
    before = content(ModelSnapshot(first))
    amounts = st.dictionaries(st.sampled_from(CLASSES), st.integers(0, 9))
    known = [(snapshot, first)]
    for used in data.draw(st.lists(st.dictionaries(st.integers(1, 6), amounts), max_size=3)):
        last, so_far = known[-1]
        now = [replace(each, used=used.get(each.id, each.used)) for each in so_far]
        known.append((last.with_usage(used), now))
    for found, expected in known:
        assert content(found) == content(ModelSnapshot(expected))
    assert content(snapshot) == before
    snapshot.put(replace(first[0], used={}))  # once the others are not needed any more
    assert content(snapshot) == content(ModelSnapshot([replace(first[0], used={}), *first[1:]]))


def test_a_copy_shares_unchanged_parts() -> None:
    snapshot = ModelSnapshot(
        [
            Provider(n, f"u{n}", f"n{n}", 0, None, n, 0.0, {}, {}, frozenset({"T1"}), frozenset())
            for n in (1, 2)
        ]
    )
    one, two = snapshot.whole_trees().values()
    copy = snapshot.copy()
    copy.put(replace(copy.providers[1], generation=1))
    assert copy.by_trait["T1"] is snapshot.by_trait["T1"]
    assert copy.whole_trees()[1] is not one
    assert copy.whole_trees()[2] is two


def test_names_without_providers_are_not_remembered() -> None:
    snapshot = ModelSnapshot()
    for provider_id in range(100):
        assert snapshot.roots_having(snapshot.by_aggregate, f"made-up-{provider_id}").ids == ()
    assert not snapshot.by_aggregate.roots
