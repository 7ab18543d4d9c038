"""The indexes of a snapshot, which are updated with each change.

The indexes find providers by trait, aggregate and resource class. Other indexes find trees by their free
amount of a resource class. Searches in nearly full clouds begin with these indexes. Sums by resource class
contain the used amount and the capacity of each tree.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from functools import cached_property
from itertools import repeat
from types import MappingProxyType
from typing import Final, NamedTuple, Self, TypeVar, overload

from placement.read_model.layered_dict import as_one_layer, copy_for_changes
from placement.read_model.trees import HostTree

Sums = Mapping[int, tuple[int, int]]
"""For one resource class, the used amount and the capacity of each tree, by the root of the tree."""


class SumsByClass:
    """The used amount and capacity of each tree by class, computed when a search first needs a class."""

    def __init__(self) -> None:
        self._by_class: dict[str, MutableMapping[int, tuple[int, int]]] = {}

    def copy(self) -> SumsByClass:
        """Return a copy for changes; the original must not change afterwards."""
        new = SumsByClass()
        # the outer copy() is one call of C code, during which no reader of this object can add a class
        new._by_class = {name: copy_for_changes(each) for name, each in self._by_class.copy().items()}
        return new

    def merge_layers(self) -> None:
        """Use plain dictionaries again; no object from which this one was copied may still be in use."""
        for name, column in self._by_class.items():
            self._by_class[name] = as_one_layer(column)

    def sums_of(self, name: str, trees: Mapping[int, HostTree]) -> Sums:
        """Return the sums of a resource class; ``trees`` are all current trees."""
        found = self._by_class.get(name)
        if found is None:
            found = self._by_class[name] = {
                root: _tree_sums(tree, places)
                for root, tree in trees.items()
                if (places := tree.shape.having.get(name)) is not None
            }
        return found

    def replace(self, roots: Iterable[int], trees: Mapping[int, HostTree]) -> None:
        """Compute the sums again for the trees with these roots; some of the trees may no longer exist."""
        for name, column in self._by_class.items():
            for root in roots:
                new = trees.get(root)
                places = None if new is None else new.shape.having.get(name)
                if new is None or places is None:
                    column.pop(root, None)
                else:
                    column[root] = _tree_sums(new, places)


def _tree_sums(tree: HostTree, places: Iterable[tuple[int, int]]) -> tuple[int, int]:
    used = capacity = 0
    capacities, free = tree.capacities, tree.free
    for _, slot in places:
        here = capacities[slot]
        used += here - free[slot]
        # the amount is at least 0, because an inventory with more reserved than its total must not reduce the
        # sum
        if here > 0:
            capacity += here
    return used, capacity


class FreeIndex:
    """The roots of trees, ordered by the largest free amount of a resource class at one provider.

    The index has a column of amounts and a column of roots. Rows are in ascending order of amounts; rows with
    equal amounts are in ascending order of roots.

    :param rows: lists of roots, by the largest free amount at one provider of the tree.
    """

    def __init__(self, rows: Mapping[int, Iterable[int]] = MappingProxyType({})) -> None:
        # the columns are arrays of machine integers: a bisection reads few bytes, and a copy is a single
        # memcpy
        self._amounts = array("q")
        self._roots = array("q")
        for amount in sorted(rows):
            roots = sorted(rows[amount])
            self._amounts.extend(repeat(amount, len(roots)))
            self._roots.extend(roots)

    def copy(self) -> FreeIndex:
        """Return an independent copy."""
        new = FreeIndex()
        new._amounts, new._roots = self._amounts[:], self._roots[:]
        return new

    def add(self, amount: int, root: int) -> None:
        """Add the tree with this root and this free amount."""
        # an insertion moves all later values of the column, which are less than 1 MB for 100,000 trees
        at = self._row_of(amount, root)
        self._amounts.insert(at, amount)
        self._roots.insert(at, root)

    def remove(self, amount: int, root: int) -> None:
        """Remove the tree with this root and this free amount."""
        at = self._row_of(amount, root)
        del self._amounts[at], self._roots[at]

    def _row_of(self, amount: int, root: int) -> int:
        first = bisect_left(self._amounts, amount)
        return bisect_left(self._roots, root, first, bisect_right(self._amounts, amount, first))

    def count_roots(self, amount: int) -> int:
        """Return the number of trees in which some provider has at least this amount free."""
        return len(self._amounts) - bisect_left(self._amounts, amount)

    def roots_with(self, amount: int) -> Sequence[int]:
        """Return the roots of trees in which some provider has at least this amount free, in any order."""
        # a slice of an array is a copy, which later changes of the index do not affect
        return self._roots[bisect_left(self._amounts, amount) :]

    def descending_rows(self) -> Iterator[tuple[int, int]]:
        """Yield pairs of free amount and root, the highest amount first."""
        return zip(reversed(self._amounts), reversed(self._roots), strict=True)


class FreeIndexes:
    """For each resource class, an index of trees by free amount, made when a search first needs the class."""

    def __init__(self) -> None:
        self._by_class: dict[str, FreeIndex] = {}
        #: in a copy: the classes that have an index of their own by now; in an original: None
        self._own: set[str] | None = None

    def copy(self) -> FreeIndexes:
        """Return a copy for changes; afterwards the original must not change.

        The copy shares the indexes of the original. Before a shared index changes, the copy replaces it with
        an index of its own.
        """
        new = FreeIndexes()
        # the copy() of the dict is one call of C code, during which no reader of this object can add a class
        new._by_class, new._own = self._by_class.copy(), set()
        return new

    def _own_index(self, name: str) -> FreeIndex:
        index = self._by_class[name]
        if self._own is not None and name not in self._own:
            self._own.add(name)
            index = self._by_class[name] = index.copy()
        return index

    def index_of(self, name: str, trees: Mapping[int, HostTree]) -> FreeIndex:
        """Return the index of the trees with a resource class; ``trees`` are all current trees."""
        found = self._by_class.get(name)
        if found is None:
            rows: defaultdict[int, list[int]] = defaultdict(list)
            for root, tree in trees.items():
                if (amount := tree.max_free.get(name)) is not None:
                    rows[amount].append(root)
            found = self._by_class[name] = FreeIndex(rows)
            if self._own is not None:
                self._own.add(name)
        return found

    def drop_all(self) -> None:
        """Drop all indexes, so that later searches make them again."""
        self._by_class, self._own = {}, None

    def replace(self, root: int, old: HostTree | None, new: HostTree | None) -> None:
        """Replace the tree with this root in all indexes; None stands for a missing tree."""
        before = old.max_free if old else {}
        after = new.max_free if new else {}
        for name in self._by_class:
            was, amount = before.get(name), after.get(name)
            # only changed classes are updated, because a guest mostly changes one or two classes of a host
            if was == amount:
                continue
            index = self._own_index(name)
            if was is not None:
                index.remove(was, root)
            if amount is not None:
                index.add(amount, root)


EMPTY_INDEX: Final = FreeIndex()


K = TypeVar("K", bound=int | str)
C = TypeVar("C", set[int], list[int])


class RootIds(NamedTuple):
    """The roots of the trees of some providers, ascending; ``alone`` means that all providers are roots."""

    ids: tuple[int, ...]
    alone: bool


NO_ROOTS: Final = RootIds((), True)


# sequences are merged slice by slice, so that a reader of the first ids does not wait for all ids
_AT_ONCE: Final = 1024
"""Number of ids of each sequence that are merged in one step."""


class MergedIds(Sequence[int]):
    """The sorted union of several sorted sequences of ids, merged lazily, for readers of the first ids."""

    def __init__(self, of: Sequence[Sequence[int]]) -> None:
        self._of = of

    @cached_property
    def _all_ids(self) -> Sequence[int]:
        # the whole union is merged, because a caller that reads the length mostly reads all ids
        return [*iter(self)]

    def __iter__(self) -> Iterator[int]:
        # the code uses positions instead of iterators, so that slices are merged by set operations in C
        left = [(ids, 0) for ids in self._of if ids]
        while left:
            # all ids up to this one are in the current slices
            last = min([ids[min(begin + _AT_ONCE, len(ids)) - 1] for ids, begin in left])
            parts = [(ids, begin, bisect_right(ids, last, begin)) for ids, begin in left]
            yield from sorted(set().union(*[ids[begin:end] for ids, begin, end in parts]))
            left = [(ids, end) for ids, _, end in parts if end < len(ids)]

    def __len__(self) -> int:
        return len(self._all_ids)

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...

    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        return self._all_ids[at]


class _CopiedIndex(dict[K, C]):
    """Collections of provider ids by a property that the providers have in common; no collection is empty.

    A copy shares the collections of its original. Before a shared collection changes, the copy replaces it
    with a collection of its own. After the first copy the original must not change.
    """

    def __init__(self) -> None:
        super().__init__()
        #: in a copy: the keys that have a collection of their own by now; in an original: None
        self._own: set[K] | None = None

    def copy(self) -> Self:
        """Return a copy for changes; the original must not change afterwards."""
        new = type(self)()
        # only the dict is copied; a collection is copied when it changes, which is rare
        new.update(self)
        new._own = set()
        return new

    def _own_members(self, key: K, empty: Callable[[], C]) -> C:
        members = self.get(key)
        if members is None:
            members = self[key] = empty()
        elif self._own is not None and key not in self._own:
            members = self[key] = copy(members)
        else:
            return members
        if self._own is not None:
            self._own.add(key)
        return members


class ProviderIndex(_CopiedIndex[K, set[int]]):
    """Sets of provider ids by a common property, such as a trait."""

    def __init__(self) -> None:
        super().__init__()
        #: for each key, the roots of the trees of its providers; filled on demand
        self.roots: dict[K, RootIds] = {}

    def copy(self) -> Self:
        """Return a copy for changes; the original must not change afterwards."""
        new = super().copy()
        # both indexes share the tuples of roots, which never change
        new.roots.update(self.roots)
        return new

    def add_all(self, key: K, provider_ids: Iterable[int]) -> None:
        """Add a property, such as a trait, to these providers."""
        self._own_members(key, set).update(provider_ids)
        # this drops the cached roots of this key only
        self.roots.pop(key, None)

    def add(self, key: K, provider_id: int) -> None:
        """Add a property to the provider."""
        self._own_members(key, set).add(provider_id)
        self.roots.pop(key, None)

    def discard(self, key: K, provider_id: int) -> None:
        """Remove a property from the provider; a missing property is not an error."""
        members = self._own_members(key, set)
        members.discard(provider_id)
        self.roots.pop(key, None)
        # an empty set is removed with its key, because a missing key marks an unknown name
        if not members:
            del self[key]


class FamilyIndex(_CopiedIndex[int, list[int]]):
    """The ascending ids of the members of each tree, by root; lists need little memory for few ids."""

    def fill_from(self, keys: Iterable[int], ids: Iterable[int]) -> None:
        """Fill an empty index with providers, in ascending order of ids; ``keys`` has their roots."""
        for key, provider_id in zip(keys, ids, strict=True):
            members = self.get(key)
            if members is None:
                self[key] = [provider_id]
            else:
                members.append(provider_id)

    def add(self, key: int, provider_id: int) -> None:
        """Add a provider to a tree that does not have it yet; ``key`` is the id of the tree's root."""
        insort(self._own_members(key, list), provider_id)

    def discard(self, key: int, provider_id: int) -> None:
        """Remove the provider from the tree."""
        members = self._own_members(key, list)
        del members[bisect_left(members, provider_id)]
        if not members:
            del self[key]
