"""Recognises equal groups of a request and equal providers, so that the search tries equivalent choices once.

Hosts have many equal devices, and guests ask for several of these devices. There are 518,918,400 ways to give
eight of sixteen devices to eight equal groups, but the client sees no difference between these ways. The
search yields one of these ways before all other ways. The search remembers a dead end for all equivalent
assignments.

Devices form a *pool* if all needs that they serve ask for the same amount, the unit. Only the number of free
units in a pool matters. A device can have several units: for example, virtual functions of a network card.
The planner, which computes how many guests fit, uses pools of equal devices. The search for candidates serves
one guest, so the devices of its pools can have different free amounts (:attr:`AssignmentKinds.in_pools`).
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Final

from placement.read_model.provider import SHARES, Provider
from placement.read_model.trees import ZONE
from placement.search.rules import RequestRules, available_amount

# an assignment of 8 needs takes 0.5 KB, an assignment of 64 needs 4 KB, and several threads may search at
# once
MAX_REMEMBERED: Final = 100_000
"""Maximum number of assignments that a search remembers for one root."""


def never_pooled(traits: frozenset[str]) -> bool:
    """Return whether these traits, of NUMA nodes and of sharing providers, exclude a provider from pools."""
    return not traits.isdisjoint((ZONE, SHARES))


class AssignmentKinds:
    """Divides the needs into kinds of equal needs, and the providers of a tree into kinds of equal providers.

    Two needs of one kind, or two providers of one kind, can be swapped.

    :param options: for each need, the providers that can serve it.
    :param pooled: whether only the providers of a pool are of one kind. Then several guests can swap units of
        these providers.
    :param parts: numbers by provider id; providers with different numbers are never of one kind.
    """

    def __init__(
        self,
        rules: RequestRules,
        options: Sequence[Sequence[Provider]],
        *,
        pooled: bool = False,
        parts: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self._rules = rules
        self._pooled = pooled
        self._parts = parts
        serves: dict[int, list[int]] = {}
        providers: dict[int, Provider] = {}
        for index, found in enumerate(options):
            for provider in found:
                providers[provider.id] = provider
                serves.setdefault(provider.id, []).append(index)
        members = rules.snapshot.trees
        everyone = rules.snapshot.providers
        roots = {provider.root_id for provider in providers.values()}
        # the parents of all members, not only of options, because the child of an option may be no option
        # itself. A provider with children has a kind of its own, because same_subtree rules depend on
        # lineages.
        self._parents = {everyone[each].parent_id for root in roots for each in members[root]}
        kinds: dict[Hashable, int] = {}
        #: the kind of each need, by index
        self.of_needs = [
            kinds.setdefault(self._need_signature(index, options[index]), len(kinds))
            for index in range(len(options))
        ]
        kinds = {}
        self._serves = serves
        self._providers = providers
        #: the kind of each provider, by id
        self.of_providers = {
            provider_id: kinds.setdefault(self._provider_signature(provider, serves[provider_id]), len(kinds))
            for provider_id, provider in providers.items()
        }
        firsts: dict[int, int] = {}
        #: for each provider id, the id that keys use: its own id, or the id of one member for a whole pool
        self._stand_ins = {
            provider_id: firsts.setdefault(kind, provider_id) if pooled else provider_id
            for provider_id, kind in self.of_providers.items()
        }

    @property
    def any_needs_equal(self) -> bool:
        """Whether at least two needs are of one kind."""
        return len({*self.of_needs}) < len(self.of_needs)

    @property
    def any_providers_equal(self) -> bool:
        """Whether at least two providers are of one kind."""
        return len({*self.of_providers.values()}) < len(self.of_providers)

    def list_pools(self) -> Iterator[tuple[list[int], int]]:
        """Yield each pool's ids of providers, in the order of the options, and the amount of one unit."""
        by_kind: dict[int, list[int]] = {}
        for provider_id, kind in self.of_providers.items():
            by_kind.setdefault(kind, []).append(provider_id)
        for found in by_kind.values():
            if len(found) > 1:
                ((_, amount),) = self._rules.needs[self._serves[found[0]][0]].resources
                yield found, amount

    @cached_property
    def in_pools(self) -> AssignmentKinds | None:
        """The kinds with pools for a single guest; None if pools make no further assignments equivalent.

        The number of units of a provider follows from its free amount and its ``max_unit``. Any provider with
        a unit left can serve the next need, and each need takes one unit. So whether the remaining needs can
        be served depends on the number of units taken, not on the devices.
        """
        # if no provider may give a class to several needs, free amounts do not distinguish kinds, and pools
        # would join nothing
        if not self._rules.adding_up:
            return None
        members: dict[int, list[Provider]] = {}
        for provider_id, kind in self.of_providers.items():
            members.setdefault(kind, []).append(self._providers[provider_id])
        pools: dict[Hashable, list[int]] = {}
        others = False
        for kind, found in members.items():
            units = self._units_for_one(found)
            if units:
                # a pool of devices with one unit each has no effect, because devices of one kind are equal
                # already
                others = others or (units > 1 and len(found) > 1)
                pools.setdefault(self._features_of(found[0], self._serves[found[0].id]), []).append(kind)
        if not others and all(len(kinds) == 1 for kinds in pools.values()):
            return None
        merged = {kind: kinds[0] for kinds in pools.values() for kind in kinds}
        firsts: dict[int, int] = {}
        pooled = copy.copy(self)
        pooled.of_providers = {each: merged.get(kind, kind) for each, kind in self.of_providers.items()}
        pooled._stand_ins = {
            each: firsts.setdefault(kind, each) if kind in merged else each
            for each, kind in pooled.of_providers.items()
        }
        return pooled

    def signature_of(self, chosen: Sequence[Provider | None]) -> Hashable:
        """Return a key of an assignment: the kinds of chosen providers, with the kinds of their needs.

        A pool counts as one provider. The search handles needs in a fixed order, so the key also determines
        the remaining needs.
        """
        stand_ins, kind_of = self._stand_ins, self.of_providers
        pairs = [
            (stand_ins[at.id], kind) for kind, at in zip(self.of_needs, chosen, strict=True) if at is not None
        ]
        # mostly each provider serves one need; then the lists below are unnecessary
        if len(dict(pairs)) == len(pairs):
            return tuple(sorted([(kind_of[at], kind) for at, kind in pairs]))
        served: dict[int, list[int]] = {}
        for provider_id, kind in pairs:
            served.setdefault(provider_id, []).append(kind)
        return tuple(sorted([(kind_of[at], *sorted(those)) for at, those in served.items()]))

    def _need_signature(self, index: int, options: Sequence[Provider]) -> Hashable:
        need = self._rules.needs[index]
        return (
            need.resources,
            need.unsuffixed,
            tuple([provider.id for provider in options]),
            tuple([tuple(rule) for rule in self._rules.subtrees_of[index]]),
        )

    def _provider_signature(self, provider: Provider, serves: Sequence[int]) -> Hashable:
        """Return a key of a provider; providers with equal keys can be swapped.

        Such providers are leaves below the same parent, or have neither a parent nor children.
        """
        rules = self._rules
        # this is a key with the provider's own id, so that this provider is equal to no other
        if provider.id in self._parents or (self._pooled and not self._gives_units(provider, serves)):
            return provider.id
        # the amount is limited to the sum of all needs, because a larger free amount makes no difference.
        # Pools ignore free amounts here, and count units instead
        contested = [
            min(available_amount(provider, name), rules.contested[name])
            for name, asking in rules.adding_up.items()
            if not self._pooled and any(index in serves for index in asking)
        ]
        return (*self._features_of(provider, serves), tuple(contested))

    def _features_of(self, provider: Provider, serves: Sequence[int]) -> tuple[Hashable, ...]:
        """Return a key of all properties that distinguish providers, except free amounts."""
        return (
            provider.parent_id,
            self._parts.get(provider.id),
            tuple(serves),
            tuple([not provider.traits.isdisjoint(traits) for traits in self._rules.unsuffixed_traits]),
            # a claim can prefer choices with few NUMA nodes, so NUMA nodes differ from other providers
            never_pooled(provider.traits),
        )

    def _unit_of(self, provider: Provider, serves: Sequence[int]) -> tuple[str, int] | None:
        """Return the class and the amount for which all needs of a provider ask; None if the needs differ."""
        asked = {self._rules.needs[index].resources for index in serves}
        if len(asked) > 1 or provider.parent_id is None:
            return None
        (resources,) = asked
        if len(resources) != 1 or never_pooled(provider.traits):
            return None
        return resources[0]

    def _gives_units(self, provider: Provider, serves: Sequence[int]) -> bool:
        """Return whether any unit of the provider can serve any of its needs, for any number of guests."""
        unit = self._unit_of(provider, serves)
        if unit is None:
            return False
        name, amount = unit
        inventory = provider.inventories[name]
        return inventory.capacity < 2 * amount or (
            inventory.max_unit >= self._rules.contested.get(name, 0) and self._serves_together(serves)
        )

    def _units_for_one(self, found: Sequence[Provider]) -> int:
        """Return how many needs one of the ``found`` providers of a kind can serve; 0 without a pool."""
        serves = self._serves[found[0].id]
        unit = self._unit_of(found[0], serves)
        # in the last case the providers form no pool, because free amounts of such a class may differ within
        # a kind
        if unit is None or found[0].id in self._parents or unit[0] not in self._rules.adding_up:
            return 0
        name, amount = unit
        units = min(available_amount(found[0], name), self._rules.contested[name]) // amount
        return units if units == 1 or self._serves_together(serves) else 0

    def _serves_together(self, serves: Sequence[int]) -> bool:
        """Return whether the provider can serve any combination of these needs while it has free units."""
        rules = self._rules
        suffixed = [index for index in serves if not rules.needs[index].unsuffixed]
        subtrees = [{*rule} for index in serves for rule in rules.subtrees_of[index]]
        return (
            rules.nested
            and not (rules.isolate and len(suffixed) > 1)
            # the providers form no pool, because a same_subtree rule could require one provider for several
            # needs
            and not any(len(rule) > 1 and rule <= {*serves} for rule in subtrees)
        )


class RememberedAssignments:
    """A set of assignments that were tried at one tree; each stands for all equivalent assignments."""

    def __init__(self, kinds: AssignmentKinds) -> None:
        self.kinds = kinds
        self._known: set[Hashable] = set()

    def add(self, chosen: Sequence[Provider | None]) -> bool:
        """Remember an assignment; return True if no equivalent assignment was remembered earlier."""
        signature = self.kinds.signature_of(chosen)
        if signature in self._known:
            return False
        # above the limit nothing is remembered: the search stays correct, but becomes slower
        if len(self._known) < MAX_REMEMBERED:
            self._known.add(signature)
        return True

    def __contains__(self, chosen: Sequence[Provider | None]) -> bool:
        return self.kinds.signature_of(chosen) in self._known
