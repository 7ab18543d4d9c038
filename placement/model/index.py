"""Which providers have something in common."""

from typing import Final, NamedTuple, TypeVar

K = TypeVar("K", int, str)


class Roots(NamedTuple):
    """Of some providers the ids of the roots of their trees, in order; whether each is itself a root."""

    ids: tuple[int, ...]
    alone: bool


NO_ROOTS: Final = Roots((), True)


class Index(dict[K, set[int]]):
    """Sets of provider ids by what these providers have in common; none is empty.

    A copy shares the sets with its original, and replaces those that it changes: once
    there is a copy, the original must not be changed.
    """

    def __init__(self) -> None:
        super().__init__()
        #: of the providers of each set the roots of their trees, where somebody asked for them
        self.roots: dict[K, Roots] = {}
        #: in a copy: under which keys the sets are its own
        self._own: set[K] | None = None

    def copy(self) -> "Index[K]":
        """An index that may be changed while this one stays as it is."""
        new: Index[K] = Index()
        new.update(self)
        new.roots = self.roots.copy()
        new._own = set()
        return new

    def add(self, key: K, provider_id: int) -> None:
        """Note that the provider has this."""
        self._changeable(key).add(provider_id)
        self.roots.pop(key, None)

    def discard(self, key: K, provider_id: int) -> None:
        """Note that the provider, which had this, has it no more."""
        members = self._changeable(key)
        members.discard(provider_id)
        self.roots.pop(key, None)
        if not members:
            del self[key]

    def _changeable(self, key: K) -> set[int]:
        members = self.get(key)
        if members is None:
            members = self[key] = set()
        elif self._own is not None and key not in self._own:
            members = self[key] = members.copy()
        else:
            return members
        if self._own is not None:
            self._own.add(key)
        return members
