"""Tables of trees in columns: what explanations compare of each host, for one set of resource classes.

An explanation looks at every host of the cloud. The objects of thousands of unlike trees are scattered over
memory, so reading them takes most of the time. A table has copies of the compared numbers side by side, and a
later request for the same resource classes reads the table instead of the trees.

A tree never changes, but is replaced by another one. So a table is made again from an earlier table, and only
new trees are read. Snapshots share tables; a reader of an earlier table is not disturbed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from placement.read_model.trees import HostTree, TreeLayout, Where

# for each host, a table has 32 bytes, 8 bytes for each inventory of its classes, and 16 bytes for each class
# of which only some hosts allow a requested amount
_MAX_TABLES: Final = 4
"""Maximum number of tables that are kept, each for one set of resource classes."""
_MAX_OLD: Final = 0.25
"""Share of trees that may be replaced until an unused table is dropped, because it keeps the old trees."""
_AT_ONCE: Final = 64
"""Number of trees that are read between two reports of the work."""

Column = Sequence[int]
"""Numbers by row, in an array of machine integers."""
Spend = Callable[[int], None]
"""A function that counts steps of work; it may raise an error that ends the work."""


class TreePlaces:
    """The arrangement of the providers that have the classes of a table, equal for all trees of a part.

    Positions and slots are those of :class:`~placement.read_model.trees.TreeLayout`.
    """

    def __init__(self, layout: TreeLayout, where: Where) -> None:
        self.where = where
        #: for each position, the positions of the provider and its ancestors
        self.lineages: list[tuple[int, ...]] = []
        self.slots: dict[tuple[int, str], int] = {}
        #: for each class, the positions and slots of the providers that have it
        self.having: dict[str, list[tuple[int, int]]] = {}
        for at, (above, ranks) in enumerate(layout.places):
            lineage = [at]
            while above >= 0:
                lineage.append(above)
                above = layout.places[above][0]
            self.lineages.append(tuple(lineage))
            for name in [where[0][rank] for rank in ranks]:
                slot = self.slots[at, name] = len(self.slots)
                self.having.setdefault(name, []).append((at, slot))


class TablePart:
    """The rows of the trees with the same arrangement. A part never changes, apart from columns on demand.

    ``roots`` and ``names`` have the ids and the names of the roots. ``free`` has a column of free amounts for
    each slot.
    """

    def __init__(
        self,
        places: TreePlaces,
        trees: list[HostTree],
        roots: Column,
        names: list[str],
        free: Sequence[Column],
    ) -> None:
        self.places = places
        self.rows = range(len(trees))
        self.trees = trees
        self.roots = roots
        self.names = names
        self.free = free
        self._max_units: dict[str, tuple[Column, ...]] = {}

    def max_units(self, name: str) -> tuple[Column, ...]:
        """Return two columns: the lowest and the highest ``max_unit`` of a class in each tree."""
        found = self._max_units.get(name)
        if found is None:
            found = self._max_units[name] = _max_unit_columns(name, self.trees)
        return found

    def with_trees(self, gone: Sequence[int], new: list[HostTree]) -> TablePart:
        """Return the part without the rows in ``gone``, which descend, and with the new trees."""
        free = _free_columns(self.places, new)
        part = TablePart(
            self.places,
            _changed_column(self.trees, gone, new),
            _changed_column(self.roots, gone, [each.root.id for each in new]),
            _changed_column(self.names, gone, [each.root.name for each in new]),
            [_changed_column(old, gone, more) for old, more in zip(self.free, free, strict=True)],
        )
        for name, columns in self._max_units.copy().items():
            added = zip(columns, _max_unit_columns(name, new), strict=True)
            part._max_units[name] = tuple([_changed_column(old, gone, more) for old, more in added])
        return part


def _free_columns(places: TreePlaces, trees: Sequence[HostTree]) -> list[Column]:
    picked = [each.shape.frame.layout_of(places.where).pick(each.free) for each in trees]
    return [array("q", each) for each in zip(*picked, strict=True)] or [array("q")] * len(places.slots)


def _max_unit_columns(name: str, trees: Sequence[HostTree]) -> tuple[Column, Column]:
    bounds = [each.shape.bounds_of(name) for each in trees]
    return array("q", [each.common for each in bounds]), array("q", [each.most for each in bounds])


def _changed_column(column: Any, gone: Iterable[int], new: Any) -> Any:
    """Return a copy of a column without some rows, and with new ones; the last rows fill the gaps."""
    # a copy of an array is a single memcpy
    found = column[:]
    for row in gone:
        last = found.pop()
        if row < len(found):
            found[row] = last
    found.extend(new)
    return found


class TreeTable(NamedTuple):
    """The trees of a cloud for some resource classes, as parts with equal arrangements; no part is empty."""

    where: Where
    trees: list[HostTree]
    parts: Mapping[object, TablePart]

    def with_trees(self, trees: list[HostTree], spend: Spend) -> TreeTable:
        """Return the table of these trees; those that this table does not have are read."""
        # equal lists are compared by identity in C, because a tree is equal only to itself
        if trees == self.trees:
            return self
        present, known = set(trees), set(self.trees)
        new: dict[object, list[HostTree]] = {}
        unknown = iter([each for each in trees if each not in known])
        while some := [*islice(unknown, _AT_ONCE)]:
            spend(_AT_ONCE // 4)
            for tree in some:
                new.setdefault(tree.shape.frame.layout_of(self.where).places, []).append(tree)
        parts: dict[object, TablePart] = {}
        for places in dict.fromkeys(chain(self.parts, new)):
            part, added = self.parts.get(places), new.get(places, [])
            if part is None:
                layout = added[0].shape.frame.layout_of(self.where)
                part = TablePart(
                    TreePlaces(layout, self.where), [], array("q"), [], [array("q")] * len(layout.slots)
                )
            gone = [row for row in reversed(part.rows) if part.trees[row] not in present]
            spend(1 + (len(part.trees) + len(added)) // 16)
            if gone or added:
                part = part.with_trees(gone, added)
            if part.trees:
                parts[places] = part
        return TreeTable(self.where, trees, parts)


class TreeTables:
    """The tables of the resource classes that explanations asked for last, shared by all snapshots."""

    def __init__(self) -> None:
        #: tables, each with the number of trees that were replaced after its last use; the table that was
        #: used last comes last
        self._by_where: dict[Where, tuple[TreeTable, int]] = {}

    def table_of(self, where: Where, trees: Iterable[HostTree], spend: Spend) -> TreeTable:
        """Return the table of these trees, made from the last table of the same classes."""
        before, _ = self._by_where.get(where) or (TreeTable(where, [], {}), 0)
        found = before.with_trees([*trees], spend)
        self._by_where.pop(where, None)
        self._by_where[where] = found, 0
        for oldest in [*self._by_where][:-_MAX_TABLES]:
            self._by_where.pop(oldest, None)
        return found

    def note_replaced(self, count: int, of: int) -> None:
        """Note the number of replaced trees; drop unused tables with many old trees."""
        for where, (table, replaced) in [*self._by_where.items()]:
            if replaced + count > of * _MAX_OLD:
                self._by_where.pop(where, None)
            else:
                self._by_where[where] = table, replaced + count
