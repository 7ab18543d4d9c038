"""What a provider has to be to serve a part of a request, beside having the inventories.

Each condition says what it *reads* of a tree. What a search found for one tree it uses again for others,
and which others follows from what the conditions read, and by which providers meet them; so a new condition
is a class here, and nothing else has to know of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from placement.model.provider import Provider
from placement.model.snapshot import Snapshot
from placement.model.trees import Tree


class Condition(ABC):
    """A condition on one provider; equal ones are met by the same providers."""

    reads: ClassVar[str] = "root.id"
    """The attribute of :class:`~placement.model.trees.Tree` that has all the condition looks at: where it is
    equal in two trees of a shape, the same positions meet the condition. By default one that is equal in
    no two trees, which is always right."""

    @abstractmethod
    def met_by(self, provider: Provider, snapshot: Snapshot) -> bool:
        """Whether the provider meets it."""

    def met_at(self, tree: Tree, snapshot: Snapshot, known: dict[Hashable, bool]) -> tuple[bool, ...]:
        """By position whether the provider meets it.

        :param known: kept for one request, for whatever the condition likes to find out once.
        """
        return tuple([self.met_by(each, snapshot) for each in tree.members])


@dataclass(frozen=True, slots=True)
class HasTraits(Condition):
    """One trait of each set in ``required``, and none of ``forbidden``."""

    reads: ClassVar[str] = "kind"

    required: tuple[frozenset[str], ...]
    forbidden: frozenset[str] = frozenset()

    def met_by(self, provider: Provider, snapshot: Snapshot) -> bool:
        """Whether the provider has, and lacks, the traits."""
        traits = provider.traits
        return traits.isdisjoint(self.forbidden) and not any(map(traits.isdisjoint, self.required))

    def met_at(self, tree: Tree, snapshot: Snapshot, known: dict[Hashable, bool]) -> tuple[bool, ...]:
        """By position whether the provider has, and lacks, the traits."""
        found = []
        for each in tree.members:
            met = known.get(each.traits)
            if met is None:
                met = known[each.traits] = self.met_by(each, snapshot)
            found.append(met)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class InAggregates(Condition):
    """In one aggregate of each set in ``member_of``, and in none of ``forbidden``.

    With ``or_root`` the provider or its root, but one of them alone, has to be in all of them.
    """

    reads: ClassVar[str] = "aggregates"

    member_of: tuple[frozenset[str], ...]
    forbidden: frozenset[str]
    or_root: bool

    def met_by(self, provider: Provider, snapshot: Snapshot) -> bool:
        """Whether the provider, or its root for it, is where it has to be, and both where they may be."""
        own = provider.aggregates
        if not self.or_root or provider.parent_id is None:
            return self.forbidden.isdisjoint(own) and self._in_all(own)
        root = snapshot.providers[provider.root_id].aggregates
        return (
            self.forbidden.isdisjoint(own)
            and self.forbidden.isdisjoint(root)
            and (self._in_all(own) or self._in_all(root))
        )

    def met_at(self, tree: Tree, snapshot: Snapshot, known: dict[Hashable, bool]) -> tuple[bool, ...]:
        """By position whether the provider, or the root for it, is where it has to be."""
        found = []
        root = tree.root.aggregates if self.or_root else None
        for each, aggregates in zip(tree.members, tree.aggregates, strict=True):
            met = known.get((aggregates, root))
            if met is None:
                met = known[aggregates, root] = self.met_by(each, snapshot)
            found.append(met)
        return tuple(found)

    def _in_all(self, aggregates: frozenset[str]) -> bool:
        return not any(map(aggregates.isdisjoint, self.member_of))


@dataclass(frozen=True, slots=True)
class InTree(Condition):
    """In the tree of the provider with this uuid."""

    uuid: str

    def met_by(self, provider: Provider, snapshot: Snapshot) -> bool:
        """Whether there is such a tree, and the provider in it."""
        member = snapshot.get(self.uuid)
        return member is not None and member.root_id == provider.root_id
