"""Tests of the tables of trees that explanations read."""

import sys
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.tree_table import TreeTable
from placement.read_model.trees import TreeFrame, Where
from tests.placement.read_model import builders
from tests.placement.search.snapshots import Spec, build

WHERE: Where = (("MEMORY_MB", "VCPU"), False)
CHANGES = st.lists(st.integers(1, 6).flatmap(lambda each: st.just(each) | builders.providers(each)))


def spend(steps: int) -> None:
    assert steps > 0


def table_of(snapshot: ModelSnapshot, where: Where = WHERE) -> TreeTable:
    return snapshot.tree_table(where, spend)


def content(table: TreeTable) -> dict[int, Any]:
    """All values of a table, by root."""
    assert all(part.trees for part in table.parts.values())
    return {
        part.roots[row]: (
            places,
            part.trees[row],
            part.names[row],
            [column[row] for column in part.free],
            [column[row] for name in part.places.having for column in part.max_units(name)],
        )
        for places, part in table.parts.items()
        for row in part.rows
    }


def hosts(count: int) -> ModelSnapshot:
    return build(
        *(
            Spec(f"cn{number}", None, {"VCPU": 900, "MEMORY_MB": 9999}, used={"VCPU": number})
            for number in range(count)
        )
    )


def use(snapshot: ModelSnapshot, root: int) -> None:
    """Use one more VCPU."""
    used = snapshot.providers[root].used
    snapshot.put(snapshot.providers[root].with_usage({**used, "VCPU": used["VCPU"] + 1}))


@given(CHANGES, CHANGES)
def test_a_table_follows_the_changes_and_earlier_tables_stay(
    before: list[int | Provider], after: list[int | Provider]
) -> None:
    snapshot = ModelSnapshot()
    for changes in (before, after):
        earlier = table_of(snapshot)
        known = content(earlier)
        snapshot = snapshot.copy()
        for each in changes:
            if not isinstance(each, int):
                snapshot.put(each)
            elif each > 3:  # roots stay, because each provider needs its root
                snapshot.remove(each)
        if any(each.root_id not in snapshot.providers for each in snapshot):
            return
        new = TreeTable(WHERE, [], {}).with_trees([*snapshot.whole_trees().values()], spend)
        assert content(table_of(snapshot)) == content(new)
        assert content(earlier) == known


def test_only_new_trees_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot, read = hosts(30), []
    layout_of = TreeFrame.layout_of
    monkeypatch.setattr(TreeFrame, "layout_of", lambda *each: read.append(1) or layout_of(*each))
    first = table_of(snapshot)
    assert len(read) >= 30
    read.clear()
    assert table_of(snapshot) is first
    assert not read
    snapshot = snapshot.copy()
    use(snapshot, 5)
    [part] = table_of(snapshot).parts.values()
    assert len(read) <= 3
    assert dict(zip(part.roots, part.free[1], strict=True)) == {
        root: 900 - (root - 1) - (root == 5) for root in range(1, 31)
    }


def test_few_tables_are_kept() -> None:
    snapshot = hosts(30)
    tables = [
        weakref.ref(table_of(snapshot, ((f"CUSTOM_{number}",), False)).parts[((-1, ()),)])
        for number in range(9)
    ]
    assert [each() is not None for each in tables] == [False] * 5 + [True] * 4


def test_a_table_that_is_not_used_does_not_keep_many_old_trees() -> None:
    snapshot = hosts(30)
    table_of(snapshot)
    old = [weakref.ref(tree) for tree in snapshot.whole_trees().values()]
    for root in range(1, 8):
        use(snapshot, root)
        snapshot.whole_trees()
    assert sum(each() is not None for each in old) == 30
    use(snapshot, 8)
    snapshot.whole_trees()
    assert sum(each() is not None for each in old) == 22


def test_other_usage_for_a_search_does_not_drop_tables() -> None:
    snapshot = hosts(30)
    first = table_of(snapshot)
    # with the usage during a window, most trees differ
    during_window = snapshot.with_usage({root: {"VCPU": 5} for root in range(1, 21)})
    during_window.whole_trees()
    assert table_of(snapshot) is first
    [part] = table_of(during_window).parts.values()
    assert [part.free[1][part.roots.index(root)] for root in (1, 20, 21)] == [895, 895, 880]
    assert content(table_of(snapshot)) == content(first)


def test_a_table_takes_few_bytes_for_each_host() -> None:
    table = table_of(hosts(2000))
    [part] = table.parts.values()
    columns = [table.trees, part.trees, part.roots, part.names, *part.free]
    # lists and arrays may reserve an eighth more
    assert sum(map(sys.getsizeof, columns)) <= 2000 * (32 + 8 * 2) * 9 / 8
