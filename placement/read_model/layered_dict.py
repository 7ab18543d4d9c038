"""A dictionary in two layers: a copy for changes takes neither time nor memory for unchanged entries.

A plain copy of a dictionary of all providers would write to each provider, because Python counts references.
Then workers that were forked from one process would no longer share the memory of the providers.
"""

from collections.abc import ItemsView, Iterator, MutableMapping, ValuesView
from typing import Final, TypeVar

V = TypeVar("V")

# each look-up in two layers takes a tenth of a microsecond longer
_LAYERED_FROM: Final = 10_000
"""Minimum number of entries for a second layer; smaller dictionaries are copied, which takes 0.2 ms at most.
"""
_MAX_SHARE: Final = 0.1
"""Maximum share of entries in the second layer; above this share, a copy has one layer."""


class LayeredDict(MutableMapping[int, V]):
    """A dictionary with changes on top of it; the base must not change. A replaced entry keeps its place.

    :param base: the first layer; a reader of a pinned snapshot perhaps still uses it.
    """

    __slots__ = ("_added", "_base", "_changes", "_removed")

    def __init__(self, base: dict[int, V]) -> None:
        self._base = base
        #: new values of keys, which may be in the base or not
        self._changes: dict[int, V] = {}
        #: keys of the base that were deleted
        self._removed: set[int] = set()
        #: number of keys in the changes that are not in the base
        self._added = 0

    def copy(self) -> MutableMapping[int, V]:
        """Return an independent copy, over the same base if there are few changes."""
        if len(self._changes) + len(self._removed) > _MAX_SHARE * len(self._base):
            return dict(self.items())
        new = LayeredDict(self._base)
        new._changes, new._removed, new._added = self._changes.copy(), self._removed.copy(), self._added
        return new

    def merge_layers(self) -> dict[int, V]:
        """Apply the changes to the base and return it; nothing else may use the base any more."""
        for key in self._removed:
            del self._base[key]
        self._base.update(self._changes)
        return self._base

    def __getitem__(self, key: int) -> V:
        changes = self._changes
        if key in changes:
            return changes[key]
        if key in self._removed:
            raise KeyError(key)
        return self._base[key]

    def __setitem__(self, key: int, value: V) -> None:
        if key not in self._changes and key not in self._base:
            self._added += 1
        self._removed.discard(key)
        self._changes[key] = value

    def __delitem__(self, key: int) -> None:
        if key not in self:
            raise KeyError(key)
        self._changes.pop(key, None)
        if key in self._base:
            self._removed.add(key)
        else:
            self._added -= 1

    def __contains__(self, key: object) -> bool:
        return key in self._changes or (key in self._base and key not in self._removed)

    def __len__(self) -> int:
        return len(self._base) - len(self._removed) + self._added

    def __iter__(self) -> Iterator[int]:
        removed, base = self._removed, self._base
        yield from [key for key in base if key not in removed] if removed else base
        if self._added:
            yield from [key for key in self._changes if key not in base]

    def items(self) -> ItemsView[int, V]:
        """Return the entries; iterating over them takes hardly longer than for a dictionary."""
        return _LayeredItems(self)

    def values(self) -> ValuesView[V]:
        """Return the values; iterating over them takes hardly longer than for a dictionary."""
        return _LayeredValues(self)

    def iterate_items(self) -> Iterator[tuple[int, V]]:
        """Yield each key with its value."""
        changes, removed, base = self._changes, self._removed, self._base
        for key, value in base.items():
            if key in changes:
                yield key, changes[key]
            elif key not in removed:
                yield key, value
        if self._added:
            yield from [(key, value) for key, value in changes.items() if key not in base]


class _LayeredItems(ItemsView[int, V]):
    _mapping: LayeredDict[V]

    def __iter__(self) -> Iterator[tuple[int, V]]:
        return self._mapping.iterate_items()


class _LayeredValues(ValuesView[V]):
    _mapping: LayeredDict[V]

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping.iterate_items())


def copy_for_changes(content: MutableMapping[int, V]) -> MutableMapping[int, V]:
    """Return a copy for changes; the original must not change while the copy is in two layers."""
    if isinstance(content, LayeredDict):
        return content.copy()
    if isinstance(content, dict) and len(content) >= _LAYERED_FROM:
        return LayeredDict(content)
    return dict(content)


def as_one_layer(content: MutableMapping[int, V]) -> MutableMapping[int, V]:
    """Return the content in a plain dictionary; nothing else may use the base of a layered dictionary."""
    return content.merge_layers() if isinstance(content, LayeredDict) else content
