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

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter, le
from typing import Any, Final

from placement.read_model.provider import Inventory, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree, TreeLayout, TreeStructure, Where, slot_picker
from placement.search.budget import SearchBudget
from placement.search.conditions import ProviderCondition, all_conditions, group_conditions, needs_of
from placement.search.request import CandidatesRequest
from placement.search.roots import SharingProviders
from placement.search.rules import RequestRules

_TREES: Final = 64
# making and looking up the key of a tree takes a few microseconds, about one step
"""Number of trees between two checks of the budget."""
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
        #: the amounts and sums that some providers perhaps cannot give, and whether each is a sum
        self._doubtful = [
            (name, amount, is_sum)
            for is_sum, asked in enumerate((self.amounts, self.rules.contested.items()))
            for name, amount in asked
            # if one verdict holds for the whole cloud, the structures need not be read
            if (bounds := snapshot.portion_bounds(name)) is not None
            and ((found := bounds.give_verdict(amount)) is None or (is_sum and not found))
        ]
        self._portions: dict[TreeStructure, Hashable] = {}

    @property
    def is_doubtful(self) -> bool:
        """Whether structures perhaps differ in the requested amounts that they can give."""
        return bool(self._doubtful)

    def portions_key(self, shape: TreeStructure) -> Hashable:
        """Return a key; trees of structures with equal keys can give the same requested amounts and sums."""
        if not self._doubtful:
            return ()
        # the portions are cached by structure, because the computation reads each inventory, and thousands of
        # trees share a structure
        found = self._portions.get(shape)
        if found is None:
            found = self._portions[shape] = tuple(
                [
                    name in shape.having and self._portion_key(shape, name, amount, is_sum)
                    for name, amount, is_sum in self._doubtful
                ]
            )
        return found

    def _portion_key(self, shape: TreeStructure, name: str, amount: int, is_sum: int) -> Hashable:
        # a verdict stands for all inventories, so that structures with different inventories can have equal
        # keys
        verdict = shape.bounds_of(name).give_verdict(amount)
        if verdict is not None and not (is_sum and not verdict):
            return verdict
        layout = shape.frame.layout_of(self.where)
        portions = self._portions_summed if is_sum else self._portions_given
        return portions(shape, layout, name, amount)

    def _portions_given(self, shape: TreeStructure, layout: TreeLayout, name: str, amount: int) -> Hashable:
        # the key only tells whether each bound is met, so that hosts of all sizes have the same key for a
        # small amount
        return tuple(
            [
                (each.min_unit <= amount, amount <= each.max_unit, amount % each.step_size == 0)
                for each in self._inventories_of(shape, layout, name)
            ]
        )

    def _portions_summed(self, shape: TreeStructure, layout: TreeLayout, name: str, asked: int) -> Hashable:
        # any sum of these amounts may occur, so the key has the bounds themselves, limited to the largest sum
        return tuple(
            [
                (each.min_unit, min(each.max_unit, asked), each.step_size)
                for each in self._inventories_of(shape, layout, name)
            ]
        )

    def _inventories_of(self, shape: TreeStructure, layout: TreeLayout, name: str) -> list[Inventory]:
        return [shape.portions[slot] for slot in layout.slots_of(self._ranks[name])]


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


class TreeKin:
    """Trees that, for one request, differ only in their free amounts.

    :meth:`add_trees` divides these trees into groups: by whether each slot has enough free for each requested
    amount. If several needs ask for a class, each sum of some of their amounts counts as an amount. If there
    are too many such sums, the division compares the free amounts themselves, up to the sum of all needs.

    Positions and slots are those of a :class:`~placement.read_model.trees.TreeLayout`.

    :param layout: the layout of one of these trees; the layouts of all of them have the same places.
    :param shared: the sharing providers of each of these trees.
    """

    __slots__ = (
        "_amounts",
        "_contested",
        "_pick",
        "alike",
        "having",
        "lineages",
        "own",
        "shared",
        "slots",
        "where",
    )

    def __init__(self, layout: TreeLayout, shared: tuple[Provider, ...], request: "AskedAmounts") -> None:
        self.where = request.where
        #: for each position, the positions of the provider and its ancestors
        self.lineages: list[tuple[int, ...]] = []
        for at, (above, _) in enumerate(layout.places):
            lineage = [at]
            while above >= 0:
                lineage.append(above)
                above = layout.places[above][0]
            self.lineages.append(tuple(lineage))
        names = self.where[0]
        #: the number of providers that belong to the tree itself
        self.own = len(layout.positions)
        self.slots: dict[tuple[int, str], int] = {}
        #: for each class, the positions and slots of the providers that have it
        self.having: dict[str, list[tuple[int, int]]] = {}
        for at, (_, ranks) in enumerate(layout.places):
            for rank in ranks:
                slot = self.slots[at, names[rank]] = len(self.slots)
                self.having.setdefault(names[rank], []).append((at, slot))
        compared = sorted(
            (slot, amount)
            for name, amounts in request.sums.items()
            for amount in amounts
            for _, slot in self.having.get(name, ())
        )
        self.shared = shared
        #: the groups of trees, by the relevant part of their free amounts
        self.alike: dict[Hashable, LikeTrees] = {}
        # with one amount for each slot, in the order of slots, no slots have to be picked
        slots = [slot for slot, _ in compared]
        #: picks the compared free amounts of a tree; None if each slot has exactly one amount
        self._pick = None if slots == [*range(len(self.slots))] else slot_picker(slots)
        self._amounts = tuple([amount for _, amount in compared])
        self._contested = [
            (slot, request.rules.contested[name])
            for name in request.rules.contested
            if name not in request.sums
            for _, slot in self.having.get(name, ())
        ]

    def providers(self, tree: HostTree) -> tuple[Provider, ...]:
        """The providers of a tree, then its sharing providers, by position of the layout."""
        members = tree.members
        return *[members[at] for at in tree.shape.frame.layout_of(self.where).positions], *self.shared

    def add_trees(self, trees: Iterable[HostTree], frees: Iterable[tuple[int, ...]]) -> None:
        """Add each tree to the group of trees with the same relevant free amounts.

        :param frees: the free amounts of each tree, by slot of the layout.
        """
        pick, amounts, alike = self._pick, self._amounts, self.alike
        for tree, free in zip(trees, frees, strict=True):
            # le() and map() run in C, because this is the inner loop of explanations
            key: Hashable = tuple(map(le, amounts, free if pick is None else pick(free)))
            if self._contested:
                # an amount below 0 counts as 0, and an amount above the sum of all needs counts as this sum
                found = [(free[slot], asked) for slot, asked in self._contested]
                key = (key, *[asked if here >= asked else here if here > 0 else 0 for here, asked in found])
            group = alike.get(key)
            if group is None:
                group = alike[key] = LikeTrees(self)
            group.trees.append(tree)
            group.frees.append(free)


@dataclass(eq=False, slots=True)
class LikeTrees:
    """Trees of one kin that have the same candidates for a request, or fail it for the same reasons."""

    kin: TreeKin
    trees: list[HostTree] = field(default_factory=list)
    frees: list[tuple[int, ...]] = field(default_factory=list)
    """For each tree, its free amounts by slot of the layout."""

    @property
    def first_tree(self) -> HostTree:
        """One of the trees, which represents all of them."""
        return self.trees[0]

    @property
    def shared_providers(self) -> tuple[Provider, ...]:
        """The sharing providers of the trees; all trees of the group have the same sharing providers."""
        return self.kin.shared


_Members = tuple[TreeKin, list[HostTree], list[tuple[int, ...]]]
"""A kin, with its trees and their free amounts before these are divided into groups."""


def regroup_trees(
    snapshot: ModelSnapshot, request: CandidatesRequest, groups: Iterable[LikeTrees], budget: SearchBudget
) -> Iterator[LikeTrees]:
    """Yield groups of trees for a weaker request; it can split or join the groups of the whole request.

    :param groups: the groups of equivalent trees for the whole request.
    :raises placement.search.budget.BudgetExhausted: the grouping takes too long.
    """
    by_kin: dict[TreeKin, list[LikeTrees]] = {}
    for group in groups:
        by_kin.setdefault(group.kin, []).append(group)
    if not by_kin:
        return
    # the layouts of the whole request are kept, because positions in the survey's results refer to them
    where = next(iter(by_kin)).where
    asked = AskedAmounts(snapshot, request, budget, where)
    # the trees of one kin are grouped at a time, because the caller often needs only one group that fits
    for kin, alike in by_kin.items():
        kins: dict[Hashable, _Members] = {}
        for group in alike:
            budget.spend(1 + len(group.trees) // 8)
            for tree, free in zip(group.trees, group.frees, strict=True):
                key = asked.portions_key(tree.shape)
                found = kins.get(key)
                if found is None:
                    # all weaker requests use this layout, so that their results can be compared by position
                    layout = tree.shape.frame.layout_of(where)
                    found = kins[key] = (TreeKin(layout, kin.shared, asked), [], [])
                found[1].append(tree)
                found[2].append(free)
        for each, trees, frees in kins.values():
            each.add_trees(trees, frees)
            yield from each.alike.values()


def group_trees(
    snapshot: ModelSnapshot, request: CandidatesRequest, trees: Iterable[HostTree], budget: SearchBudget
) -> list[LikeTrees]:
    """Group the trees that serve a request with the same assignments, or do not fit it for the same reasons.

    :raises placement.search.budget.BudgetExhausted: the grouping takes too long.
    """
    asked = AskedAmounts(snapshot, request, budget)
    sharing = SharingProviders(snapshot, budget)
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
    # sharing providers of a tree depend on its aggregates, unless the tree has some of these providers itself
    via: Mapping[int, Hashable] = {}
    if sharing.providers:
        via = {**sharing.by_root(), **{root: _shared_ids(sharing, root) for root in sharing.roots}}
    apart = telling | named | via.keys()
    portions_key = asked.portions_key if asked.is_doubtful else None
    #: the sharing providers, by the values of ``via``
    shared_of: dict[Hashable, tuple[Provider, ...]] = {None: ()}
    kins: dict[Hashable, _Members] = {}
    #: by the frame and other features of a tree: an entry of ``kins``, and the picker of the layout
    heads: dict[Hashable, tuple[list[HostTree], list[tuple[int, ...]], Callable[[Any], tuple[int, ...]]]] = {}
    for number, tree in enumerate(trees):
        if number % _TREES == 0:
            budget.spend(_TREES // 4)
        shape, root = tree.shape, tree.root.id
        key: Hashable = (shape.frame, portions_key(shape)) if portions_key else shape.frame
        if root in apart:
            # outside of ``telling`` each condition has one result for all providers of a tree, so only the
            # frame matters
            key = (
                key,
                read(tree) if root in telling else None,
                via.get(root),
                root if root in named else None,
            )
        head = heads.get(key)
        if head is None:
            layout = shape.frame.layout_of(asked.where)
            budget.spend(1 + len(tree.members) // 8)
            beside = via.get(root)
            if beside not in shared_of:
                shared_of[beside] = tuple(sharing.with_tree(root)[0])
            shared = shared_of[beside]
            ids = tuple([each.id for each in shared])
            features = [layout.places, asked.portions_key(shape), ids, root if root in named else None]
            if root in telling:
                budget.spend(1 + len(conditions) * len(tree.members) // 4)
                for met_at in met_in:
                    found = met_at(tree)
                    features.append(tuple([found[at] for at in layout.positions]))
            features_key = tuple(features)
            if features_key not in kins:
                kins[features_key] = TreeKin(layout, shared, asked), [], []
            head = heads[key] = (*kins[features_key][1:], layout.pick)
        alike, frees, pick = head
        alike.append(tree)
        frees.append(pick(tree.free))
    for kin, members_of, frees in kins.values():
        budget.spend(len(members_of) // 4)
        kin.add_trees(members_of, frees)
    return [group for kin, *_ in kins.values() for group in kin.alike.values()]


def _shared_ids(sharing: SharingProviders, root: int) -> Hashable:
    return tuple([each.id for each in sharing.with_tree(root)[0]])


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
