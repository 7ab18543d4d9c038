"""Tests of a snapshot of all providers, and of its copy, which other requests change meanwhile."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placement.read_model import layered_dict
from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from tests.examples import examples
from tests.placement.read_model.builders import CLASSES, content, providers

EXAMPLES = examples(200)


@st.composite
def changes(draw: st.DrawFn) -> list[Provider | int]:
    """A strategy for changes of a snapshot: providers to put, and ids of children to remove."""
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


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sets(st.integers(4, 9)).flatmap(lambda ids: st.tuples(*map(providers, (1, 2, 3, *ids)))))
def test_a_snapshot_of_providers_equals_one_made_step_by_step(
    some: tuple[Provider, ...],
) -> None:
    one_by_one = ModelSnapshot()
    change(one_by_one, some)
    assert content(ModelSnapshot(some)) == content(one_by_one)


@contextmanager
def drawn_layers(data: st.DataObject) -> Iterator[None]:
    """Copy in two layers, in one, or in two up to a number of changes."""
    at_least, share = data.draw(st.sampled_from([(0, 9.0), (9, 9.0), (0, 0.4)]))
    with patch.multiple(layered_dict, _LAYERED_FROM=at_least, _MAX_SHARE=share):
        yield


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_changes_of_a_copy_do_not_change_the_original(data: st.DataObject) -> None:
    with drawn_layers(data):
        _change_copies(data)


def _change_copies(data: st.DataObject) -> None:
    first = [data.draw(providers(provider_id)) for provider_id in range(1, 7)]
    steps, more = data.draw(changes()), data.draw(changes())
    snapshot, expected = ModelSnapshot(first), ModelSnapshot(first)
    snapshot.whole_trees()
    before = content(expected)
    if data.draw(st.booleans()):
        content(snapshot)  # reads the roots, so that they are remembered
    snapshot.pin_count = 1
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
    # merging has to wait for the reader of the first snapshot
    last.merge_layers()
    assert content(snapshot) == before
    snapshot.pin_count = 0
    last.merge_layers()
    assert content(last) == content(expected)
    assert not isinstance(last.providers, layered_dict.LayeredDict)
    change(last, steps)
    change(expected, steps)
    assert content(last) == content(expected)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_snapshot_with_more_usage_equals_one_made_with_it(data: st.DataObject) -> None:
    with drawn_layers(data):
        _add_usage(data)


def _add_usage(data: st.DataObject) -> None:
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


def test_names_that_were_read_follow_new_renamed_and_removed_providers() -> None:
    def named(provider_id: int, name: str) -> Provider:
        uuid = f"uuid-{provider_id}"
        return Provider(provider_id, uuid, name, 0, None, provider_id, 0.0, {}, {}, frozenset(), frozenset())

    snapshot = ModelSnapshot([named(1, "one"), named(2, "two"), named(3, "three")])
    assert snapshot.by_name == {"one": 1, "two": 2, "three": 3}
    changed = snapshot.copy()
    changed.put(named(1, "two"))
    changed.put(named(2, "one"))
    changed.put(named(4, "four"))
    changed.remove(3)
    assert changed.by_name == {"one": 2, "two": 1, "four": 4}
    assert snapshot.by_name == {"one": 1, "two": 2, "three": 3}
