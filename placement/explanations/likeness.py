"""Hosts among which nothing that a request asks for tells a difference: they are looked at once."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter, le
from typing import Any, Final

from placement.candidates.budget import Budget
from placement.candidates.conditions import InTree
from placement.candidates.needs import needs_of
from placement.candidates.request import CandidatesRequest
from placement.candidates.roots import Sharing
from placement.candidates.rules import Rules
from placement.explanations.clauses import pieces
from placement.model.provider import Inventory, Provider
from placement.model.snapshot import Snapshot
from placement.model.trees import Shape, Tree

_TREES: Final = 64
"""How many trees are looked at between two looks at the budget."""


class Asked:
    """What a request says about its parts together, and all amounts of it."""

    def __init__(self, snapshot: Snapshot, request: CandidatesRequest, budget: Budget) -> None:
        needs = needs_of(request)
        self.rules = Rules(snapshot, request, needs, budget)
        self.amounts = tuple(dict.fromkeys(asked for need in needs for asked in need.resources))
        self._names = tuple(dict.fromkeys(name for name, _ in self.amounts))
        self._portions: dict[Shape, Hashable] = {}

    def places(self, shape: Shape) -> Hashable:
        """How providers are related, and who of them has what is asked for, in which slot."""
        return shape.lineages, *[tuple(shape.having.get(name, ())) for name in self._names]

    def portions(self, shape: Shape) -> Hashable:
        """By amount whether those who have the class give it in one go; of sums of amounts in which steps."""
        found = self._portions.get(shape)
        if found is None:
            found = self._portions[shape] = (
                *[self._gives(shape, name, amount) for name, amount in self.amounts],
                *[
                    (each.min_unit, min(each.max_unit, asked), each.step_size)
                    for name, asked in self.rules.contested.items()
                    for each in _portions(shape, name)
                ],
            )
        return found

    def _gives(self, shape: Shape, name: str, amount: int) -> Hashable:
        if shape.any_gives(name, amount):
            return True
        return tuple(
            [
                (each.min_unit <= amount, amount <= each.max_unit, amount % each.step_size == 0)
                for each in _portions(shape, name)
            ]
        )


def _portions(shape: Shape, name: str) -> list[Inventory]:
    return [shape.portions[slot] for _, slot in shape.having.get(name, ())]


class Kin:
    """Trees that differ in what is free, at most: all else that a request may look at is the same.

    That is where providers are and have what is asked for, and whether they give the amounts in one go; what
    else there is does not matter. Of what is free it matters whether it is enough for each amount; of classes
    that several parts of the request ask for also how much there is, up to all that they ask for.

    :param tree: any of them.
    :param shared: what shares with each.
    """

    __slots__ = ("_amounts", "_contested", "_pick", "alike", "shared")

    def __init__(self, tree: Tree, shared: tuple[Provider, ...], request: "Asked") -> None:
        having = tree.shape.having
        contested = request.rules.contested
        asked = [
            (slot, amount)
            for name, amount in request.amounts
            if name not in contested
            for _, slot in having.get(name, ())
        ]
        self.shared = shared
        #: by what matters of what is free
        self.alike: dict[Hashable, Alike] = {}
        self._pick = picker([slot for slot, _ in asked])
        self._amounts = tuple([amount for _, amount in asked])
        self._contested = [
            (slot, sum_) for name, sum_ in contested.items() for _, slot in having.get(name, ())
        ]

    def of(self, tree: Tree) -> "Alike":
        """Those of the trees that are like this one."""
        free = tree.free
        key: Hashable = tuple(map(le, self._amounts, self._pick(free)))
        if self._contested:
            # the same as the lesser of what is free, but no less than 0, and of what is asked for
            found = [(free[slot], asked) for slot, asked in self._contested]
            key = (key, *[asked if here >= asked else here if here > 0 else 0 for here, asked in found])
        alike = self.alike.get(key)
        if alike is None:
            alike = self.alike[key] = Alike(self, tree)
        return alike


@dataclass(eq=False, slots=True)
class Alike:
    """Trees of one kin that serve a request in the same ways, or fail it in the same way."""

    kin: Kin
    tree: Tree
    """Any of them."""
    trees: list[Tree] = field(default_factory=list)

    @property
    def shared(self) -> tuple[Provider, ...]:
        """What shares with each of them."""
        return self.kin.shared


def sort_anew(
    snapshot: Snapshot, request: CandidatesRequest, groups: Iterable[Alike], budget: Budget
) -> list[Alike]:
    """Trees that were sorted out for a request, those alike together for one that says part of it.

    Amounts may be others, so that trees of two groups may be alike now, or those of one not any more.

    :raises placement.candidates.budget.Exhausted: it takes too long.
    """
    asked = Asked(snapshot, request, budget)
    kins: dict[Hashable, Kin] = {}
    for group in groups:
        budget.spend(1 + len(group.trees) // 8)
        for tree in group.trees:
            key = (group.kin, asked.portions(tree.shape))
            kin = kins.get(key)
            if kin is None:
                kin = kins[key] = Kin(tree, group.shared, asked)
            kin.of(tree).trees.append(tree)
    return [alike for kin in kins.values() for alike in kin.alike.values()]


def sort_out(
    snapshot: Snapshot, request: CandidatesRequest, trees: Iterable[Tree], budget: Budget
) -> list[Alike]:
    """These trees of the snapshot, those alike together.

    :raises placement.candidates.budget.Exhausted: it takes too long.
    """
    asked = Asked(snapshot, request, budget)
    sharing = Sharing(snapshot, budget)
    named = {
        member.root_id
        for condition in asked.rules.conditions
        if isinstance(condition, InTree) and (member := snapshot.get(condition.uuid))
    }
    conditions = [*pieces(request)]
    met_in = [each.met_in(snapshot) for each in conditions]
    read = attrgetter(*sorted({"shape"} | {each.reads for each in conditions}))
    #: by all that matters of trees but what is free a number, and that by where it is found
    numbers: dict[Hashable, int] = {}
    met: dict[Hashable, int] = {}
    kins: dict[Hashable, Kin] = {}
    shared: tuple[Provider, ...] = ()
    for number, tree in enumerate(trees):
        if number % _TREES == 0:
            budget.spend(_TREES)
        looked_at = read(tree)
        key: Hashable = met.get(looked_at)
        if key is None:
            budget.spend(1 + len(conditions) * len(tree.members) // 4)
            places, portions = asked.places(tree.shape), asked.portions(tree.shape)
            features = (places, portions, *[met_at(tree) for met_at in met_in])
            key = met[looked_at] = numbers.setdefault(features, len(numbers))
        if sharing.providers or named:
            if sharing.providers:
                shared = tuple(sharing.with_tree(tree.root.id)[0])
            in_named = tree.root.id if tree.root.id in named else None
            key = (key, in_named, *[each.id for each in shared])
        kin = kins.get(key)
        if kin is None:
            kin = kins[key] = Kin(tree, shared, asked)
        kin.of(tree).trees.append(tree)
    return [alike for kin in kins.values() for alike in kin.alike.values()]


def picker(slots: Sequence[int]) -> Callable[[tuple[int, ...]], Any]:
    """What is free at these slots, as a tuple."""
    if not slots:
        return lambda _: ()
    if len(slots) == 1:
        (slot,) = slots
        return lambda free: (free[slot],)
    return itemgetter(*slots)
