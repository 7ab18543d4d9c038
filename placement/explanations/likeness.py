"""Hosts among which nothing that a request asks for tells a difference: they are looked at once."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter, le
from typing import Any, Final

from placement.candidates.budget import Budget
from placement.candidates.conditions import Condition, InTree
from placement.candidates.needs import needs_of
from placement.candidates.request import CandidatesRequest
from placement.candidates.roots import Sharing
from placement.candidates.rules import Rules
from placement.explanations.clauses import pieces
from placement.model.provider import Provider
from placement.model.snapshot import Snapshot
from placement.model.trees import Tree

_TREES: Final = 64
"""How many trees are looked at between two looks at the budget."""


class Kin:
    """Trees that differ in what is free, at most: all else that a request may look at is the same.

    Of what is free it matters whether it is enough for each amount; of classes that several parts of the
    request ask for also how much there is, up to all that they ask for.

    :param tree: any of them.
    :param shared: what shares with each.
    """

    __slots__ = ("_amounts", "_contested", "_pick", "alike", "shared")

    def __init__(
        self, tree: Tree, shared: tuple[Provider, ...], rules: Rules, amounts: Sequence[tuple[str, int]]
    ) -> None:
        having = tree.kind.shape.having
        asked = [(slot, amount) for name, amount in amounts for _, slot in having.get(name, ())]
        self.shared = shared
        #: by what matters of what is free
        self.alike: dict[Hashable, Alike] = {}
        self._pick = picker([slot for slot, _ in asked])
        self._amounts = tuple([amount for _, amount in asked])
        self._contested = [
            (slot, sum_) for name, sum_ in rules.contested.items() for _, slot in having.get(name, ())
        ]

    def of(self, tree: Tree) -> "Alike":
        """Those of the trees that are like this one."""
        free = tree.free
        key: Hashable = tuple(map(le, self._amounts, self._pick(free)))
        if self._contested:
            key = (key, *[min(max(free[slot], 0), asked) for slot, asked in self._contested])
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
    rules, amounts = _asked(snapshot, request, budget)
    kins: dict[Kin, Kin] = {}
    for group in groups:
        budget.spend(1 + len(group.trees) // 8)
        kin = kins.get(group.kin)
        if kin is None:
            kin = kins[group.kin] = Kin(group.tree, group.shared, rules, amounts)
        for tree in group.trees:
            kin.of(tree).trees.append(tree)
    return [alike for kin in kins.values() for alike in kin.alike.values()]


def _asked(
    snapshot: Snapshot, request: CandidatesRequest, budget: Budget
) -> tuple[Rules, list[tuple[str, int]]]:
    """What a request says about its parts together, and all amounts of it."""
    needs = needs_of(request)
    amounts = dict.fromkeys(asked for need in needs for asked in need.resources)
    return Rules(snapshot, request, needs, budget), list(amounts)


def sort_out(
    snapshot: Snapshot, request: CandidatesRequest, trees: Iterable[Tree], budget: Budget
) -> list[Alike]:
    """These trees of the snapshot, those alike together.

    :raises placement.candidates.budget.Exhausted: it takes too long.
    """
    rules, amounts = _asked(snapshot, request, budget)
    sharing = Sharing(snapshot, budget)
    named = {
        member.root_id
        for condition in rules.conditions
        if isinstance(condition, InTree) and (member := snapshot.get(condition.uuid))
    }
    conditions: list[tuple[Condition, dict[Hashable, bool]]] = [(each, {}) for each in pieces(request)]
    read = attrgetter(*sorted({"shape"} | {each.reads for each, _ in conditions}))
    #: by what conditions look at of trees where these meet them
    met: dict[Hashable, Hashable] = {}
    kins: dict[Hashable, Kin] = {}
    shared: tuple[Provider, ...] = ()
    for number, tree in enumerate(trees):
        if number % _TREES == 0:
            budget.spend(_TREES)
        looked_at = read(tree)
        key = met.get(looked_at)
        if key is None:
            budget.spend(1 + len(conditions) * len(tree.members) // 4)
            key = (tree.shape, *[each.met_at(tree, snapshot, known) for each, known in conditions])
            met[looked_at] = key
        if sharing.providers or named:
            if sharing.providers:
                shared = tuple(sharing.with_tree(tree.root.id)[0])
            in_named = tree.root.id if tree.root.id in named else None
            key = (key, in_named, *[each.id for each in shared])
        kin = kins.get(key)
        if kin is None:
            kin = kins[key] = Kin(tree, shared, rules, amounts)
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
