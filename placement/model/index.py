"""Which providers have something in common."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import Final, NamedTuple, Self, TypeVar, overload

K = TypeVar("K", bound=int | str)
C = TypeVar("C", set[int], list[int])


class RootIds(NamedTuple):
    """Of some providers the ids of the roots of their trees, in order; whether each is itself a root."""

    ids: tuple[int, ...]
    alone: bool


NO_ROOTS: Final = RootIds((), True)


_AT_ONCE: Final = 1024


class MergedIds(Sequence[int]):
    """Ids of several sequences, each of which is in ascending order: in ascending order, each once.

    Who goes through the first of them alone does not pay for the others.
    """

    def __init__(self, of: Sequence[Sequence[int]]) -> None:
        self._of = of

    @cached_property
    def _all(self) -> Sequence[int]:
        return [*iter(self)]  # who asks for the length of a sequence asks for all of it

    def __iter__(self) -> Iterator[int]:
        left = [(ids, 0) for ids in self._of if ids]
        while left:
            last = min([ids[min(begin + _AT_ONCE, len(ids)) - 1] for ids, begin in left])
            parts = [(ids, begin, bisect_right(ids, last, begin)) for ids, begin in left]
            yield from sorted(set().union(*[ids[begin:end] for ids, begin, end in parts]))
            left = [(ids, end) for ids, _, end in parts if end < len(ids)]

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...

    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        return self._all[at]


class _CopiedIndex(dict[K, C]):
    """Provider ids by what these providers have in common, in collections none of which is empty.

    A copy shares the collections with its original, and replaces those that it changes: once
    there is a copy, the original must not be changed.
    """

    def __init__(self) -> None:
        super().__init__()
        #: in a copy: under which keys the collections are its own
        self._own: set[K] | None = None

    def copy(self) -> Self:
        """One that may be changed while this one stays as it is."""
        new = type(self)()
        new.update(self)
        new._own = set()
        return new

    def _changeable(self, key: K, empty: Callable[[], C]) -> C:
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
    """Sets of provider ids."""

    def __init__(self) -> None:
        super().__init__()
        #: of the providers of each set the roots of their trees, where somebody asked for them
        self.roots: dict[K, RootIds] = {}

    def copy(self) -> Self:
        """One that may be changed while this one stays as it is."""
        new = super().copy()
        new.roots.update(self.roots)
        return new

    def add_all(self, key: K, provider_ids: Iterable[int]) -> None:
        """Note that these providers have this."""
        self._changeable(key, set).update(provider_ids)
        self.roots.pop(key, None)

    def add(self, key: K, provider_id: int) -> None:
        """Note that the provider has this."""
        self._changeable(key, set).add(provider_id)
        self.roots.pop(key, None)

    def discard(self, key: K, provider_id: int) -> None:
        """Note that the provider, which had this, has it no more."""
        members = self._changeable(key, set)
        members.discard(provider_id)
        self.roots.pop(key, None)
        if not members:
            del self[key]


class FamilyIndex(_CopiedIndex[int, list[int]]):
    """The ids of the members of trees by that of their root, in ascending order.

    There is one for every host, and mostly it has few: lists need a fifth of the memory of sets.
    """

    def fill(self, keys: Iterable[int], ids: Iterable[int]) -> None:
        """Begin with these providers, in ascending order, and the key of each."""
        for key, provider_id in zip(keys, ids, strict=True):
            members = self.get(key)
            if members is None:
                self[key] = [provider_id]
            else:
                members.append(provider_id)

    def add(self, key: int, provider_id: int) -> None:
        """Note that the provider, which is not there, belongs there."""
        insort(self._changeable(key, list), provider_id)

    def discard(self, key: int, provider_id: int) -> None:
        """Note that the provider, which belonged there, does no more."""
        members = self._changeable(key, list)
        del members[bisect_left(members, provider_id)]
        if not members:
            del self[key]
