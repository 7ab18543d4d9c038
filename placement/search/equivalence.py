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

All keys of equivalence classes consist of the attributes that conditions read (``reads``).
:func:`tree_reader` makes keys of trees, and :func:`provider_reader` makes keys of providers. An attribute
without an entry in ``_OF_TREES`` makes each tree different from all others, which is correct but slow.
"""

from collections.abc import Callable, Hashable, Iterable
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
_OF_TREES: Final = {
    "traits": "kind",
    "above.traits": "kind",
    "aggregates": "aggregates",
    "root.aggregates": "aggregates",
}
"""For each attribute of providers that conditions read, the attribute of the tree that determines it.

A missing attribute counts as different in any two trees.
"""


def tree_reader(conditions: Iterable[ProviderCondition]) -> Callable[[HostTree], Any]:
    """Return a function for a tree's key: structure, and positions that meet the conditions of a request."""
    # "root.id" stands for unknown attributes: it differs in each tree, which makes the search slow but never
    # wrong
    reads = {_OF_TREES.get(name, "root.id") for each in conditions for name in each.reads}
    # a class of trees has only one structure, so "shape" is unnecessary beside "kind"; a shorter key is
    # faster
    return attrgetter(*sorted(reads if "kind" in reads else {"shape", *reads}))


def root_reader(conditions: Iterable[ProviderCondition]) -> Callable[[Provider], Any]:
    """Return a function for a root's key; roots with equal keys meet the same conditions of a request."""
    # attrgetter runs in C, which matters because the search calls this for each tree
    reads = {name.removeprefix("root.") for each in conditions for name in each.reads}
    return attrgetter(*sorted(reads)) if reads else _read_nothing


def provider_reader(conditions: Iterable[ProviderCondition]) -> Callable[[Provider, Provider], Hashable]:
    """Return a function for the key of a provider and its root: the conditions that they meet."""
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
        self.where = where or (tuple(dict.fromkeys(name for name, _ in self.amounts)), _is_about_all(request))
        self._ranks = {name: rank for rank, name in enumerate(self.where[0])}
        self._portions: dict[TreeStructure, Hashable] = {}

    def portions_key(self, shape: TreeStructure, layout: TreeLayout) -> Hashable:
        """Return a key; trees of structures with equal keys can give the same requested amounts and sums."""
        # the portions are cached by structure, because the computation reads each inventory, and thousands of
        # trees share a structure
        found = self._portions.get(shape)
        if found is None:
            given = [
                # the value True stands for "each inventory can give this amount", so that structures with
                # different inventories can have equal keys
                shape.any_gives(name, amount) or self._portions_given(shape, layout, name, amount)
                for name, amount in self.amounts
            ]
            summed = [
                # if all inventories can give each amount and the sum of all amounts, their bounds do not
                # matter
                (given.count(True) == len(given) and shape.any_gives(name, asked))
                or self._portions_summed(shape, layout, name, asked)
                for name, asked in self.rules.contested.items()
            ]
            found = self._portions[shape] = (*given, *summed)
        return found

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


def _is_about_all(request: CandidatesRequest) -> bool:
    """Return whether providers without any of the requested classes can change the result.

    A provider without any requested class matters if a ``same_subtree`` rule names a group that it may serve.
    Without ``same_subtree`` a group without resources has no effect.
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

    :meth:`like_trees` divides these trees into groups: by whether each slot has enough free for each
    requested amount. If several needs ask for a class, the division compares the free amounts themselves, up
    to the sum of these needs.

    Positions and slots are those of a :class:`~placement.read_model.trees.TreeLayout`.

    :param layout: the layout of one of these trees, which is the same for all of them.
    :param shared: the sharing providers of each of these trees.
    """

    __slots__ = ("_amounts", "_contested", "_pick", "alike", "having", "own", "shared", "slots", "where")

    def __init__(self, layout: TreeLayout, shared: tuple[Provider, ...], request: "AskedAmounts") -> None:
        self.where = request.where
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
        # contested classes are compared by their free amount, other classes only by whether this amount is
        # enough
        contested = request.rules.contested
        asked = sorted(
            (slot, amount)
            for name, amount in request.amounts
            if name not in contested
            for _, slot in self.having.get(name, ())
        )
        self.shared = shared
        #: the groups of trees, by the relevant part of their free amounts
        self.alike: dict[Hashable, LikeTrees] = {}
        # with one amount for each slot, in the order of slots, no slots have to be picked
        slots = [slot for slot, _ in asked]
        #: picks the compared free amounts of a tree; None if each slot has exactly one amount
        self._pick = None if slots == [*range(len(self.slots))] else slot_picker(slots)
        self._amounts = tuple([amount for _, amount in asked])
        self._contested = [
            (slot, sum_) for name, sum_ in contested.items() for _, slot in self.having.get(name, ())
        ]

    def free(self, tree: HostTree) -> tuple[int, ...]:
        """The free amounts of a tree, by slot of the layout."""
        return tree.shape.layout_of(self.where).pick(tree.free)

    def providers(self, tree: HostTree) -> tuple[Provider, ...]:
        """The providers of a tree, then its sharing providers, by position of the layout."""
        members = tree.members
        return *[members[at] for at in tree.shape.layout_of(self.where).positions], *self.shared

    def like_trees(self, tree: HostTree, layout: TreeLayout) -> "LikeTrees":
        """Return the group of trees with this tree's relevant free amounts; the first tree creates it."""
        free = layout.pick(tree.free)
        pick = self._pick
        # le() and map() run in C, because this is the inner loop of explanations
        key: Hashable = tuple(map(le, self._amounts, free if pick is None else pick(free)))
        if self._contested:
            # an amount below 0 counts as 0, and an amount above the sum of all needs counts as this sum
            found = [(free[slot], asked) for slot, asked in self._contested]
            key = (key, *[asked if here >= asked else here if here > 0 else 0 for here, asked in found])
        alike = self.alike.get(key)
        if alike is None:
            alike = self.alike[key] = LikeTrees(self, tree)
        return alike


@dataclass(eq=False, slots=True)
class LikeTrees:
    """Trees of one kin that have the same candidates for a request, or fail it for the same reasons."""

    kin: TreeKin
    tree: HostTree
    """One of the trees, which represents all of them."""
    trees: list[HostTree] = field(default_factory=list)

    @property
    def shared_providers(self) -> tuple[Provider, ...]:
        """The sharing providers of the trees; all trees of the group have the same sharing providers."""
        return self.kin.shared


def regroup_trees(
    snapshot: ModelSnapshot, request: CandidatesRequest, groups: Iterable[LikeTrees], budget: SearchBudget
) -> list[LikeTrees]:
    """Group trees again for a weaker request, which may split or join the groups of the whole request.

    :param groups: the groups of equivalent trees for the whole request.
    """
    groups = list(groups)
    if not groups:
        return []
    where = groups[0].kin.where
    # the layouts of the whole request are kept, because positions in the survey's results refer to them
    asked = AskedAmounts(snapshot, request, budget, where)
    kins: dict[Hashable, TreeKin] = {}
    for group in groups:
        budget.spend(1 + len(group.trees) // 8)
        for tree in group.trees:
            # all weaker requests use this layout, so that their results can be compared by position
            layout = tree.shape.layout_of(where)
            key = (group.kin, asked.portions_key(tree.shape, layout))
            kin = kins.get(key)
            if kin is None:
                kin = kins[key] = TreeKin(layout, group.shared_providers, asked)
            kin.like_trees(tree, layout).trees.append(tree)
    return [alike for kin in kins.values() for alike in kin.alike.values()]


def group_trees(
    snapshot: ModelSnapshot, request: CandidatesRequest, trees: Iterable[HostTree], budget: SearchBudget
) -> list[LikeTrees]:
    """Group the trees that serve a request with the same assignments, or fail it for the same reasons."""
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
    read = tree_reader(conditions)
    #: a number for each combination of all compared features except free amounts
    numbers: dict[Hashable, int] = {}
    #: by the key of a tree: a number for the attributes that conditions read, and the layout
    met: dict[Hashable, tuple[int, TreeLayout]] = {}
    kins: dict[Hashable, TreeKin] = {}
    shared: tuple[Provider, ...] = ()
    for number, tree in enumerate(trees):
        if number % _TREES == 0:
            budget.spend(_TREES)
        tells = tree.root.id in telling
        # outside of ``telling`` each condition has one result for all providers of a tree, so only the
        # structure matters
        looked_at = read(tree) if tells else tree.shape
        known = met.get(looked_at)
        if known is None:
            layout = tree.shape.layout_of(asked.where)
            budget.spend(1 + len(tree.members) // 8)
            features = [layout.places, asked.portions_key(tree.shape, layout)]
            if tells:
                budget.spend(1 + len(conditions) * len(tree.members) // 4)
                for met_at in met_in:
                    found = met_at(tree)
                    features.append(tuple([found[at] for at in layout.positions]))
            # a number replaces the long tuple, which would be hashed again for each tree
            known = met[looked_at] = numbers.setdefault(tuple(features), len(numbers)), layout
        key: Hashable
        key, layout = known
        # sharing providers and trees named by conditions are not part of the number, so they are added to the
        # key
        if sharing.providers or named:
            if sharing.providers:
                shared = tuple(sharing.with_tree(tree.root.id)[0])
            in_named = tree.root.id if tree.root.id in named else None
            key = (key, in_named, *[each.id for each in shared])
        kin = kins.get(key)
        if kin is None:
            kin = kins[key] = TreeKin(layout, shared, asked)
        kin.like_trees(tree, layout).trees.append(tree)
    return [alike for kin in kins.values() for alike in kin.alike.values()]


def _roots_telling(snapshot: ModelSnapshot, conditions: Iterable[ProviderCondition]) -> set[int]:
    """Return the roots of trees in which only some providers may meet a condition, by its names."""
    found: set[int] = set()
    for each in conditions:
        # the filter takes all roots, because without an index any tree may have a provider with one of the
        # names
        if each.index is None:
            return set(snapshot.trees)
        index = getattr(snapshot, each.index)
        found.update(*[snapshot.roots_having(index, name).ids for names in each.sets for name in names])
    return found
