"""Rules for combinations of providers in a candidate, and quick proofs that a tree has no candidate.

:mod:`placement.search.conditions` has the conditions on a single provider. The rules decide whether a
provider is allowed to serve a need, given the providers chosen for the other needs.

Without quick proofs, a search over many equivalent devices tries all combinations before it finds that none
fits. For example, 17 groups of one unit at a host with 16 devices of one unit each have 16! branches. A quick
proof can miss that a request is impossible, but never refuses a possible request.

- *Volume*: the amounts of a resource class have to fit into the free amounts of its providers. A proof counts
  only units that these amounts can use: of 5 free units, groups of 2 units each can use 4.
- *Counts*: bipartite matchings of needs with providers, where each provider can serve only a limited number
  of needs. One matching is made of the suffixed groups if each of them needs a provider of its own. For each
  class and each requested amount, another matching is made of the needs that ask for at least this amount.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from math import gcd
from types import MappingProxyType
from typing import Final

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import Options, is_keepable
from placement.search.budget import SearchBudget
from placement.search.conditions import ProviderCondition, ProviderNeed
from placement.search.request import CandidatesRequest

Taken = dict[tuple[int, str], int]
"""Amounts that a search has taken so far, by pairs of provider id and resource class."""

# the possible sums are the bits of one integer with a bit for each unit, and each need shifts this integer
# once
_MAX_UNITS: Final = 10_000
"""Maximum number of units for which sums of amounts are enumerated. Above this number, all free units count.
"""
# each set is compared with all other sets, so the time is quadratic
_MAX_SETS: Final = 8
"""Maximum number of different sets of providers that are checked one by one; with more sets, only their union
is checked.
"""

_Asked = tuple[int, Sequence[Provider]]
"""An amount, and the providers that can give this amount."""


def fits_at_all(
    needs: Sequence[ProviderNeed],
    options: Sequence[Sequence[Provider]],
    isolate: bool,
    taken: Mapping[tuple[int, str], int] = MappingProxyType({}),
    budget: SearchBudget | None = None,
) -> bool:
    """Return False if a quick proof shows that the needs cannot all get one of their providers.

    :param isolate: whether two suffixed groups must not have the same provider.
    :param taken: amounts that a search has already taken, by provider id and class.
    """
    budget = budget or SearchBudget()
    if isolate:
        suffixed = [index for index, need in enumerate(needs) if not need.unsuffixed]
        if len(suffixed) > 1 and not _match_all(
            [{at.id: 1 for at in options[index]} for index in suffixed], budget
        ):
            return False
    asked: dict[str, list[_Asked]] = {}
    for need, providers in zip(needs, options, strict=True):
        budget.spend(len(providers))
        for name, amount in need.resources:
            asked.setdefault(name, []).append((amount, providers))
    return all(
        _amounts_fit(each, _free_amounts(name, each, taken), budget)
        for name, each in asked.items()
        # a class with a single need is skipped, because this amount was checked when the options were found
        if len(each) > 1
    )


def _free_amounts(name: str, asked: Sequence[_Asked], taken: Mapping[tuple[int, str], int]) -> dict[int, int]:
    """Return the free amount of the class at each provider, by provider id."""
    free: dict[int, int] = {}
    for _, providers in asked:
        for at in providers:
            if at.id not in free:
                free[at.id] = available_amount(at, name) - taken.get((at.id, name), 0)
    return free


def available_amount(provider: Provider, name: str) -> int:
    """Return the largest amount of a resource class that one candidate can take from a provider."""
    return min(provider.inventories[name].max_unit, provider.free(name))


def _amounts_fit(asked: Sequence[_Asked], free: Mapping[int, int], budget: SearchBudget) -> bool:
    """Return False if a proof shows that providers cannot give all these amounts of one class."""
    sizes = {amount for amount, _ in asked}
    # volumes are not checked if all amounts are equal, because then the matchings below are exact
    if len(sizes) > 1 and any(
        sum(amounts) > _max_sum(amounts, volumes, budget) for amounts, volumes in _list_volumes(asked, free)
    ):
        return False
    return all(
        _match_all(
            [
                {at.id: free[at.id] // min_amount for at in providers}
                for amount, providers in asked
                if amount >= min_amount
            ],
            budget,
        )
        for min_amount in sizes
    )


def _list_volumes(
    asked: Sequence[_Asked], free: Mapping[int, int]
) -> Iterator[tuple[Sequence[int], Collection[int]]]:
    """Yield groups of amounts, each with the free amounts of all providers that can give its amounts."""
    yield [amount for amount, _ in asked], free.values()
    by_providers: dict[frozenset[int], list[int]] = {}
    for amount, providers in asked:
        by_providers.setdefault(frozenset([at.id for at in providers]), []).append(amount)
    if 1 < len(by_providers) <= _MAX_SETS:
        for together in by_providers:
            # smaller groups count, too, because amounts of a part of these providers compete for the same
            # providers
            amounts = [amount for other, each in by_providers.items() if other <= together for amount in each]
            yield amounts, [free[provider_id] for provider_id in together]


def _max_sum(amounts: Sequence[int], volumes: Collection[int], budget: SearchBudget) -> int:
    """Return an upper bound of the sum of those amounts that fit into the volumes undivided.

    Each bit of the integer ``sums`` stands for a possible sum.
    """
    budget.spend(len(amounts) + len(volumes))
    # amounts are divided by their greatest common divisor, so that large amounts, such as memory in MB, take
    # few bits
    min_amount, unit = min(amounts), gcd(*amounts)
    useful = [volume // unit for volume in volumes if volume >= min_amount]
    widest = max(useful, default=0)
    if widest > _MAX_UNITS:
        return sum(useful) * unit
    sums = 1
    for amount in amounts:
        sums |= (sums << (amount // unit)) & _low_bits(widest)
    return sum([(sums & _low_bits(units)).bit_length() - 1 for units in useful]) * unit


def _low_bits(highest: int) -> int:
    return (2 << highest) - 1


def _match_all(limits: Sequence[Mapping[int, int]], budget: SearchBudget) -> bool:
    """Return whether there is a matching that gives each need a provider.

    The matching grows along augmenting paths, found breadth first.

    :param limits: for each need a dict from the id of each provider that can serve the need to the maximum
        number of needs that this provider can serve.
    """
    served: dict[int, list[int]] = {}
    for newcomer in range(len(limits)):
        came_from: dict[int, tuple[int, int | None]] = {}
        queue: list[tuple[int, int | None]] = [(newcomer, None)]
        free: int | None = None
        for who, previous in queue:
            budget.spend(len(limits[who]))
            for provider_id, limit in limits[who].items():
                if provider_id in came_from:
                    continue
                came_from[provider_id] = (who, previous)
                here = served.setdefault(provider_id, [])
                if len(here) < limit:
                    free = provider_id
                    break
                queue.extend((other, provider_id) for other in here)
            if free is not None:
                break
        if free is None:
            return False
        # the loop goes back along the path: each need takes the next provider of the path, which frees the
        # need's previous provider
        while free is not None:
            who, previous = came_from[free]
            served[free].append(who)
            if previous is not None:
                served[previous].remove(who)
            free = previous
    return True


def subtree_tops(
    rule: Sequence[int], options: Sequence[Sequence[int]], lineages: Sequence[Sequence[int]]
) -> set[int]:
    """Return the options that can be the root of the subtree of a same_subtree rule, by position.

    :param rule: the indexes of the needs of the rule.
    :param options: for each need the positions of its options.
    :param lineages: for each position of the tree, the positions of the provider and its ancestors.
    """
    above = [set[int]().union(*[lineages[at] for at in options[index]]) for index in rule]
    # the API requires that the root of the subtree is one of the providers of the rule
    return set[int]().union(*[options[index] for index in rule]).intersection(*above)


class RequestRules:
    """The rules for combinations of providers in a candidate, and values computed once per request."""

    def __init__(
        self,
        snapshot: ModelSnapshot,
        request: CandidatesRequest,
        needs: Sequence[ProviderNeed],
        budget: SearchBudget,
    ) -> None:
        self.snapshot = snapshot
        self.needs = needs
        #: the budget of the request
        self.budget = budget
        #: whether two suffixed groups must not have the same provider
        self.isolate = request.group_policy == "isolate"
        #: whether relations of providers in a tree matter
        self.by_lineage = bool(request.same_subtrees) or not request.nested
        #: whether a candidate is allowed to combine several providers of a tree
        self.nested = request.nested
        #: the traits that the providers of the group without a suffix must have together
        self.unsuffixed_traits = next((group.required for group in request.groups if group.suffix == ""), ())
        # all needs of the group without a suffix have the same conditions in ``together``
        together = next((need.together for need in needs if need.unsuffixed), ())
        #: all conditions that decide which provider may serve a need, each once
        self.conditions: tuple[ProviderCondition, ...] = tuple(
            dict.fromkeys(
                [
                    *chain.from_iterable(need.conditions for need in needs),
                    # the code uses one condition for each piece, because different providers of the group may
                    # meet different pieces
                    *(piece for each in together for piece in each.single_pieces()),
                ]
            )
        )
        ranks = {condition: rank for rank, condition in enumerate(self.conditions)}
        #: for each need, the indexes of its conditions
        self.conditions_of = [[ranks[each] for each in need.conditions] for need in needs]
        #: for each need, its resource classes, and the amount of each
        self.names = [tuple([name for name, _ in need.resources]) for need in needs]
        self.asked = [tuple([amount for _, amount in need.resources]) for need in needs]
        bounds = snapshot.portion_bounds
        #: for each need, its resources of which some providers perhaps cannot give the amount, each with its
        #: rank in the need
        self.doubtful = [
            [
                (rank, (name, amount))
                for rank, (name, amount) in enumerate(need.resources)
                if (known := bounds(name)) is None or not known.give_verdict(amount)
            ]
            for need in needs
        ]
        #: the indexes of the needs of the group without a suffix
        self.unsuffixed = [index for index, need in enumerate(needs) if need.unsuffixed]
        subtrees = tuple(
            [
                tuple([index for index, need in enumerate(needs) if need.suffix in suffixes])
                for suffixes in request.same_subtrees
            ]
        )
        #: for each need, its amounts by class, as candidates have them
        self.amounts: list[Mapping[str, int]] = [dict(need.resources) for need in needs]
        #: for each need, the index of the first need with the same amounts and conditions, which the same
        #: providers can serve
        first: dict[Hashable, int] = {}
        self.first_alike = [first.setdefault(need.serving_terms, index) for index, need in enumerate(needs)]
        #: the indexes of the needs without an earlier need of the same amounts and conditions
        self.distinct = sorted(set(self.first_alike))
        #: whether several groups with a suffix have the same options
        self.any_alike = any(
            like < index and not needs[index].unsuffixed for index, like in enumerate(self.first_alike)
        )
        #: for each class that several needs ask for: the sum of all these amounts
        self.contested = _contested_amounts(needs)
        #: for each contested class that one provider may give to several needs: the indexes of these needs
        self.adding_up = {
            name: asking
            for name in self.contested
            if (asking := [index for index, amounts in enumerate(self.amounts) if name in amounts])
            and not (self.isolate and not any(needs[index].unsuffixed for index in asking))
        }
        #: whether every combination of options is valid, if traits of the group without a suffix are ignored
        self.independent = (
            self.nested
            and not request.same_subtrees
            and not (self.isolate and sum(not need.unsuffixed for need in needs) > 1)
            and not self.adding_up
        )
        #: whether the options of the needs alone determine the candidates of a tree
        self.by_options_alone = self.independent and not self.unsuffixed_traits
        #: the needs of each same_subtree rule
        self.subtrees = subtrees
        #: whether an assignment is valid if every two choices in it are compatible
        self.pairwise = (
            self.nested
            and not self.adding_up
            and not self.unsuffixed_traits
            and all(len(rule) <= 2 for rule in subtrees)
        )
        #: for each need, the same_subtree rules that name its group
        self.subtrees_of = [[rule for rule in subtrees if index in rule] for index in range(len(needs))]

    @cached_property
    def share_ranks(self) -> tuple[int, ...]:
        """The rank of each need, from 0, by its largest share in the sum of all needs for a contested class.

        Needs with equal shares have the same rank.
        """
        contested = self.contested
        shares = [
            max(
                [amount / contested[name] for name, amount in amounts.items() if name in contested], default=0
            )
            for amounts in self.amounts
        ]
        # ranks stand for shares, so that requests with other amounts can have the same form
        ranks = {share: rank for rank, share in enumerate(sorted({*shares}))}
        return tuple([ranks[share] for share in shares])

    @cached_property
    def pairwise_form(self) -> Hashable:
        """A key of all parts of the request that decide which assignments exist, beside the options.

        The key is None if not each rule compares two needs at a time, or if a key would take much memory.
        """
        if not self.pairwise or not is_keepable(self.subtrees):
            return None
        firsts: dict[Hashable, int] = {}
        return (
            self.isolate,
            tuple([need.unsuffixed for need in self.needs]),
            # amounts matter only by their equality, and by their ranks, which decide the order of the needs
            tuple([firsts.setdefault(need.resources, index) for index, need in enumerate(self.needs)]),
            self.share_ranks,
            self.subtrees,
        )

    def serving_needs(self, shared: Sequence[Provider]) -> list[list[int]]:
        """Return for each need the indexes of the sharing providers that can serve it, given their usage."""
        # current usage is checked here: a sharing provider serves several hosts, so its free amount is not in
        # the key of a tree
        self.budget.spend(len(shared) * len(self.distinct))
        serving = {
            index: [at for at, each in enumerate(shared) if self.needs[index].served_by(each, self.snapshot)]
            for index in self.distinct
        }
        return [serving[like] for like in self.first_alike]

    def within_reach(self, options: Options, lineages: Sequence[Sequence[int]]) -> Options | None:
        """Return the options that each same_subtree rule allows together with some option of its other needs.

        The result is None if a need has no option left. The root of the subtree has to be an option of one of
        these needs.
        """
        left = [*options]
        for rule in self.subtrees:
            if any(left[index][-1] >= len(lineages) for index in rule):
                continue  # the ancestors of sharing providers are in other trees
            self.budget.spend(sum([len(left[index]) for index in rule]))
            tops = subtree_tops(rule, left, lineages)
            if not tops:
                return None
            for index in rule:
                left[index] = tuple([at for at in left[index] if not tops.isdisjoint(lineages[at])])
        return tuple(left)

    def traits_settled(self, options: Sequence[Sequence[Provider]]) -> bool | None:
        """Return whether the providers of the group without a suffix have the group's required traits.

        The result is True or False if it holds for each choice of providers, and None if it depends on the
        choice.
        """
        settled: bool | None = True
        for traits in self.unsuffixed_traits:
            self.budget.spend(sum([len(options[index]) for index in self.unsuffixed]))
            had = [[not at.traits.isdisjoint(traits) for at in options[index]] for index in self.unsuffixed]
            if not any(map(any, had)):
                return False
            if not any(map(all, had)):
                settled = None
        return settled


class NeedAssignment:
    """The providers chosen so far for some of the needs, out of the options at a tree."""

    def __init__(self, rules: RequestRules, options: Sequence[Sequence[Provider]]) -> None:
        self.rules = rules
        self.options = options
        self.chosen: list[Provider | None] = [None] * len(options)
        #: amounts that the chosen providers give, by provider id and resource class
        self.taken: Taken = {}
        #: by provider id: the number of suffixed groups that it serves
        self._groups_at: dict[int, int] = {}
        self._lineages: dict[int, frozenset[int]] = {}
        #: for each need, the ids of its options
        self._ids = [frozenset([at.id for at in found]) for found in options] if rules.by_lineage else []
        #: maximum number of steps of one check: rules on several needs read the options of all these needs
        max_rules = len(rules.unsuffixed_traits) + max(map(len, rules.subtrees_of), default=0)
        self.steps = 1 + max_rules * sum(map(len, options))

    def take_provider(self, index: int, provider: Provider) -> None:
        """Choose the provider for the need with this index."""
        self.chosen[index] = provider
        need = self.rules.needs[index]
        if not need.unsuffixed:
            self._groups_at[provider.id] = self._groups_at.get(provider.id, 0) + 1
        for name, amount in need.resources:
            key = (provider.id, name)
            self.taken[key] = self.taken.get(key, 0) + amount

    def release(self, index: int) -> None:
        """Undo :meth:`take_provider` if it was called for this need."""
        provider = self.chosen[index]
        if provider is not None:
            self.chosen[index] = None
            need = self.rules.needs[index]
            if not need.unsuffixed:
                self._groups_at[provider.id] -= 1
            for name, amount in need.resources:
                self.taken[provider.id, name] -= amount

    def allows_provider(self, index: int, provider: Provider) -> bool:
        """Return whether a provider may serve a need, given the providers already chosen for other needs."""
        rules = self.rules
        need = rules.needs[index]
        for name, amount in need.resources:
            before = self.taken.get((provider.id, name), 0)
            if before and not _accepts_sum(provider, name, before + amount):
                return False
        if rules.isolate and not need.unsuffixed and self._groups_at.get(provider.id):
            return False
        if not rules.nested and self._has_a_relative(provider):
            return False
        if need.unsuffixed and not self._traits_in_reach(index, provider):
            return False
        return all(self._subtree_in_reach(rule, index, provider) for rule in rules.subtrees_of[index])

    def can_complete(self, rest: Sequence[int]) -> bool:
        """Return False if a need in ``rest`` has no option, or a quick proof shows that not all can fit."""
        left: list[list[Provider]] = []
        for index in rest:
            self.rules.budget.spend(self.steps * len(self.options[index]))
            left.append([at for at in self.options[index] if self.allows_provider(index, at)])
            if not left[-1]:
                return False
        needs = [self.rules.needs[index] for index in rest]
        return fits_at_all(needs, left, self.rules.isolate, self.taken, self.rules.budget)

    def _has_a_relative(self, provider: Provider) -> bool:
        return any(
            at is not None and at.root_id == provider.root_id and at.id != provider.id for at in self.chosen
        )

    def _traits_in_reach(self, index: int, provider: Provider) -> bool:
        """Return whether the chosen and possible providers of the group have each required trait."""
        others = [other for other, need in enumerate(self.rules.needs) if need.unsuffixed and other != index]
        return all(
            not provider.traits.isdisjoint(traits)
            or any(
                not at.traits.isdisjoint(traits) for other in others for at in self._possible_providers(other)
            )
            for traits in self.rules.unsuffixed_traits
        )

    def _subtree_in_reach(self, rule: Sequence[int], index: int, provider: Provider) -> bool:
        """Return whether one provider of the rule can be the root of a subtree with all other providers."""
        above = self._lineage_of(provider)
        open_ones, chosen = [], [provider.id]
        for other in rule:
            if other != index:
                at = self.chosen[other]
                if at is None:
                    open_ones.append(other)
                else:
                    above &= self._lineage_of(at)
                    chosen.append(at.id)
        self.rules.budget.spend(sum([len(self.options[other]) for other in open_ones]))
        if not above.isdisjoint(chosen):
            return True
        return not all(above.isdisjoint(self._ids[other]) for other in open_ones)

    def _possible_providers(self, index: int) -> Sequence[Provider]:
        """Return the provider chosen for a need, or all options of the need if none is chosen."""
        at = self.chosen[index]
        return self.options[index] if at is None else (at,)

    def _lineage_of(self, provider: Provider) -> frozenset[int]:
        """Return the ids of the provider and all its ancestors."""
        known = self._lineages.get(provider.id)
        if known is None:
            lineage = self.rules.snapshot.lineage_of(provider)
            known = self._lineages[provider.id] = frozenset([each.id for each in lineage])
        return known


def _contested_amounts(needs: Iterable[ProviderNeed]) -> dict[str, int]:
    amounts: dict[str, list[int]] = {}
    for need in needs:
        for name, amount in need.resources:
            amounts.setdefault(name, []).append(amount)
    return {name: sum(asked) for name, asked in amounts.items() if len(asked) > 1}


def _accepts_sum(provider: Provider, name: str, total: int) -> bool:
    """Return whether a provider can give the sum of the amounts of several groups."""
    inventory = provider.inventories[name]
    return total <= inventory.max_unit and provider.used.get(name, 0) + total <= inventory.capacity
