"""Indexes hosts by equivalence, for moves of windows from one host to another.

Hosts are *equivalent* if their trees have the same structure, traits and aggregates. Attributes do not
matter. The traits of disabled hosts do not matter either. But windows do not move to a disabled host, so the
index has no disabled hosts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

from placement.read_model.provider import STATUS_TRAITS
from placement.read_model.trees import HostTree


class EquivalentHosts:
    """The roots of all hosts that are not disabled, by equivalence."""

    def __init__(self, trees: Mapping[int, HostTree]) -> None:
        self._roots: dict[Hashable, list[int]] = {}
        # few classes of trees have many hosts, so the traits of most hosts are not read
        lists: dict[Hashable, list[int]] = {}
        for root, tree in trees.items():
            known = tree.kind, tree.aggregates
            roots = lists.get(known)
            if roots is None:
                disabled = any(STATUS_TRAITS & each for each in tree.kind.traits)
                roots = lists[known] = [] if disabled else self._roots.setdefault(_likeness_of(tree), [])
            roots.append(root)

    def roots_like(self, tree: HostTree) -> Sequence[int]:
        """Return the roots of the hosts that are equivalent to this one, perhaps with this one."""
        return self._roots.get(_likeness_of(tree), ())


def _likeness_of(tree: HostTree) -> Hashable:
    return tree.shape, tuple(each - STATUS_TRAITS for each in tree.kind.traits), tree.aggregates


def any_differs(before: Iterable[HostTree | None], after: Iterable[HostTree]) -> bool:
    """Return whether any of these trees has more than another usage; None stands for a new tree."""
    return any(
        old is None or old.kind is not new.kind or old.aggregates is not new.aggregates
        for old, new in zip(before, after, strict=True)
    )
