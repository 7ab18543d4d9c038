"""How much of a resource class whole trees use, and could give, in columns that are kept up to date."""

from collections.abc import Iterable, Mapping

from placement.model.trees import HostTree

Sums = Mapping[int, tuple[int, int]]
"""By the root of a tree that has a class how much of it all its providers use together, and could give."""


class SumsByClass:
    """:data:`Sums` of the resource classes that somebody asked about."""

    def __init__(self) -> None:
        self._by_class: dict[str, dict[int, tuple[int, int]]] = {}

    def copy(self) -> "SumsByClass":
        """The same, to be changed by itself."""
        new = SumsByClass()
        # copied at once, as whoever still looks at this one may ask about another class meanwhile
        new._by_class = {name: column.copy() for name, column in self._by_class.copy().items()}
        return new

    def of(self, name: str, trees: Mapping[int, HostTree]) -> Sums:
        """Those of a class; these are the trees there are."""
        found = self._by_class.get(name)
        if found is None:
            found = self._by_class[name] = {
                root: _sums(tree, places)
                for root, tree in trees.items()
                if (places := tree.shape.having.get(name)) is not None
            }
        return found

    def replace(self, roots: Iterable[int], trees: Mapping[int, HostTree]) -> None:
        """The trees of these roots are others now, or there are none."""
        for name, column in self._by_class.items():
            for root in roots:
                new = trees.get(root)
                places = None if new is None else new.shape.having.get(name)
                if new is None or places is None:
                    column.pop(root, None)
                else:
                    column[root] = _sums(new, places)


def _sums(tree: HostTree, places: Iterable[tuple[int, int]]) -> tuple[int, int]:
    used = capacity = 0
    capacities, free = tree.capacities, tree.free
    for _, slot in places:
        here = capacities[slot]
        used += here - free[slot]
        if here > 0:
            capacity += here
    return used, capacity
