"""Groups trees, and providers, that are equivalent for a request, so that each group is searched once.

There are three kinds of equivalence classes. The first kind applies to every request, the others to one
request:

- :class:`~placement.read_model.trees.TreeStructure` and :class:`~placement.read_model.trees.TreeClass` do not
  depend on a request. The read model creates each of them once, because thousands of hosts differ only in
  names and usage.
- A :class:`~placement.search.compiled_request.CompiledRequest` stands for the trees of one structure in which
  the conditions of a request have the same results. The candidates of these trees are the same if positions
  stand for the providers.
- A :class:`TreeKin`, and each :class:`LikeTrees` in a kin, ignore providers without any requested class. Kins
  are coarser than compiled requests, because an explanation counts hosts and needs no positions.

A key of an equivalence class does not contain conditions, but the attributes that the conditions read
(``reads``). :func:`tree_reader` makes keys of trees, and :func:`provider_reader` makes keys of providers. An
attribute without an entry in ``_OF_TREES`` makes each tree different from all others, which is correct but
slow.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from operator import attrgetter, le
from typing import Any, Final, TypeVar

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.tree_table import TablePart, TreePlaces, TreeTable
from placement.read_model.trees import HostTree, TreeStructure, Where
from placement.search.budget import SearchBudget
from placement.search.conditions import ProviderCondition, all_conditions, group_conditions, needs_of
from placement.search.request import CandidatesRequest
from placement.search.roots import SharingProviders
from placement.search.rules import RequestRules

_TREES: Final = 1024
"""Number of trees between two checks of the budget, which are compared in about a millisecond."""
# each sum is compared with the free amount of each provider
_MAX_SUMS: Final = 16
"""Maximum number of sums of amounts of one class with which free amounts are compared."""
_OF_TREES: Final = {
    "traits": "kind",
    "above.traits": "kind",
    "aggregates": "aggregates",
    "root.aggregates": "aggregates",
}
"""For each attribute of providers that conditions read, the attribute of the tree that determines it.

A missing attribute counts as different in any two trees.
"""


def tree_reader(
    conditions: Iterable[ProviderCondition], structure: str = "shape"
) -> Callable[[HostTree], Any]:
    """Return a function that computes a key of a tree for one request.

    Trees with equal keys have one structure and meet the conditions at the same positions.

    :param structure: the attribute that stands for the structure.
    """
    # "root.id" stands for unknown attributes: it differs in each tree, which makes the search slow but never
    # wrong
    reads = {_OF_TREES.get(name, "root.id") for each in conditions for name in each.reads}
    # a class of trees has only one structure, so the structure is unnecessary beside "kind"; a shorter key is
    # faster
    return attrgetter(*sorted(reads if "kind" in reads else {structure, *reads}))


def root_reader(conditions: Iterable[ProviderCondition]) -> Callable[[Provider], Any]:
    """Return a function that computes a key of a root.

    Roots with equal keys meet the same conditions of a request.
    """
    # attrgetter runs in C, which matters because the search calls this for each tree
    reads = {name.removeprefix("root.") for each in conditions for name in each.reads}
    return attrgetter(*sorted(reads)) if reads else _read_nothing


def provider_reader(conditions: Iterable[ProviderCondition]) -> Callable[[Provider, Provider], Hashable]:
    """Return a function that computes a key of a provider and its root for one request.

    Providers with equal keys meet the same conditions.
    """
    reads = {name for each in conditions for name in each.reads}
    of_root = sorted([name.removeprefix("root.") for name in reads if name.startswith("root.")])
    # if a condition reads ancestors, each provider counts as different, because few providers have the same
    # ancestors
    own = sorted(
        {"id" if name.startswith("above.") else name for name in reads if not name.startswith("root.")}
    )
    read_own = attrgetter(*own) if own else _read_nothing
    # most conditions read no attribute of the root; then the key is shorter, which is faster to hash
    if not of_root:
        return lambda provider, _: read_own(provider)
    read_root = attrgetter(*of_root)
    return lambda provider, root: (read_own(provider), read_root(root))


def _read_nothing(_: object) -> Hashable:
    return None


Slots = tuple[tuple[int, int], ...]
"""Slots, each with an amount with which its free amount is compared."""


class AskedAmounts:
    """The amounts and rules of a request, and the resource classes by which trees are compared.

    :param where: names the layout by which trees are compared; None stands for the classes of this request.
    """

    def __init__(
        self,
        snapshot: ModelSnapshot,
        request: CandidatesRequest,
        budget: SearchBudget,
        where: Where | None = None,
    ) -> None:
        needs = needs_of(request)
        self.rules = RequestRules(snapshot, request, needs, budget)
        self.amounts = tuple(dict.fromkeys(asked for need in needs for asked in need.resources))
        # the names are sorted, so that requests for the same classes use the same layouts
        self.where = where or (tuple(sorted({name for name, _ in self.amounts})), _is_about_all(request))
        self._ranks = {name: rank for rank, name in enumerate(self.where[0])}
        #: by class, the amounts with which free amounts are compared; a class with too many sums is missing
        self.sums: dict[str, tuple[int, ...]] = {
            name: (amount,) for name, amount in self.amounts if name not in self.rules.contested
        }
        for name in self.rules.contested:
            sums = _sums_of([amount for need in needs for each, amount in need.resources if each == name])
            if sums:
                self.sums[name] = sums
        #: the amounts and sums that some providers perhaps cannot give: whether each is a sum, and whether
        #: only ``max_unit`` can forbid it
        self._doubtful = [
            (name, amount, is_sum, bounds.step == 1 and amount >= bounds.lowest)
            for is_sum, asked in enumerate((self.amounts, self.rules.contested.items()))
            for name, amount in asked
            # if one verdict holds for the whole cloud, the structures need not be read
            if (bounds := snapshot.portion_bounds(name)) is not None
            and ((found := bounds.give_verdict(amount)) is None or (is_sum and not found))
        ]
        self._portions: dict[Hashable, Hashable] = {}

    def portion_columns(self, part: TablePart, rows: Sequence[int]) -> Iterator[Sequence[Hashable]]:
        """Yield columns; trees with equal values can give the same requested amounts and sums."""
        for name, amount, is_sum, simple in self._doubtful:
            if name not in part.places.having:
                continue
            if not simple:
                yield [self._portion_key(part.trees[row].shape, name, amount, is_sum) for row in rows]
                continue
            # these are the verdicts of PortionBounds for each tree, read from the table instead of the trees
            lowest, highest = (_at_rows(column, rows) for column in part.max_units(name))
            yield [
                True
                if amount <= low
                else False
                if amount > high and not is_sum
                else self._portion_key(part.trees[row].shape, name, amount, is_sum)
                for row, low, high in zip(rows, lowest, highest, strict=True)
            ]

    def compared_amounts(self, places: TreePlaces) -> tuple[Slots, Slots]:
        """Return the slots and amounts with which free amounts are compared.

        The second result has slots of which free amounts themselves matter, up to the amount.
        """
        having, contested = places.having, self.rules.contested
        # single amounts are compared also if the free amounts themselves matter, because callers read the
        # results
        amounts = {name: {amount for each, amount in self.amounts if each == name} for name in having}
        compared = [
            (slot, amount)
            for name, slots in having.items()
            for amount in sorted(amounts[name].union(self.sums.get(name, ())))
            for _, slot in slots
        ]
        limited = [
            (slot, contested[name])
            for name in contested
            if name not in self.sums
            for _, slot in having.get(name, ())
        ]
        return tuple(compared), tuple(limited)

    def _portion_key(self, shape: TreeStructure, name: str, amount: int, is_sum: int) -> Hashable:
        # the keys are cached by structure, because the computation reads each inventory, and thousands of
        # trees may share a structure
        key = shape, name, amount, is_sum
        if key not in self._portions:
            self._portions[key] = self._find_portions(shape, name, amount, is_sum)
        return self._portions[key]

    def _find_portions(self, shape: TreeStructure, name: str, amount: int, is_sum: int) -> Hashable:
        # a verdict stands for all inventories, so that structures with different inventories can have equal
        # keys
        verdict = shape.bounds_of(name).give_verdict(amount)
        if verdict is not None and not (is_sum and not verdict):
            return verdict
        slots = shape.frame.layout_of(self.where).slots_of(self._ranks[name])
        inventories = [shape.portions[slot] for slot in slots]
        if is_sum:
            # any sum of these amounts may occur, so the key has the bounds themselves, limited to the largest
            # sum
            return tuple(
                [(each.min_unit, min(each.max_unit, amount), each.step_size) for each in inventories]
            )
        # the key only tells whether each bound is met, so that hosts of all sizes have the same key for a
        # small amount
        return tuple(
            [
                (each.min_unit <= amount, amount <= each.max_unit, amount % each.step_size == 0)
                for each in inventories
            ]
        )


def _sums_of(amounts: Iterable[int]) -> tuple[int, ...]:
    """Return the sum of each non-empty subset of these amounts; no sums if there are too many."""
    sums = {0}
    for amount in amounts:
        sums |= {each + amount for each in sums}
        if len(sums) > _MAX_SUMS:
            return ()
    return tuple(sorted(sums - {0}))


def _is_about_all(request: CandidatesRequest) -> bool:
    """Return whether providers without any of the requested classes can change the result.

    A provider without any requested class matters if a ``same_subtree`` rule names a group that the provider
    can serve. Without ``same_subtree`` a group without resources has no effect.
    """
    named = frozenset[str]().union(*request.same_subtrees)
    # without a same_subtree rule every provider of a candidate gives some amount
    return bool(named) and (
        request.group_policy == "isolate"
        or any(
            not group.resources or group_conditions(group)
            for group in request.groups
            if group.suffix in named
        )
    )


@dataclass(eq=False, slots=True)
class TreeKin:
    """Trees that, for one request, differ only in their free amounts; ``shared`` are their sharing providers.

    These trees are divided into groups: by whether each slot has enough free for each requested amount. If
    several needs ask for a class, each sum of some of their amounts counts as an amount. If there are too
    many such sums, the division compares the free amounts themselves, up to the sum of all needs.

    ``features`` has the ids of the sharing providers, what conditions tell of the trees, and how amounts can
    be given.
    """

    part: TablePart
    shared: tuple[Provider, ...]
    features: tuple[Hashable, ...]
    compared: Slots
    #: the number of providers that belong to the tree itself
    own_count: int = field(init=False)

    def __post_init__(self) -> None:
        """Count the providers once, because explanations read the number for each group of trees."""
        self.own_count = len(self.part.places.lineages)

    @property
    def tree_places(self) -> TreePlaces:
        """The positions and slots of the providers of each tree."""
        return self.part.places

    def providers(self, tree: HostTree) -> tuple[Provider, ...]:
        """The providers of a tree, then its sharing providers, by position of the layout."""
        members, positions = tree.members, tree.shape.frame.layout_of(self.tree_places.where).positions
        return *[members[at] for at in positions], *self.shared


@dataclass(eq=False, slots=True)
class LikeTrees:
    """Trees of one kin that have the same candidates for a request, or fail it for the same reasons.

    ``rows`` has their rows in the part of the kin. ``enough`` has for each of the compared amounts of the kin
    whether it is free.
    """

    kin: TreeKin
    rows: Sequence[int]
    enough: tuple[bool, ...]

    @property
    def member_trees(self) -> Iterator[HostTree]:
        """The trees, by row."""
        return map(self.kin.part.trees.__getitem__, self.rows)

    @property
    def roots(self) -> Iterator[int]:
        """The ids of the roots of the trees, by row."""
        return map(self.kin.part.roots.__getitem__, self.rows)

    @property
    def tree_names(self) -> Iterator[str]:
        """The names of the trees, by row."""
        return map(self.kin.part.names.__getitem__, self.rows)

    @property
    def first_tree(self) -> HostTree:
        """One of the trees, which represents all of them."""
        return self.kin.part.trees[self.rows[0]]

    def most_free(self, slots: Sequence[int]) -> Iterable[int]:
        """Return for each tree the largest free amount of some slots."""
        free = [map(self.kin.part.free[slot].__getitem__, self.rows) for slot in slots]
        return map(max, *free) if len(free) > 1 else free[0]


T = TypeVar("T")


def _at_rows(column: Sequence[T], rows: Sequence[int]) -> Iterable[T]:
    """Return the values of a column in some rows; successive rows are a range, and are read faster."""
    return column[rows.start : rows.stop] if isinstance(rows, range) else map(column.__getitem__, rows)


def _divide_rows(
    part: TablePart,
    rows: Sequence[int],
    asked: AskedAmounts,
    features_of: Sequence[Mapping[int, Hashable]],
    shared: tuple[Provider, ...] | Callable[[Any], tuple[Provider, ...]],
    budget: SearchBudget,
) -> Iterator[LikeTrees]:
    """Divide some trees of a part into kins and groups.

    :param features_of: features of the trees by root; trees of one kin have equal features.
    :param shared: the sharing providers of all these trees, or those of a kin by its features.
    """
    groups: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    compared, limited = asked.compared_amounts(part.places)
    count = 0
    for begin in range(0, len(rows), _TREES):
        some = rows[begin : begin + _TREES]
        budget.spend(1 + len(some) // 4)
        columns: list[Iterable[Hashable]] = [
            map(each.get, _at_rows(part.roots, some)) for each in features_of
        ]
        columns += asked.portion_columns(part, some)
        count = len(columns)
        # map() and zip() run in C, because this is the inner loop of explanations
        columns += [map(le, repeat(amount), _at_rows(part.free[slot], some)) for slot, amount in compared]
        # an amount below 0 counts as 0, and an amount above the sum of all needs counts as this sum
        columns += [
            [max(0, min(here, most)) for here in _at_rows(part.free[slot], some)] for slot, most in limited
        ]
        keys: Iterable[tuple[Any, ...]] = zip(*columns, strict=False) if columns else repeat(())
        for row, key in zip(some, keys, strict=False):
            groups[key].append(row)
    kins: dict[Hashable, TreeKin] = {}
    for key, members in groups.items():
        features = key[:count]
        kin = kins.get(features)
        if kin is None:
            kin = kins[features] = TreeKin(
                part, shared(features) if callable(shared) else shared, features, compared
            )
        yield LikeTrees(kin, members, key[count : count + len(compared)])


def regroup_trees(
    snapshot: ModelSnapshot, request: CandidatesRequest, groups: Iterable[LikeTrees], budget: SearchBudget
) -> Iterator[LikeTrees]:
    """Yield groups of trees for a weaker request; it can split or join the groups of the whole request.

    :param groups: the groups of equivalent trees for the whole request.
    :raises placement.search.budget.BudgetExhausted: the grouping takes too long.
    """
    by_kin: dict[TreeKin, list[Sequence[int]]] = {}
    for group in groups:
        by_kin.setdefault(group.kin, []).append(group.rows)
    if not by_kin:
        return
    # the layouts of the whole request are kept, because positions in the survey's results refer to them
    asked = AskedAmounts(snapshot, request, budget, next(iter(by_kin)).tree_places.where)
    # the trees of one kin are grouped at a time, because the caller often needs only one group that fits
    for kin, rows in by_kin.items():
        yield from _divide_rows(kin.part, [*chain(*rows)], asked, (), kin.shared, budget)


def group_trees(
    snapshot: ModelSnapshot,
    request: CandidatesRequest,
    among: Container[int] | None,
    budget: SearchBudget,
) -> list[LikeTrees]:
    """Group the trees that serve a request with the same assignments, or do not fit it for the same reasons.

    :param among: the ids of the roots of the trees; None for all trees.
    :raises placement.search.budget.BudgetExhausted: the grouping takes too long.
    """
    asked = AskedAmounts(snapshot, request, budget)
    whole = snapshot.whole_trees()
    some = None if among is None else [tree for root, tree in whole.items() if root in among]
    # for few trees, the table of all trees would take longer
    if some is not None and len(some) < len(whole) / 2:
        table = TreeTable(asked.where, [], {}).with_trees(some, budget.spend)
    else:
        table = snapshot.tree_table(asked.where, budget.spend)
    shared_ids = _shared_ids(snapshot, budget)
    named: set[int] = set()
    conditions: list[ProviderCondition] = []
    for atom in dict.fromkeys(
        [each for stated in all_conditions(request, asked.rules.needs) for each in stated.deciding_pieces()]
    ):
        members = atom.named_providers(snapshot)
        if members is None:
            conditions.append(atom)
        else:  # a tree that a condition names is a group of its own; all other trees fail the condition
            named.update([snapshot.providers[each].root_id for each in members])
    met_in = [each.met_in(snapshot) for each in conditions]
    telling = _roots_telling(snapshot, conditions)
    budget.spend(len(telling) // 16)
    read = tree_reader(conditions, "shape.frame")
    #: cached positions at which the conditions are met
    met: dict[Hashable, Hashable] = {}
    #: what conditions tell of the tree with a root; they tell the same of all other trees
    told: dict[int, Hashable] = {}
    for root in telling | named:
        if among is not None and root not in among:
            continue
        tree = whole[root]
        # outside of ``telling`` each condition has one result for all providers of a tree
        key = read(tree) if root in telling else None
        if key not in met:
            budget.spend(1 + len(conditions) * len(tree.members) // 4)
            positions = tree.shape.frame.layout_of(asked.where).positions
            results = [met_at(tree) for met_at in met_in] if root in telling else []
            met[key] = tuple([tuple([found[at] for at in positions]) for found in results])
        told[root] = met[key], root in named and root

    def shared_of(features: tuple[Any, ...]) -> tuple[Provider, ...]:
        return tuple([snapshot.providers[each] for each in features[0] or ()])

    found: list[LikeTrees] = []
    for part in table.parts.values():
        rows = part.rows if among is None else [row for row in part.rows if part.roots[row] in among]
        found += _divide_rows(part, rows, asked, (shared_ids, told), shared_of, budget)
    return found


def _shared_ids(snapshot: ModelSnapshot, budget: SearchBudget) -> dict[int, tuple[int, ...]]:
    """Return the ids of the sharing providers of each tree by its root; trees without any are missing."""
    sharing = SharingProviders(snapshot, budget)
    if not sharing.providers:
        return {}
    via = sharing.by_root()
    ids = {each: sharing.sharing_through(each).ids for each in {*via.values()}}
    found = {root: ids[each] for root, each in via.items()}
    # a tree with sharing providers uses them as its own
    found.update({root: sharing.with_tree(root).ids for root in sharing.roots})
    return found


def _roots_telling(snapshot: ModelSnapshot, conditions: Iterable[ProviderCondition]) -> set[int]:
    """Return the roots of trees with a provider that has one of the names in a condition, such as a trait.

    In any other tree, either all providers meet the condition or none does.
    """
    found: set[int] = set()
    for each in conditions:
        # the filter takes all roots, because without an index any tree may have a provider with one of the
        # names
        if each.index is None:
            return set(snapshot.trees)
        index = getattr(snapshot, each.index)
        found.update(*[snapshot.roots_having(index, name).ids for names in each.sets for name in names])
    return found
