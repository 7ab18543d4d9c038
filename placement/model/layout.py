"""Where a tree has what a question is about, in an order that leaves out what else there is."""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

Where = tuple[tuple[str, ...], bool]
"""What a layout is made by: the classes, and whether it is of all providers."""


class TreeLayout(NamedTuple):
    """The providers of a tree that have any of some classes, those above them, and the root, which is first.

    The others come branch by branch; branches in which the same classes are at the same places are beside one
    another. So trees have the same ``places`` that differ in other providers, or in the order of branches.
    """

    positions: tuple[int, ...]
    """Of the providers, in the tree."""
    slots: tuple[int, ...]
    """Of what they have of the classes, provider by provider, in the order of the classes."""
    places: tuple[tuple[int, tuple[int, ...]], ...]
    """By provider the place of its parent in this order (-1: the root's), and which classes it has."""
    pick: Callable[[tuple[int, ...]], tuple[int, ...]]
    """Of what is free of a tree what is free at the slots."""

    def slots_of(self, rank: int) -> list[int]:
        """The slots of one of the classes."""
        ranks = [each for _, here in self.places for each in here]
        return [slot for slot, each in zip(self.slots, ranks, strict=True) if each == rank]


def arranged(
    lineages: Sequence[Sequence[int]],
    having: Mapping[str, Sequence[tuple[int, int]]],
    names: Sequence[str],
    *,
    whole: bool,
) -> TreeLayout:
    """The layout of a tree for these classes; with ``whole`` of all providers.

    :param lineages: as :attr:`placement.model.trees.TreeStructure.lineages`, ``having`` as its attribute.
    """
    of: dict[int, list[tuple[int, int]]] = {}
    for rank, name in enumerate(names):
        for at, slot in having.get(name, ()):
            of.setdefault(at, []).append((rank, slot))
    root = lineages[0][-1]
    kept = {above for at in of for above in lineages[at]}
    branches: dict[int, list[int]] = {}
    for at in range(len(lineages)) if whole else sorted(kept):
        if at != root:
            branches.setdefault(lineages[at][-2], []).append(at)
    sorted_out = []
    for members in branches.values():
        within = {at: index for index, at in enumerate(members)}
        code = tuple(
            [(within.get(lineages[at][1], -1), tuple([rank for rank, _ in of.get(at, ())])) for at in members]
        )
        sorted_out.append((code, members))
    sorted_out.sort()
    positions, places = [root], [(-1, tuple([rank for rank, _ in of.get(root, ())]))]
    for code, members in sorted_out:
        first = len(positions)
        positions += members
        places += [(0 if above < 0 else first + above, ranks) for above, ranks in code]
    slots = tuple([slot for at in positions for _, slot in of.get(at, ())])
    return TreeLayout(tuple(positions), slots, tuple(places), picker(slots))


def picker(slots: Sequence[int]) -> Callable[[tuple[int, ...]], Any]:
    """What is free at these slots, as a tuple."""
    if not slots:
        return lambda _: ()
    if len(slots) == 1:
        (slot,) = slots
        return lambda free: (free[slot],)
    return itemgetter(*slots)
