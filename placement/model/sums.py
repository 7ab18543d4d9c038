"""How much of a resource class whole trees use, and could give, in columns that are kept up to date."""

from collections.abc import Iterable, Mapping

from placement.model.trees import Tree

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

    def of(self, name: str, trees: Mapping[int, Tree]) -> Sums:
        """Those of a class; these are the trees there are."""
        found = self._by_class.get(name)
        if found is None:
            having = ((root, tree) for root, tree in trees.items() if name in tree.shape.having)
            found = self._by_class[name] = {root: _sums(tree, name) for root, tree in having}
        return found

    def replace(self, roots: Iterable[int], trees: Mapping[int, Tree]) -> None:
        """The trees of these roots are others now, or there are none."""
        for name, column in self._by_class.items():
            for root in roots:
                new = trees.get(root)
                if new is not None and name in new.shape.having:
                    column[root] = _sums(new, name)
                else:
                    column.pop(root, None)


def _sums(tree: Tree, name: str) -> tuple[int, int]:
    used = capacity = 0
    for at, slot in tree.shape.having[name]:
        here = tree.members[at].inventories[name].capacity
        used += here - tree.free[slot]
        if here > 0:
            capacity += here
    return used, capacity
