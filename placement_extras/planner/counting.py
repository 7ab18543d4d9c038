"""How many guests of a flavor fit: in the whole cloud, without its worst host, and by aggregate."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from placement.model.provider import Provider
from placement.model.snapshot import ModelSnapshot
from placement.model.trees import HostTree
from placement.search.budget import SearchBudget
from placement.search.request import CandidatesRequest
from placement.search.roots import SharingProviders
from placement_extras.planner.coupling import CoupledHost, HostCoupling
from placement_extras.planner.packing import NONE, FitBounds, Free, pack, simple
from placement_extras.planner.stranding import ShortClasses, StrandedAmounts
from placement_extras.planner.ways import FlavorFootprints, FootprintFinder, Slot, Way

_TREES: Final = 64
"""How many trees are looked at between two looks at the budget."""


@dataclass(frozen=True, slots=True)
class FlavorCapacity:
    """How many guests of a flavor fit.

    ``hosts`` could serve it if nothing were used of them, nor of what shares with them; a guest fits on
    ``open_hosts`` of these. ``worst`` is the root of the host with which most is lost if it fails, and
    ``without_worst`` what fits then. ``by_aggregate`` has what fits on the hosts whose root is in each.
    """

    fit: FitBounds
    hosts: int
    open_hosts: int
    worst: Provider | None
    without_worst: FitBounds
    by_aggregate: Mapping[str, FitBounds]
    short: tuple[ShortClasses, ...]


class CloudHosts:
    """The hosts of a snapshot, to count on.

    :param avoided: ids of the roots of hosts that are not used, nor what they share.
    """

    def __init__(
        self, snapshot: ModelSnapshot, budget: SearchBudget, avoided: Collection[int] = frozenset()
    ) -> None:
        self.snapshot = snapshot
        self.budget = budget
        self._avoided = avoided
        sharing = SharingProviders(snapshot, budget)
        self.sharing = {each for each in sharing.providers if snapshot.providers[each].root_id not in avoided}
        self.hosts = list(self._hosts(sharing))

    def _hosts(self, sharing: SharingProviders) -> Iterator[tuple[HostTree, Sequence[Provider]]]:
        shared: Sequence[Provider] = ()
        for number, (root, tree) in enumerate(self.snapshot.whole_trees().items()):
            if number % _TREES == 0:
                self.budget.spend(_TREES)
            if root in self._avoided:
                continue
            if self.sharing:
                shared = [each for each in sharing.with_tree(root)[0] if each.id in self.sharing]
            yield tree, shared


def count(cloud: CloudHosts, request: CandidatesRequest) -> FlavorCapacity:
    """How many guests of a flavor fit if nothing else comes.

    :raises placement.search.budget.BudgetExhausted: it takes too long.
    """
    return _FlavorCount(cloud, request).run()


class _FlavorCount:
    """One flavor on its way through the hosts."""

    def __init__(self, cloud: CloudHosts, request: CandidatesRequest) -> None:
        self._cloud = cloud
        self._budget = cloud.budget
        self._finder = FootprintFinder(cloud.snapshot, request, cloud.budget)
        self._formulas: dict[FlavorFootprints, Callable[[Free], int] | None] = {}
        self._stranding = StrandedAmounts(cloud.budget)
        self._coupling = HostCoupling(self._finder, cloud.sharing, cloud.budget)
        self._coupled: list[CoupledHost] = []
        #: what is left of ways on hosts that are too small for some of them
        self._smaller: dict[tuple[FlavorFootprints, tuple[Way, ...]], FlavorFootprints] = {}
        self._full_hosts = self._open = 0

    def run(self) -> FlavorCapacity:
        alone: list[tuple[HostTree, int, int]] = []
        formulas = self._formulas
        for number, (tree, shared) in enumerate(self._cloud.hosts):
            if number % _TREES == 0:
                self._budget.spend(_TREES)
            ways = self._finder.at(tree, shared)
            if ways.coupled or self._shares(tree):
                self._couple(tree, shared)
                continue
            if not ways.ways:
                continue
            if ways not in formulas:
                formulas[ways] = simple(ways.ways)
            formula = formulas[ways]
            if formula is not None:
                fits = at_most = formula(tree.free)
            else:
                fit = pack(ways, tree.free, self._budget)
                fits, at_most = fit.fits, fit.at_most
            if at_most:
                alone.append((tree, fits, at_most))
            else:
                self._full(tree, ways, tree.free, tree.capacities)
        self._coupling.gather(self._coupled)
        single = FitBounds(sum([fits for _, fits, _ in alone]), sum([at_most for _, _, at_most in alone]))
        coupled = self._coupling.fit(self._coupled)
        left = [(single + fit, tree) for tree, fit in self._coupling.without_each()]
        if alone:
            tree, *most = max(alone, key=itemgetter(1))
            left.append((single - FitBounds(*most) + coupled, tree))
        fit = single + coupled
        worst = min(left, key=lambda each: (each[0].fits, each[1].root.id)) if fit.at_most else None
        return FlavorCapacity(
            fit=fit,
            hosts=self._open + len(alone) + self._full_hosts,
            open_hosts=self._open + len(alone),
            worst=worst[1].root if worst else None,
            without_worst=worst[0] if worst else NONE,
            by_aggregate=self._by_aggregate(alone),
            short=self._stranding.found(),
        )

    def _shares(self, tree: HostTree) -> bool:
        sharing = self._cloud.sharing
        return bool(sharing) and any(each.id in sharing for each in tree.members)

    def _couple(self, tree: HostTree, shared: Sequence[Provider]) -> None:
        host = self._coupling.host(tree, shared)
        self._coupled.append(host)
        if host.alone.at_most:
            self._open += 1
        elif host.ways.ways:
            capacities = {
                (each.id, name): inventory.capacity
                for each in (*tree.members, *shared)
                for name, inventory in each.inventories.items()
            }
            self._full(tree, host.ways, host.free, capacities, {each.id for each in host.shared})

    def _full(
        self,
        tree: HostTree,
        ways: FlavorFootprints,
        free: Free,
        capacities: Mapping[Slot, int] | Sequence[int],
        shared: Collection[int] = frozenset(),
    ) -> None:
        """Note a host where none fits, if one did with nothing used.

        :param ways: those of all hosts of its shape, so that the host may be too small for some.
        """
        self._budget.spend(1 + len(ways.ways) // 4)
        kept = ways.within(capacities)
        if not kept:
            return
        if len(kept) < len(ways.ways):
            key = ways, kept
            if key not in self._smaller:
                self._smaller[key] = ways.only(kept)
            ways = self._smaller[key]
        self._full_hosts += 1
        self._stranding.add(tree, ways, free, shared)

    def _by_aggregate(self, alone: Sequence[tuple[HostTree, int, int]]) -> dict[str, FitBounds]:
        sums: dict[str, list[int]] = {}
        for tree, fits, at_most in alone:
            for aggregate in tree.root.aggregates:
                known = sums.setdefault(aggregate, [0, 0])
                known[0] += fits
                known[1] += at_most
        found = {aggregate: FitBounds(*known) for aggregate, known in sums.items()}
        coupled: dict[str, list[CoupledHost]] = {}
        for host in self._coupled:
            for aggregate in host.tree.root.aggregates:
                coupled.setdefault(aggregate, []).append(host)
        for aggregate, hosts in coupled.items():
            found[aggregate] = found.get(aggregate, NONE) + self._coupling.fit(hosts)
        return {aggregate: fit for aggregate, fit in sorted(found.items()) if fit.at_most}
