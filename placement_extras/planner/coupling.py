"""Hosts that share providers: what fits on one of them takes from the others."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from placement.model.provider import Provider
from placement.model.trees import HostTree
from placement.search.budget import SearchBudget
from placement_extras.planner.packing import NONE, FitBounds, pack, packer
from placement_extras.planner.ways import FlavorFootprints, FootprintFinder, Slot

MAX_RETRIED: Final = 32
"""Of groups with no more hosts than this it is tried what fits without each; of others there is a bound."""


@dataclass(eq=False, slots=True)
class CoupledHost:
    """A host that shares with others, and its ways, whose slots are provider ids and classes.

    ``free`` is what is free in these, ``alone`` what fits there if nothing is used by guests of other hosts.
    ``offered`` are the slots that it shares.
    """

    tree: HostTree
    shared: Sequence[Provider]
    ways: FlavorFootprints
    free: dict[Slot, int]
    alone: FitBounds
    offered: frozenset[Slot]


class HostCoupling:
    """All hosts that share, and what fits on some of them.

    :param sharing: the ids of providers that share.
    """

    def __init__(self, finder: FootprintFinder, sharing: Collection[int], budget: SearchBudget) -> None:
        self._finder = finder
        self._sharing = sharing
        self._budget = budget
        self._groups: list[list[CoupledHost]] = []
        self._group_of: dict[CoupledHost, int] = {}

    def host(self, tree: HostTree, shared: Sequence[Provider]) -> CoupledHost:
        """A host with what shares with it.

        :raises placement.search.budget.BudgetExhausted: it takes too long.
        """
        names = list(tree.kind.shape.slots)
        found = self._finder.at(tree, shared)

        def slot_of(slot: Slot) -> Slot:
            if isinstance(slot, int):
                at, name = names[slot]
                return tree.members[at].id, name
            return slot

        ways = FlavorFootprints(
            tuple([tuple([(slot_of(slot), amount) for slot, amount in way]) for way in found.ways]),
            {slot_of(slot): name for slot, name in found.classes.items()},
            coupled=True,
        )
        free: dict[Slot, int] = {
            (each.id, name): each.free(name)
            for each in (*tree.members, *shared)
            for name in each.inventories
            if (each.id, name) in ways.classes
        }
        offered = {
            (each.id, name) for each in tree.members if each.id in self._sharing for name in each.inventories
        }
        return CoupledHost(tree, shared, ways, free, packer(ways, self._budget)(free), frozenset(offered))

    def gather(self, hosts: Sequence[CoupledHost]) -> None:
        """Look at these hosts, all that share."""
        leader: dict[int, int] = {}

        def find(root: int) -> int:
            while (above := leader.setdefault(root, root)) != root:
                leader[root] = leader[above]
                root = above
            return root

        for host in hosts:
            # with whom it shares, not only what: a group that takes nothing may be served by others, too
            self._budget.spend(1 + len(host.shared) // 4)
            for other in host.shared:
                leader[find(other.root_id)] = find(host.tree.root.id)
        groups: dict[int, list[CoupledHost]] = {}
        for host in hosts:
            groups.setdefault(find(host.tree.root.id), []).append(host)
        self._groups = list(groups.values())
        self._group_of = {each: number for number, group in enumerate(self._groups) for each in group}

    def fit(self, hosts: Collection[CoupledHost]) -> FitBounds:
        """How many guests fit on these of the hosts."""
        by_group: dict[int, list[CoupledHost]] = {}
        for host in hosts:
            by_group.setdefault(self._group_of[host], []).append(host)
        return sum([self._fit(group) for group in by_group.values()], NONE)

    def without_each(self) -> Iterator[tuple[HostTree, FitBounds]]:
        """For each host how many guests fit on the others, while its providers serve nobody."""
        fits = [self._fit(group) for group in self._groups]
        whole = sum(fits, NONE)
        for group, fit in zip(self._groups, fits, strict=True):
            for failed in group:
                if len(group) > MAX_RETRIED and not failed.offered:  # no more than its own are lost
                    left = FitBounds(fit.fits - min(fit.fits, failed.alone.at_most), fit.at_most)
                else:
                    left = self._fit([self._after(each, failed) for each in group if each is not failed])
                yield failed.tree, whole - fit + left

    def _after(self, host: CoupledHost, failed: CoupledHost) -> CoupledHost:
        """The host once another one failed."""
        if not failed.offered:
            return host
        shared = [each for each in host.shared if each.root_id != failed.tree.root.id]
        return host if len(shared) == len(host.shared) else self.host(host.tree, shared)

    def _fit(self, hosts: Sequence[CoupledHost]) -> FitBounds:
        ways = dict.fromkeys(way for each in hosts for way in each.ways.ways)
        classes = {slot: name for each in hosts for slot, name in each.ways.classes.items()}
        free = {slot: left for each in hosts for slot, left in each.free.items()}
        at_most = sum([each.alone.at_most for each in hosts])
        return pack(FlavorFootprints(tuple(ways), classes, coupled=True), free, self._budget, at_most)
