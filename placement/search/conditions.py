"""Conditions on one provider, and the needs of a request: what exactly one provider serves.

A group with a suffix is one need. The group without a suffix falls into one need per resource class, as each
class may come from another provider.

Each condition says what it *reads* of a tree. A search reuses what it found for one tree at all trees where
the conditions read the same and the same positions meet them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree
from placement.search.request import CandidatesRequest, RequestGroup

Met = Callable[[HostTree], tuple[bool, ...]]
"""Tells of a tree by position whether the provider meets a condition."""

_K = TypeVar("_K")


class _RememberedValues(dict[_K, bool], Generic[_K]):
    """What a condition says of each value, asked once."""

    def __init__(self, says: Callable[[_K], bool]) -> None:
        self._says = says

    def __missing__(self, value: _K) -> bool:
        met = self[value] = self._says(value)
        return met


class ProviderCondition(ABC):
    """A condition on one provider; equal ones are met by the same providers."""

    reads: ClassVar[str] = "root.id"
    """The attribute of :class:`~placement.read_model.trees.HostTree` that has all the condition looks at.

    Where it is equal in two trees of a structure, the same positions meet the condition. By default one that
    is equal in no two trees, which is always right."""

    @abstractmethod
    def met_by(self, provider: Provider, snapshot: ModelSnapshot) -> bool:
        """Whether the provider meets it."""

    def met_in(self, snapshot: ModelSnapshot) -> Met:
        """A function that looks at one tree of the snapshot after the other, for one request."""
        return lambda tree: tuple([self.met_by(each, snapshot) for each in tree.members])


@dataclass(frozen=True, slots=True)
class HasTraits(ProviderCondition):
    """One trait of each set in ``required``, and none of ``forbidden``."""

    reads: ClassVar[str] = "kind"

    required: tuple[frozenset[str], ...]
    forbidden: frozenset[str] = frozenset()

    def met_by(self, provider: Provider, snapshot: ModelSnapshot) -> bool:
        """Whether the provider has, and lacks, the traits."""
        return self._met_with(provider.traits)

    def met_in(self, snapshot: ModelSnapshot) -> Met:
        """A function that looks at each set of traits once."""
        known = _RememberedValues(self._met_with)
        return lambda tree: tuple(map(known.__getitem__, tree.kind.traits))

    def _met_with(self, traits: frozenset[str]) -> bool:
        return traits.isdisjoint(self.forbidden) and not any(map(traits.isdisjoint, self.required))


@dataclass(frozen=True, slots=True)
class InAggregates(ProviderCondition):
    """In one aggregate of each set in ``member_of``, and in none of ``forbidden``.

    With ``or_root`` the provider or its root, but one of them alone, has to be in all of them.
    """

    reads: ClassVar[str] = "aggregates"

    member_of: tuple[frozenset[str], ...]
    forbidden: frozenset[str]
    or_root: bool

    def met_by(self, provider: Provider, snapshot: ModelSnapshot) -> bool:
        """Whether the provider, or its root for it, is where it has to be, and both where they may be."""
        root = None
        if self.or_root and provider.parent_id is not None:
            root = snapshot.providers[provider.root_id].aggregates
        return self._met_with(provider.aggregates, root)

    def met_in(self, snapshot: ModelSnapshot) -> Met:
        """A function that looks at each set of aggregates, beside each set of a root, once."""
        known: dict[frozenset[str] | None, _RememberedValues[frozenset[str]]] = {}

        def met(tree: HostTree) -> tuple[bool, ...]:
            root = tree.root.aggregates if self.or_root else None
            beside = known.get(root)
            if beside is None:
                beside = known[root] = _RememberedValues(lambda own: self._met_with(own, root))
            return tuple(map(beside.__getitem__, tree.aggregates))

        return met

    def _met_with(self, own: frozenset[str], root: frozenset[str] | None) -> bool:
        """Whether a provider in these aggregates meets it, below a root in those that count for it, too."""
        if not self.forbidden.isdisjoint(own):
            return False
        if root is None:
            return self._in_all(own)
        return self.forbidden.isdisjoint(root) and (self._in_all(own) or self._in_all(root))

    def _in_all(self, aggregates: frozenset[str]) -> bool:
        return not any(map(aggregates.isdisjoint, self.member_of))


@dataclass(frozen=True, slots=True)
class InTree(ProviderCondition):
    """In the tree of the provider with this uuid."""

    uuid: str

    def met_by(self, provider: Provider, snapshot: ModelSnapshot) -> bool:
        """Whether there is such a tree, and the provider in it."""
        member = snapshot.get(self.uuid)
        return member is not None and member.root_id == provider.root_id


@dataclass(frozen=True, slots=True)
class ProviderNeed:
    """Something that exactly one provider of a candidate serves.

    ``unsuffixed`` marks the needs of the group without a suffix: the traits it requires are looked for on
    all its providers together (:attr:`~placement.search.rules.RequestRules.unsuffixed_traits`), so that
    a need has none of its own, and the aggregates of a root count for its whole tree.
    """

    suffix: str
    resources: tuple[tuple[str, int], ...]
    conditions: tuple[ProviderCondition, ...]
    unsuffixed: bool

    @property
    def terms(self) -> Hashable:
        """All that decides on who can serve it."""
        return self.resources, self.conditions

    def served_by(self, provider: Provider, snapshot: ModelSnapshot) -> bool:
        """Whether the provider has what is needed, all by itself and as it is used now."""
        for name, amount in self.resources:
            inventory = provider.inventories.get(name)
            if inventory is None or not inventory.accepts(amount, provider.used.get(name, 0)):
                return False
        for condition in self.conditions:  # noqa: SIM110  # a generator costs more than most conditions
            if not condition.met_by(provider, snapshot):
                return False
        return True


def needs_of(request: CandidatesRequest) -> tuple[ProviderNeed, ...]:
    """All needs of the request, group by group."""
    return tuple(need for group in request.groups for need in _needs_of_group(group))


def _needs_of_group(group: RequestGroup) -> tuple[ProviderNeed, ...]:
    resources = tuple(group.resources.items())
    unsuffixed = group.suffix == ""
    parts = [(resource,) for resource in resources] if unsuffixed else [resources]
    conditions = tuple(_conditions_of(group, unsuffixed=unsuffixed))
    return tuple(ProviderNeed(group.suffix, part, conditions, unsuffixed) for part in parts)


def _conditions_of(group: RequestGroup, *, unsuffixed: bool) -> Iterator[ProviderCondition]:
    """What each provider of the group has to be."""
    required = () if unsuffixed else group.required
    if required or group.forbidden:
        yield HasTraits(required, group.forbidden)
    if group.member_of or group.forbidden_aggregates:
        yield InAggregates(group.member_of, group.forbidden_aggregates, or_root=unsuffixed)
    if group.in_tree is not None:
        yield InTree(group.in_tree)
