"""Finds new hosts for windows that move.

In a full cloud, most searches for a new host fail. After a failure, a window with at least the same amounts
and times finds no new host either. So the search remembers failures, and tries such a window only on the host
that was left out of the failed search: the former host of the failed window.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree
from placement.search.budget import SearchBudget
from placement.search.claims.host_rooms import NO_SKYLINES, Skylines
from placement.store.time_profile import TimedAmount, TimeWindow
from placement.store.window_moves import ByProvider, WindowMove

Taken = Counter[tuple[int, str]]
"""Amounts that earlier moves of the same search take, by provider id and by resource class."""


@dataclass(frozen=True, slots=True)
class WindowFootprint:
    """The amounts of a window by position of the provider and by class, and the equivalent hosts."""

    amounts: Mapping[tuple[int, str], int]
    window: TimeWindow
    roots: Sequence[int]

    def needs_less(self, other: WindowFootprint) -> bool:
        """Return whether this window fits on each host on which the other window fits."""
        return (
            # the index of equivalent hosts has one object for all hosts of a kind
            self.roots is other.roots
            and other.window.starts_at <= self.window.starts_at
            and self.window.ends_at <= other.window.ends_at
            and all(used <= other.amounts.get(key, 0) for key, used in self.amounts.items())
        )


class MoveTargets:
    """Finds equivalent hosts with room for windows, in one state of the read model."""

    def __init__(
        self, snapshot: ModelSnapshot, skylines: Skylines, budget: SearchBudget, rng: random.Random
    ) -> None:
        self._snapshot = snapshot
        self._trees = snapshot.whole_trees()
        self._hosts = snapshot.equivalent_hosts()
        self._skylines = skylines
        self._budget = budget
        self._rng = rng
        #: footprints without a new host, each with the root of its former host
        self._failed: list[tuple[WindowFootprint, int]] = []

    def find_move(
        self, tree: HostTree, amounts: Sequence[TimedAmount], taken: Taken, held: ByProvider
    ) -> WindowMove | None:
        """Return a move of a window from a tree to a new host; add the moved amounts to ``taken``.

        :param amounts: the amounts of the window in this tree, which move together.
        :param held: the amounts of the window at all providers. The new host has none of them, because the
            client perhaps needs different hosts.
        """
        positions = {each.uuid: at for at, each in enumerate(tree.members)}
        elsewhere = {provider: each for provider, each in held.items() if provider not in positions}
        avoided = {tree.root.id}.union(
            provider.root_id for each in elsewhere if (provider := self._snapshot.get(each)) is not None
        )
        footprint = WindowFootprint(
            {(positions[each.provider], each.resource_class): each.used for each in amounts},
            amounts[0].window,
            self._hosts.roots_like(tree),
        )
        for target in self._targets_of(footprint, avoided):
            wanted = [(target.members[positions[each.provider]], each) for each in amounts]
            if all(self._has_room(provider, each, taken) for provider, each in wanted):
                moved = defaultdict[str, dict[str, int]](dict)
                for provider, each in wanted:
                    taken[provider.id, each.resource_class] += each.used
                    moved[provider.uuid][each.resource_class] = each.used
                described = {each.id: each.described_seq for each in target.members}
                after = elsewhere | moved
                return WindowMove(amounts[0].consumer, amounts[0].window, held, after, described)
        # beside the amounts of other moves, or without some other hosts, a failure says nothing about the
        # window alone
        if not taken and len(avoided) == 1:
            self._failed.append((footprint, tree.root.id))
        return None

    def _targets_of(self, footprint: WindowFootprint, avoided: Set[int]) -> Iterator[HostTree]:
        self._budget.spend(len(self._failed))
        left_out = {root for failed, root in self._failed if failed.needs_less(footprint)}
        roots = footprint.roots
        if left_out:
            # each failed search has left out one host, and two of these searches leave out no common host
            roots = [each for each in left_out if len(left_out) == 1 and each in roots]
        first = self._rng.randrange(len(roots)) if roots else 0
        for number in range(len(roots)):
            self._budget.spend()
            root = roots[(first + number) % len(roots)]
            if root not in avoided:
                yield self._trees[root]

    def _has_room(self, provider: Provider, amount: TimedAmount, taken: Taken) -> bool:
        name = amount.resource_class
        used = provider.used.get(name, 0) + taken[provider.id, name]
        skyline = self._skylines.get(provider.id, NO_SKYLINES).get(name)
        if skyline is not None:
            used += skyline.largest_sum(amount.window) - skyline.counted
        # min_unit, max_unit and step_size are those of the former host. They apply to each claim of a window
        # alone, and not to the sum of its claims on a host
        return used + amount.used <= provider.inventories[name].capacity
