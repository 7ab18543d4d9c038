"""Equal groups and equal providers. Assignments are equivalent if they differ only in a swap of equal ones.

Hosts have many equal devices, and guests ask for several of them. Eight of sixteen devices can be given to
eight equal groups in 518,918,400 ways, which are all the same to the client. The search yields one of these
first, and remembers a dead end for all of them.

Counts of guests go further: if all needs of some devices ask for one amount, equal devices are a *pool*, of
which only the number of free units matters. A device may have several units, such as the virtual functions of
a network card.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from placement.read_model.provider import SHARES, Inventory, Provider
from placement.read_model.trees import ZONE
from placement.search.rules import RequestRules, available_amount

# an assignment of 8 needs has 0.5 KB, one of 64 has 4 KB, and requests of several threads search at once
MAX_REMEMBERED: Final = 100_000
"""Largest number of assignments that are remembered for one root."""


def never_pooled(traits: frozenset[str]) -> bool:
    """Return whether a provider with these traits belongs to no pool.

    Topologies distinguish NUMA nodes, and guests of other hosts take from sharing providers, too.
    """
    return not traits.isdisjoint((ZONE, SHARES))


class AssignmentKinds:
    """The kinds of needs, and of providers, at one tree: two of a kind can be swapped in any assignment.

    :param options: for each need, the providers that can serve it.
    :param pooled: whether providers are of one kind only if they form a pool, so that several guests can swap
        units of them, too.
    :param parts: numbers by provider id; providers with unlike numbers are never of one kind.
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
        # the parents of all members of the trees, because a member that is no option may be above an option.
        # A provider with children has a kind of its own, because subtree rules depend on its lineage.
        self._parents = {everyone[each].parent_id for root in roots for each in members[root]}
        kinds: dict[Hashable, int] = {}
        #: the kind of each need, by index
        self.of_needs = [
            kinds.setdefault(self._need_signature(index, options[index]), len(kinds))
            for index in range(len(options))
        ]
        kinds = {}
        self._serves = serves
        #: the kind of each provider, by id
        self.of_providers = {
            provider_id: kinds.setdefault(self._provider_signature(provider, serves[provider_id]), len(kinds))
            for provider_id, provider in providers.items()
        }
        firsts: dict[int, int] = {}
        #: by id, the provider that stands for it in assignments: itself, or one for all of a pool
        self._stand_ins = {
            provider_id: firsts.setdefault(kind, provider_id) if pooled else provider_id
            for provider_id, kind in self.of_providers.items()
        }

    @property
    def any_needs_equal(self) -> bool:
        """Whether two needs are of one kind."""
        return len({*self.of_needs}) < len(self.of_needs)

    @property
    def any_providers_equal(self) -> bool:
        """Whether two providers are of one kind."""
        return len({*self.of_providers.values()}) < len(self.of_providers)

    def list_pools(self) -> Iterator[tuple[list[int], int]]:
        """Yield the providers of each kind that has several, and the amount of a unit.

        The providers are ids in the order of the options.
        """
        by_kind: dict[int, list[int]] = {}
        for provider_id, kind in self.of_providers.items():
            by_kind.setdefault(kind, []).append(provider_id)
        for found in by_kind.values():
            if len(found) > 1:
                ((_, amount),) = self._rules.needs[self._serves[found[0]][0]].resources
                yield found, amount

    def signature_of(self, chosen: Sequence[Provider | None]) -> Hashable:
        """Return a key of an assignment: for each chosen provider its kind and the kinds of needs it serves.

        A pool counts as one provider. The search serves needs in a fixed order, so that the key also
        determines the remaining needs.
        """
        served: dict[int, list[int]] = {}
        stand_ins = self._stand_ins
        for kind, at in zip(self.of_needs, chosen, strict=True):
            if at is not None:
                served.setdefault(stand_ins[at.id], []).append(kind)
        kind_of = self.of_providers
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
        """Return a key: providers with equal keys can be swapped in any assignment.

        Equivalent providers are leaves below the same parent, or have no relatives at all.
        """
        rules = self._rules
        # its own id as the key, so that it equals no other provider
        if provider.id in self._parents or (self._pooled and not self._gives_units(provider, serves)):
            return provider.id
        # amounts above the sum of all needs make no difference, and pools count the units of all members
        contested = [
            min(available_amount(provider, name), rules.contested[name])
            for name, asking in rules.adding_up.items()
            if not self._pooled and any(index in serves for index in asking)
        ]
        return (
            provider.parent_id,
            self._parts.get(provider.id),
            tuple(serves),
            tuple(contested),
            tuple([not provider.traits.isdisjoint(traits) for traits in rules.unsuffixed_traits]),
        )

    def _gives_units(self, provider: Provider, serves: Sequence[int]) -> bool:
        """Return whether all needs of a provider ask for one amount, and any units of it can serve them."""
        asked = {self._rules.needs[index].resources for index in serves}
        if len(asked) > 1 or provider.parent_id is None:
            return False
        (resources,) = asked
        if len(resources) != 1 or never_pooled(provider.traits):
            return False
        ((name, amount),) = resources
        return provider.inventories[name].capacity < 2 * amount or self._serves_together(
            provider.inventories[name], name, serves
        )

    def _serves_together(self, inventory: Inventory, name: str, serves: Sequence[int]) -> bool:
        """Return whether one provider may serve any of its needs together, while it has free units."""
        rules = self._rules
        suffixed = [index for index in serves if not rules.needs[index].unsuffixed]
        subtrees = [{*rule} for index in serves for rule in rules.subtrees_of[index]]
        return (
            rules.nested
            and not (rules.isolate and len(suffixed) > 1)
            and inventory.max_unit >= rules.contested.get(name, 0)
            # else a rule could require one provider for needs that a pool would divide
            and not any(len(rule) > 1 and rule <= {*serves} for rule in subtrees)
        )


class RememberedAssignments:
    """Assignments of one tree, each together with all that are equivalent to it."""

    def __init__(self, kinds: AssignmentKinds) -> None:
        self.kinds = kinds
        self._known: set[Hashable] = set()

    def add(self, chosen: Sequence[Provider | None]) -> bool:
        """Remember an assignment; return whether it, and all that are equivalent, were unknown."""
        signature = self.kinds.signature_of(chosen)
        if signature in self._known:
            return False
        # beyond the limit the search is still correct, but slower
        if len(self._known) < MAX_REMEMBERED:
            self._known.add(signature)
        return True

    def __contains__(self, chosen: Sequence[Provider | None]) -> bool:
        return self.kinds.signature_of(chosen) in self._known
