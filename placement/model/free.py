"""Which trees have how much of a resource class free: where searches of crowded clouds begin."""

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import Final

from placement.model.trees import HostTree


class FreeIndex:
    """The roots of trees by the most of one resource class that one of their providers could give now.

    Two columns, in ascending order of amounts and, where these are equal, of roots.

    :param rows: the roots by amount.
    """

    def __init__(self, rows: Mapping[int, Iterable[int]] = MappingProxyType({})) -> None:
        self._amounts = array("q")
        self._roots = array("q")
        for amount in sorted(rows):
            roots = sorted(rows[amount])
            self._amounts.extend(repeat(amount, len(roots)))
            self._roots.extend(roots)

    def copy(self) -> "FreeIndex":
        """The same, to be changed by itself."""
        new = FreeIndex()
        new._amounts, new._roots = self._amounts[:], self._roots[:]
        return new

    def add(self, amount: int, root: int) -> None:
        """Note that the tree of this root could give so much."""
        at = self._row(amount, root)
        self._amounts.insert(at, amount)
        self._roots.insert(at, root)

    def remove(self, amount: int, root: int) -> None:
        """Undo :meth:`add`."""
        at = self._row(amount, root)
        del self._amounts[at], self._roots[at]

    def _row(self, amount: int, root: int) -> int:
        first = bisect_left(self._amounts, amount)
        return bisect_left(self._roots, root, first, bisect_right(self._amounts, amount, first))

    def count(self, amount: int) -> int:
        """How many trees have a provider that could give so much."""
        return len(self._amounts) - bisect_left(self._amounts, amount)

    def having(self, amount: int) -> Sequence[int]:
        """The roots of these trees, in any order."""
        return self._roots[bisect_left(self._amounts, amount) :]

    def descending(self) -> Iterator[tuple[int, int]]:
        """Amounts and roots, the highest first."""
        return zip(reversed(self._amounts), reversed(self._roots), strict=True)


class FreeIndexes:
    """A :class:`FreeIndex` for every resource class."""

    def __init__(self) -> None:
        self._by_class: dict[str, FreeIndex] = {}
        #: in a copy: of which classes the index is its own
        self._own: set[str] | None = None

    def copy(self) -> "FreeIndexes":
        """The same, to be changed by itself, while this one must not be changed any more.

        It shares the indexes, and replaces those that it changes.
        """
        new = FreeIndexes()
        new._by_class, new._own = self._by_class.copy(), set()
        return new

    def _changeable(self, name: str) -> FreeIndex:
        index = self._by_class.get(name)
        if self._own is not None and name not in self._own:
            self._own.add(name)
            index = self._by_class[name] = FreeIndex() if index is None else index.copy()
        elif index is None:
            index = self._by_class[name] = FreeIndex()
        return index

    def of(self, name: str) -> FreeIndex:
        """The trees that have a resource class."""
        return self._by_class.get(name, _NOWHERE)

    def fill(self, trees: Mapping[int, HostTree]) -> None:
        """Begin anew with these trees, by their roots."""
        kept: dict[int, Mapping[str, int]] = {}
        alike: defaultdict[int, list[int]] = defaultdict(list)  # many have the same object
        for root, tree in trees.items():
            most = tree.max_free
            kept[id(most)] = most
            alike[id(most)].append(root)
        rows: defaultdict[str, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for same, roots in alike.items():
            for name, amount in kept[same].items():
                rows[name][amount] += roots
        self._by_class, self._own = {name: FreeIndex(each) for name, each in rows.items()}, None

    def replace(self, root: int, old: HostTree | None, new: HostTree | None) -> None:
        """The tree of this root is another now, or there is none now, or was none before."""
        before = old.max_free if old else {}
        after = new.max_free if new else {}
        for name, amount in before.items():
            if after.get(name) != amount:
                self._changeable(name).remove(amount, root)
        for name, amount in after.items():
            if before.get(name) != amount:
                self._changeable(name).add(amount, root)


_NOWHERE: Final = FreeIndex()
