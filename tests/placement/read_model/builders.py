"""Builds read models for tests, and lists all data of a model that a search can read."""

import math
from typing import Any

from hypothesis import strategies as st

from placement.read_model.columns import WritableModel
from placement.read_model.index import ProviderIndex
from placement.read_model.provider import Inventory, Provider
from placement.read_model.rows import NameRow, NameTable
from placement.read_model.snapshot import ModelSnapshot

NAMES = NameTable([NameRow(1, "VCPU", 1.5), NameRow(2, "MEMORY_MB", 0.0)], [NameRow(7, "T1", 2.0)])
EXAMPLE = WritableModel(
    "1", NAMES, {0: 5}, {0: 0}, math.inf,
    [
        Provider(1, "u1", "n1", 0, None, 1, 0.0, {}, {}, frozenset(("T1",)), frozenset()),
        Provider(2, "u2", "n2", 0, 1, 1, 0.0, {}, {"VCPU": 3}, frozenset(), frozenset(("a",))),
    ],
    {1: 4, 2: 5},
)  # fmt: skip


CLASSES = ("VCPU", "MEMORY_MB")


@st.composite
def providers(draw: st.DrawFn, provider_id: int) -> Provider:
    """A strategy for a provider in one of three trees with the root ids 1, 2 and 3."""
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


def content(snapshot: ModelSnapshot) -> Any:
    """All data of a snapshot that a search can read."""
    return (
        dict(snapshot.providers),
        snapshot.by_uuid.copy(),
        dict(snapshot.by_name),
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
