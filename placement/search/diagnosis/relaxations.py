"""Finds relaxations: minimal sets of clauses to leave out or to reduce, so that a request fits."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from heapq import merge
from itertools import chain, count, islice, product, repeat
from math import gcd
from operator import itemgetter
from typing import Final, Self

from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree
from placement.search.budget import SearchBudget
from placement.search.candidate_search import CandidateSearch
from placement.search.diagnosis.clauses import (
    RequestClause,
    droppable_clauses,
    resource_clause,
    without_clauses,
)
from placement.search.diagnosis.survey import (
    Bits,
    FilterResult,
    HostDiagnosis,
    LikeHosts,
    UnmetFilters,
    minimal_sets,
)
from placement.search.equivalence import LikeTrees, TreeKin, regroup_trees
from placement.search.request import CandidatesRequest
from placement.search.rules import available_amount

# the number of sets of clauses grows exponentially with this number, and operators have to understand the
# changes
MAX_CHANGES: Final = 3
"""Maximum number of clauses that one relaxation changes."""
MAX_RELAXATIONS: Final = 10
"""Maximum number of relaxations; relaxations with the fewest changes come first."""

# the limit is low, because most providers have the same smallest amount
_MAX_SMALLEST: Final = 3
"""Maximum number of smallest amounts of a class that are tried."""


@dataclass(frozen=True, slots=True)
class RequestRelaxation:
    """A minimal set of changes after which a request fits, with the number of hosts on which it then fits.

    ``left_out`` has the clauses to leave out. ``amounts`` maps clauses of resources to reduced amounts:
    the largest amounts that fit after the other changes.
    """

    left_out: tuple[RequestClause, ...]
    amounts: tuple[RequestClause, ...]
    hosts: int

    @classmethod
    def from_changes(
        cls, left_out: Iterable[RequestClause], amounts: Mapping[RequestClause, int], hosts: int
    ) -> Self:
        """Return the relaxation that leaves out some clauses and reduces the amounts of others."""
        changed = [replace(clause, amount=amount) for clause, amount in amounts.items()]
        return cls(tuple(left_out), tuple(changed), hosts)

    def changed_request(self, request: CandidatesRequest) -> CandidatesRequest | None:
        """Return the request after the changes of this relaxation.

        The result is None if no resources are left to ask for.
        """
        amounts = {resource_clause(each.group, each.names[0]): each.amount or 0 for each in self.amounts}
        return without_clauses(request, self.left_out, amounts)


_Bound = tuple[int, HostTree, LikeHosts]
"""A tree, its host, and the largest amount that one provider can give."""
_FEW_SHARE: Final = 1 / 16
"""If the hosts that are tried are at most this share of all trees, these hosts are sorted. Otherwise an index
of all trees is read, and other hosts are skipped.
"""


class RelaxationSearch:
    """Finds changes of a request that fits nowhere: clauses to leave out, and smaller amounts."""

    def __init__(self, found: HostDiagnosis, budget: SearchBudget) -> None:
        self._found = found
        self._budget = budget
        # hosts are grouped by the sets of clauses that they fail, because thousands of hosts fail the same
        # few sets
        self._by_missing: dict[UnmetFilters, list[LikeHosts]] = {}
        for host in found.hosts:
            self._by_missing.setdefault(host.unmet, []).append(host)
        # the amounts are cached, because each changed amount is searched among the same amounts
        self._smallest_of: dict[str, list[int]] = {}
        self._asked = asked_amounts(found.request)

    def find_relaxations(self) -> Iterator[RequestRelaxation]:
        """Yield the minimal sets of changes after which the request fits.

        The unchanged request must fit nowhere.

        :raises placement.search.budget.BudgetExhausted: the search for the next set takes too long.
        """
        found: list[Bits] = []
        levels: list[set[Bits]] = [set() for _ in range(MAX_CHANGES + 1)]
        for bits in self._needed_sets():
            levels[bits.bit_count()].add(bits)
        for size, level in enumerate(levels):
            # the sets are sorted, because a set has no fixed order, and the answer must not depend on it
            for bits in sorted(level):
                self._budget.spend()
                # the set is skipped if it contains another helpful set, because then it is not minimal
                if any(other & ~bits == 0 for other in found):
                    continue
                start = next(self._find_ways(bits), None)
                if start is not None:
                    found.append(bits)
                    yield self._weaken_least(bits, start)
                    if len(found) == MAX_RELAXATIONS:
                        return
                elif size < MAX_CHANGES:
                    # larger sets are tried, too: a rule between parts may be the obstacle, which checks of
                    # single providers do not show
                    every = (1 << at for at in range(len(self._found.droppable)))
                    levels[size + 1].update(bits | one for one in every if not bits & one)

    def largest_amount(self, clause: RequestClause) -> int | None:
        """Return the largest amount of a resource class that fits if nothing else changes.

        :param clause: the clause of the request that asks for the resource class.
        :raises placement.search.budget.BudgetExhausted: the search takes too long.
        """
        # the search has no upper bound, because more than the requested amount may fit
        return self._largest_amount(clause, frozenset(), {})

    def _needed_sets(self) -> frozenset[Bits]:
        """Return minimal sets of clauses.

        The request fits on a host only if all clauses of one of these sets change.
        """
        found: set[Bits] = set()
        for missing in self._by_missing:
            # each set has the clauses on the root, and one alternative of each part
            sets = {missing.root}
            for options in (*missing.options, *missing.traits):
                self._budget.spend(len(sets) * len(options))
                either = {one | other for one in sets for other in options}
                # non-minimal sets are dropped at each part, because otherwise the number of sets would double
                # with each part
                sets = set(minimal_sets(each for each in either if each.bit_count() <= MAX_CHANGES))
            found |= sets
        return minimal_sets(found)

    def _find_ways(self, bits: Bits) -> Iterator[Mapping[RequestClause, int]]:
        """Yield the ways to change exactly these clauses so that the request fits, each as a dict of amounts.

        A clause without an amount can only be left out. Only the smallest amounts of each class are tried,
        because larger amounts do not fit if these do not.
        """
        changed = self._found.clauses_of(bits)
        asked = [clause for clause in changed if clause in self._asked]
        # The value None stands for leaving out the clause. It comes first, because the caller later tries to
        # replace it by the largest amount that fits
        for choice in product(*((None, *self._smallest_amounts(clause)) for clause in asked)):
            amounts = {
                clause: amount for clause, amount in zip(asked, choice, strict=True) if amount is not None
            }
            # each choice costs a search over all hosts that may still fit
            self._budget.spend()
            if any(self._fitting_counts(bits, [each for each in changed if each not in amounts], amounts)):
                yield amounts

    def _smallest_amounts(self, clause: RequestClause) -> list[int]:
        """Return the smallest amounts of a class that providers can give, below the requested amount."""
        name = clause.names[0]
        # the amounts are cached, because each set of clauses with this class needs them
        bounds = self._found.snapshot.portion_bounds(name)
        if name not in self._smallest_of and bounds is not None and bounds.common_unit is not None:
            # mostly all providers of the cloud have one min_unit and one step size
            self._smallest_of[name] = [smallest_amount(*bounds.common_unit)]
        elif name not in self._smallest_of:
            # the loop is over structures instead of trees, because thousands of trees have the same structure
            shapes = {tree.shape for host in self._found.hosts for tree in host.alike.member_trees}
            self._budget.spend(1 + len(shapes) // 4)
            shared = {each.id: each for host in self._found.hosts for each in host.alike.kin.shared}
            inventories = chain(
                (shape.portions[slot] for shape in shapes for _, slot in shape.having.get(name, ())),
                (each.inventories[name] for each in shared.values() if name in each.inventories),
            )
            units = {(each.min_unit, each.step_size) for each in inventories}
            self._smallest_of[name] = sorted({smallest_amount(*each) for each in units})
        return [each for each in self._smallest_of[name] if each < self._asked[clause]][:_MAX_SMALLEST]

    def _fitting_counts(
        self, bits: Bits, left_out: Iterable[RequestClause], amounts: Mapping[RequestClause, int]
    ) -> Iterator[int]:
        """Yield the sizes of the groups of equivalent hosts that serve the request after these changes.

        :param bits: the changed clauses, as a set of bits.
        """
        # the code uses one check function for all hosts, so that the changed request is compiled once
        request = without_clauses(self._found.request, frozenset(left_out), amounts)
        if request is None:
            return
        tell = CandidateSearch(self._found.snapshot, request, self._budget).serves_tree
        groups: Iterable[LikeTrees] = [
            host.alike for host in self._able_hosts(bits, self._found.clause_bits(amounts))
        ]
        # with changed amounts, hosts of one group may no longer be equivalent
        if amounts:
            groups = regroup_trees(self._found.snapshot, request, groups, self._budget)
        for alike in groups:
            if tell(alike.first_tree, alike.kin.shared):
                yield len(alike.rows)

    def _able_hosts(self, changed: Bits, lessened: Bits) -> Iterator[LikeHosts]:
        """Yield the hosts that possibly serve the request after these clauses have changed.

        :param lessened: the changed clauses that ask for a smaller amount; the other changed clauses are
            removed.
        """
        for missing, hosts in self._by_missing.items():
            self._budget.spend()
            # a test of bits excludes most hosts without a search, because they also fail other clauses
            if missing.is_met(changed, lessened):
                yield from hosts

    def _weaken_least(self, bits: Bits, start: Mapping[RequestClause, int]) -> RequestRelaxation:
        """Return the relaxation that changes these clauses, with the largest amounts that fit."""
        amounts = dict(start)
        left_out = dict.fromkeys(each for each in self._found.clauses_of(bits) if each not in amounts)
        # amounts are enlarged one after another, because each one has to fit beside the amounts enlarged
        # before
        for clause in self._found.clauses_of(bits):
            if clause in self._asked:
                others = {each: amount for each, amount in amounts.items() if each != clause}
                rest = left_out.keys() - {clause}
                amount = self._largest_amount(clause, rest, others, self._asked[clause] - 1)
                if amount is not None:
                    amounts[clause] = amount
                    left_out.pop(clause, None)
        return RequestRelaxation.from_changes(
            left_out, amounts, sum(self._fitting_counts(bits, left_out, amounts))
        )

    def _largest_amount(
        self,
        clause: RequestClause,
        left_out: Iterable[RequestClause],
        amounts: Mapping[RequestClause, int],
        most: int | None = None,
    ) -> int | None:
        """Return the largest amount, up to ``most``, with which the request fits; None if no amount fits.

        The search tries hosts in the order of the largest amount that each host could give.
        """
        # clauses with reduced amounts are passed separately, because the traits of their groups are still
        # required
        lessened = self._found.clause_bits([clause, *amounts])
        bits = lessened | self._found.clause_bits(left_out)
        without = frozenset(left_out)

        @cache
        def search_for(amount: int) -> CandidateSearch | None:
            # each amount has a search, so that each changed request is compiled once for all hosts
            request = without_clauses(self._found.request, without, {**amounts, clause: amount})
            if request is None:
                return None
            return CandidateSearch(self._found.snapshot, request, self._budget)

        def amount_fits(amount: int, tree: HostTree, alike: LikeTrees) -> bool:
            search = search_for(amount)
            return search is not None and search.serves_tree(tree, alike.kin.shared)

        name = clause.names[0]
        # only hosts that fail no other clauses are tried
        able, could_give = dict.fromkeys(self._able_hosts(bits, lessened)), dict[TreeKin, bool]()
        best = 0
        for bound, tree, host in self._most_first(name, able):
            # the loop ends here, because no later host can give more
            if (bound if most is None else min(bound, most)) <= best:
                break
            self._budget.spend()
            # the positions are cached for all hosts of a kin, because they do not depend on free amounts
            kin = host.alike.kin
            if kin not in could_give:
                could_give[kin] = bool(self._could_give(clause, host.alike, bits))
            if could_give[kin]:
                portions = self._given_portions(clause, tree, host.alike, most, bits)
                best = _largest_fitting(portions, partial(amount_fits, tree=tree, alike=host.alike), best)
        return best or None

    @cached_property
    def _host_by_root(self) -> Mapping[int, LikeHosts]:
        # the dict is made in C, because it has each tree of the cloud
        hosts = self._found.hosts
        roots = chain.from_iterable([host.alike.roots for host in hosts])
        return dict(
            zip(roots, chain.from_iterable([repeat(host, host.host_count) for host in hosts]), strict=True)
        )

    def _most_first(self, name: str, able: Collection[LikeHosts]) -> Iterator[_Bound]:
        """Yield the trees of these hosts, with the largest amount of a class that one provider can give.

        The largest amounts come first. A tree comes a second time for its sharing providers.
        """
        trees = self._found.snapshot.whole_trees()
        self._budget.spend(1 + len(trees) // 64)
        own: Iterator[_Bound]
        # if only few hosts are tried, the index has mostly other hosts
        if sum([host.host_count for host in able]) < _FEW_SHARE * len(trees):
            amounts = [
                (tree.max_free.get(name, 0), tree, host) for host in able for tree in host.alike.member_trees
            ]
            own = iter(sorted(amounts, key=itemgetter(0), reverse=True))
        else:
            of_root, index = self._host_by_root, self._found.snapshot.free_index(name)
            own = (
                (amount, trees[root], of_root[root])
                for amount, root in index.descending_rows()
                if of_root.get(root) in able
            )
        # the index has only the providers of each tree, so amounts of sharing providers are added for the
        # hosts that they serve; all hosts of a kin have the same sharing providers
        most_of = {
            kin: max([available_amount(each, name) for each in kin.shared if name in each.inventories])
            for kin in {host.alike.kin for host in able}
            if any(name in each.inventories for each in kin.shared)
        }
        serving = sorted(
            [host for host in able if host.alike.kin in most_of], key=lambda host: -most_of[host.alike.kin]
        )
        shared = (
            (most_of[host.alike.kin], tree, host) for host in serving for tree in host.alike.member_trees
        )
        return merge(own, shared, key=itemgetter(0), reverse=True)

    def _could_give(self, clause: RequestClause, alike: LikeTrees, bits: Bits) -> list[int]:
        """Return the positions of those providers with the class that fail no clauses other than ``bits``."""
        name = clause.names[0]
        number = next(
            number
            for number, part in enumerate(self._found.parts)
            if part.need.suffix == clause.group and name in part.capacities
        )
        bare, giving = self._found.standings[alike.kin][number]
        kin, own, slots = alike.kin, alike.kin.own_count, alike.kin.tree_places.slots
        found = [at for at, each in giving if (at, name) in slots and _is_spared(each, bits)]
        for each, positions, _ in bare if alike.kin.shared else ():
            if _is_spared(each, bits):
                found += [at for at in positions if at >= own and name in kin.shared[at - own].inventories]
        return sorted(found)

    def _given_portions(
        self, clause: RequestClause, tree: HostTree, alike: LikeTrees, most: int | None, bits: Bits
    ) -> Iterator[tuple[int, int, int]]:
        """Yield for providers of a tree the least and the largest amount of a class, and the step size."""
        name = clause.names[0]
        providers = alike.kin.providers(tree)
        # the positions are the same for all trees of the kin, but the free amounts differ, so these are read
        # from this tree
        for at in self._could_give(clause, alike, bits):
            provider = providers[at]
            inventory = provider.inventories[name]
            at_once = available_amount(provider, name)
            highest = at_once if most is None else min(at_once, most)
            # the amount has to be a multiple of the step
            highest -= highest % inventory.step_size
            lowest = smallest_amount(inventory.min_unit, inventory.step_size)
            if highest >= lowest:
                yield lowest, highest, inventory.step_size


def _largest_fitting(portions: Iterable[tuple[int, int, int]], fits: Callable[[int], bool], best: int) -> int:
    """Return the largest amount above ``best`` that fits, or ``best`` if there is none.

    :param portions: for providers of a tree the least and the largest amount, and the step size.
    """
    for lowest, highest, step in sorted(set(portions), key=lambda each: -each[1]):
        if highest <= best:
            break
        # Bisection is safe, because each smaller amount fits at the same provider, too. It does no harm
        # if a smaller amount also fits at another provider.
        least = max(lowest, (best // step + 1) * step)
        if least > highest or not fits(least):
            continue
        if fits(highest):
            best = highest
            continue
        best = largest_multiple(fits, step, least // step, highest // step)
    return best


def asked_amounts(request: CandidatesRequest) -> dict[RequestClause, int]:
    """Return a dict from each clause that asks for a resource to the requested amount."""
    return {
        resource_clause(group.suffix, name): amount
        for group in request.groups
        for name, amount in group.resources.items()
    }


def largest_multiple(fits: Callable[[int], bool], step: int, below: int, above: int) -> int:
    """Return the largest multiple of a step that fits, by bisection.

    :param below: a number of steps that is known to fit.
    :param above: a number of steps that is known not to fit.
    """
    while above - below > 1:
        middle = (below + above) // 2
        if fits(middle * step):
            below = middle
        else:
            above = middle
    return below * step


# multiples are tried, because the least amount may be too small to be divided over zones
_STARTS: Final = (1, 2, 4)
"""Multiples of the least amount at which the bisection begins."""
# the limit is low, because most providers have the same step
_MAX_STEPS: Final = 3
"""Maximum number of different step sizes of inventories with which amounts are tried."""

_MAX_AMOUNTS: Final = 24
"""Maximum number of amounts that are searched one by one, largest first, before bisection."""
_MAX_OTHERS: Final = 4
"""Maximum number of other groups; their amounts are subtracted from full amounts to get likely amounts."""

FullAmounts = Callable[[RequestClause], Iterable[int]]
"""A function that returns amounts of a clause that use up some providers; mostly the largest fitting amount
is one of them.
"""
HostsServing = Callable[[CandidatesRequest], Iterator[int]]
"""A function that yields the root of each host that serves a changed request, when the host is found."""


class TriedRelaxations:
    """Changes of one clause each, for requests where only an attempt to place them shows whether a host fits.

    :class:`RelaxationSearch` knows which clauses each host fails, and so tries few changes. If amounts are
    divided over zones, or if the groups of consumers decide about hosts, checks of single providers do not
    show which clauses fail. So this class tries each change by placing the changed request.
    """

    def __init__(
        self,
        snapshot: ModelSnapshot,
        request: CandidatesRequest,
        serving: HostsServing,
        full_amounts: FullAmounts,
        budget: SearchBudget,
    ) -> None:
        self._snapshot = snapshot
        self._request = request
        self._serving = serving
        self._full_amounts = full_amounts
        self._budget = budget

    def find_changes(self) -> Iterator[RequestRelaxation]:
        """Yield the changes that help, each when it is found, in the order of the clauses.

        :raises placement.search.budget.BudgetExhausted: the search for the next change takes too long.
        """
        asked, found = asked_amounts(self._request), 0
        for clause in droppable_clauses(self._snapshot, self._request):
            relaxation = None
            if clause in asked:
                largest = self._largest_amount(clause, asked[clause])
                if largest:
                    relaxation = self.try_change(RequestRelaxation.from_changes((), {clause: largest}, 0))
            relaxation = relaxation or self.try_change(RequestRelaxation((clause,), (), 0))
            if relaxation is not None:
                yield relaxation
                found += 1
                if found == MAX_RELAXATIONS:
                    return

    def try_change(self, change: RequestRelaxation) -> RequestRelaxation | None:
        """Return the change with the number of hosts that then serve the request; None if no host does."""
        changed = change.changed_request(self._request)
        hosts = 0 if changed is None else sum(1 for _ in self._serving(changed))
        return replace(change, hosts=hosts) if hosts else None

    def _largest_amount(self, clause: RequestClause, asked: int) -> int:
        """Return the largest amount of a class that fits, below the requested amount; 0 if no amount fits."""

        def amount_fits(amount: int) -> bool:
            changed = without_clauses(self._request, (), {clause: amount})
            return changed is not None and next(self._serving(changed), None) is not None

        # amounts are sorted in descending order, so that the first amount that fits is the largest
        for amount in self._likely_amounts(clause, asked):
            if amount_fits(amount):
                return amount
        best = 0
        for lowest, step in self._least_portions(clause.names[0]):
            most = (asked - 1) // step
            # bisection needs an amount that fits as its lower end
            starts = (lowest // step * times for times in _STARTS)
            below = next((start for start in starts if start <= most and amount_fits(start * step)), None)
            if below is None:
                continue
            # the amount doubles until it does not fit, because most hosts have far less than a request may
            # ask for
            above = most + 1
            for stride in (1 << each for each in count()):
                if below + stride >= above:
                    break
                if amount_fits((below + stride) * step):
                    below += stride
                else:
                    above = below + stride
            best = max(best, largest_multiple(amount_fits, step, below, above))
        return best

    def _likely_amounts(self, clause: RequestClause, asked: int) -> list[int]:
        """Return amounts below the requested amount; mostly, one of them is the largest amount that fits."""
        name = clause.names[0]
        full = set(self._full_amounts(clause))
        others = [
            group.resources[name]
            for group in self._request.groups
            if group.suffix != clause.group and name in group.resources
        ]
        for other in others[:_MAX_OTHERS]:  # another group may take its amount from the same provider
            full |= {each - other for each in full}
        having = self._snapshot.by_class.get(name, ())
        self._budget.spend(1 + (len(full) + len(having)) // 4)
        steps = {self._snapshot.providers[each].inventories[name].step_size for each in having}
        # amounts just below the requested one are tried, too, because the largest amount that fits perhaps
        # uses up no provider
        step, most = gcd(*steps) or 1, min(max(full, default=0), asked - 1)
        full.update(islice(range(most // step * step, most - max(steps, default=0), -step), _MAX_AMOUNTS))
        return sorted((each for each in full if 0 < each < asked), reverse=True)[:_MAX_AMOUNTS]

    def _least_portions(self, name: str) -> list[tuple[int, int]]:
        """Return pairs: the least amount of a class that a provider can give, and its step size."""
        having = self._snapshot.by_class.get(name, ())
        self._budget.spend(1 + len(having) // 4)
        inventories = (self._snapshot.providers[each].inventories[name] for each in having)
        found = {(smallest_amount(each.min_unit, each.step_size), each.step_size) for each in inventories}
        return sorted(found)[:_MAX_STEPS]


def smallest_amount(min_unit: int, step_size: int) -> int:
    """Return the smallest amount that an inventory with these bounds can give."""
    return max(1, -(-min_unit // step_size)) * step_size


def _is_spared(standing: FilterResult, left_out: Bits) -> bool:
    """Return whether a provider passes all checks, except those of free amounts, without these clauses."""
    return any(not spared & ~left_out for spared in standing.spared)
