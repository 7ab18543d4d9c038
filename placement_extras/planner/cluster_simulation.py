"""A simulated cluster, with guests, their requests for new places, and the free amounts of hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from types import MappingProxyType
from typing import Final

from placement.read_model.provider import DISABLED, SHARES, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree
from placement.search.budget import SearchBudget, yielding_slices
from placement.search.request import CandidatesRequest, RequestGroup
from placement.store.groups import hosts_of
from placement.store.holders import HeldAmount
from placement_extras.planner.capacity import CloudHosts
from placement_extras.planner.packing import (
    DevicePool,
    FlavorFootprints,
    FootprintFinder,
    Free,
    Slot,
    Way,
    fit_formula,
    key_slots,
)


@dataclass(eq=False, frozen=True, slots=True)
class HostedConsumer:
    """A consumer with all its allocations, by provider id and class, and the roots of its hosts.

    ``request`` is the request for a new place; guests with equal requests share one object. Placement does
    not store the original request of the guest. So ``request`` asks for the held amounts, each class from one
    provider, and for no traits. If the guest holds a class at several providers, ``request`` has a group for
    each of these providers, with all amounts that the guest holds there. The request excludes disabled hosts.
    """

    consumer: str
    consumer_type: str | None
    held: Mapping[Slot, int]
    hosts: frozenset[int]
    request: CandidatesRequest

    @property
    def total_amounts(self) -> dict[str, int]:
        """The sums of the allocations, by class."""
        found: dict[str, int] = {}
        for (_, name), amount in self.held.items():
            found[name] = found.get(name, 0) + amount
        return found


def guests_of(
    snapshot: ModelSnapshot, held: Sequence[HeldAmount], budget: SearchBudget
) -> list[HostedConsumer]:
    """Return the guests with these allocations, in the order of their uuids.

    An allocation is left out if the snapshot has no inventory for it.
    """
    by_consumer: dict[tuple[str, str | None], dict[Slot, int]] = {}
    for each in chain.from_iterable(yielding_slices(held, budget)):
        provider = snapshot.providers.get(each.provider_id)
        if provider is not None and each.resource_class in provider.inventories:
            # a consumer has a row for each inventory that it holds an amount of
            whose = each.consumer, each.consumer_type
            by_consumer.setdefault(whose, {})[each.provider_id, each.resource_class] = each.used
    requests: dict[object, CandidatesRequest] = {}
    guests = []
    for (consumer, kind), amounts in sorted(by_consumer.items(), key=lambda item: item[0][0]):
        budget.spend(len(amounts))
        asked = _asked_groups(amounts)
        # guests with equal requests share one object, because caches use its identity
        if asked not in requests:
            requests[asked] = _make_request(asked)
        taken = [snapshot.providers[provider_id] for provider_id, _ in amounts]
        hosts = hosts_of((each.root_id, SHARES in each.traits) for each in taken)
        guests.append(HostedConsumer(consumer, kind, amounts, hosts, requests[asked]))
    return guests


_Amounts = tuple[tuple[str, int], ...]


def _asked_groups(held: Mapping[Slot, int]) -> tuple[_Amounts, tuple[_Amounts, ...]]:
    """Return the requested amounts of the group without a suffix, and of each group with a suffix."""
    providers = Counter(name for _, name in held)
    by_provider: dict[int, dict[str, int]] = {}
    for (provider_id, name), amount in held.items():
        by_provider.setdefault(provider_id, {})[name] = amount
    common: dict[str, int] = {}
    apart = []
    for amounts in by_provider.values():
        # a class that is held at several providers was requested by several groups, such as one for each NUMA
        # node
        if any(providers[name] > 1 for name in amounts):
            apart.append(tuple(sorted(amounts.items())))
        else:
            common |= amounts
    return tuple(sorted(common.items())), tuple(sorted(apart))


def _make_request(asked: tuple[_Amounts, tuple[_Amounts, ...]]) -> CandidatesRequest:
    common, apart = asked
    groups = [RequestGroup("", dict(common))] if common else []
    groups += [RequestGroup(f"_{number}", dict(amounts)) for number, amounts in enumerate(apart)]
    return CandidatesRequest(tuple(groups), group_policy="none", root_forbidden=frozenset((DISABLED,)))


Host = tuple[HostTree, Sequence[Provider]]
"""A tree, together with its sharing providers in other trees."""
Holders = Mapping[Slot, Mapping[HostedConsumer, int]]
"""For each slot, the guests that may move, with the amount that each guest has allocated there."""
_NO_HOLDERS: Final[Holders] = MappingProxyType({})
_DeviceKind = tuple[Sequence[Slot], int]
"""The slots of equal devices, and the number of units that are free in each device."""
_AT_ONCE: Final = 16
"""Number of hosts between two checks of the budget."""


def _divide_units(kinds: Sequence[_DeviceKind], units: int, unit: int) -> Iterator[Way]:
    """Yield each way to take units from devices.

    Ways that differ only by an exchange of equal devices count as one way.

    :param units: the number of units to take in total.
    :param unit: the amount of the resource class in one unit.
    """
    if not kinds:
        if not units:
            yield ()
        return
    (slots, most), *rest = kinds
    least = units - sum([len(others) * each for others, each in rest])
    for number in range(min(units, len(slots) * most), max(0, least) - 1, -1):
        for parts in _list_partitions(number, len(slots), most):
            some = tuple([(slot, part * unit) for slot, part in zip(slots, parts, strict=False)])
            for others in _divide_units(rest, units - number, unit):
                yield (*some, *others)


def _list_partitions(number: int, length: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yield partitions of a number (at most ``length * most``) into parts, the largest first."""
    if not number:
        yield ()
        return
    # a largest part below the mean would leave too much for the other parts
    for part in range(min(number, most), -(-number // length) - 1, -1):
        for rest in _list_partitions(number - part, length - 1, part):
            yield (part, *rest)


class ClusterSimulation:
    """The free amounts of all hosts, which change when the simulation adds or removes guests.

    A slot is a pair of provider id and class. The ways of a request are computed for empty hosts and empty
    sharing providers.

    :param avoided: ids of the roots of hosts to leave out. Sharing providers of such a host are also left out
        for other hosts.
    """

    def __init__(
        self, snapshot: ModelSnapshot, budget: SearchBudget, avoided: Collection[int] = frozenset()
    ) -> None:
        self.snapshot = snapshot
        self.budget = budget
        cloud = CloudHosts(snapshot, budget, avoided)
        self.hosts: Sequence[Host] = cloud.hosts
        #: whether any provider shares resources, so that a guest on one host may use resources of another
        #: host
        self.shares = bool(cloud.sharing)
        self._sharing = cloud.sharing
        self._taken: dict[Slot, int] = {}
        #: by root, the number of slots with a changed free amount
        self._touched: dict[int, int] = {}
        self._asking: dict[int, _RequestRoom] = {}
        self._by_root = {tree.root.id: (tree, shared) for tree, shared in self.hosts}

    def free(self, slot: Slot) -> int:
        """Return the free amount of a slot, or the usable amount of a pool; negative if overused."""
        if isinstance(slot, DevicePool):
            return slot.usable_amount({each: self.free(each) for each in slot.slots})
        provider_id, name = slot
        return self.snapshot.providers[provider_id].free(name) - self._taken.get(slot, 0)

    def drained_root(self, slots: Iterable[Slot]) -> Provider:
        """Return the root of the drained host that has one of these slots."""
        roots = (self.snapshot.providers[provider_id].root_id for provider_id, _ in slots)
        return self.snapshot.providers[next(root for root in roots if root not in self._by_root)]

    def take_amounts(self, amounts: Iterable[tuple[Slot, int]], times: int = 1) -> None:
        """Subtract what ``times`` guests take from the host's free amounts; -1 gives one guest's back."""
        for slot, amount in amounts:
            # a slot with its initial amount gets no entry, so that unchanged hosts are recognised
            before = self._taken.pop(slot, 0)
            after = before + times * amount
            if after:
                self._taken[slot] = after
            root = self.snapshot.providers[slot[0]].root_id
            changed = self._touched.get(root, 0) + bool(after) - bool(before)
            self._touched[root] = changed

    def each_host(self) -> Iterator[Host]:
        """Yield all hosts. Each host costs a step of the search's budget."""
        for number, host in enumerate(self.hosts):
            if number % _AT_ONCE == 0:
                self.budget.spend(_AT_ONCE)
            yield host

    def serves_request(self, request: CandidatesRequest, host: Host) -> bool:
        """Return whether a guest with this request has a place at a host if the host is empty."""
        return bool(self._asking_of(request).finder.footprints_at(*host).ways)

    def ways_at(self, request: CandidatesRequest, host: Host) -> Sequence[Way]:
        """Return all ways to place a guest of this request at an empty host; equal devices form one pool."""
        return self._keyed_ways(self._asking_of(request).finder.footprints_at(*host), host[0])

    def room_at(
        self, request: CandidatesRequest, host: Host, holders: Holders = _NO_HOLDERS
    ) -> Iterator[Way]:
        """Yield the ways to place a guest with this request in the amounts that are currently free at a host.

        If several ways differ only in equal devices, only one of them is yielded.

        :param holders: the guests that may move. Two devices are equal only if the same guests hold them.
        """
        self.budget.spend()
        asking = self._asking_of(request)
        found = asking.finder.footprints_at(*host)
        # for an unchanged host, a formula over the tree answers without reading each slot
        if not asking.may_fit(found, self._plain_free(found, host[0])):
            return
        for way in self._keyed_ways(found, host[0]):
            if all(self.free(slot) >= amount for slot, amount in way):
                yield from self._choose_devices(way, holders)

    def find_rooms(
        self, request: CandidatesRequest, holders: Holders = _NO_HOLDERS
    ) -> Iterator[tuple[Provider, Way]]:
        """Yield each place with room for one more guest, like :meth:`room_at` for all hosts.

        A place is the root of a host, together with the way that the guest would take at this host.
        """
        for host in self.candidate_hosts(request):
            yield from self._rooms_at(request, host, holders)

    def candidate_hosts(self, request: CandidatesRequest) -> Iterator[Host]:
        """Yield the hosts that may have room for the request. Hosts with changed amounts come first."""
        # the hosts are copied, because places are tried during the iteration over these hosts
        touched = {root for root, slots in self._touched.items() if slots}
        for root in sorted(touched):
            if root in self._by_root:
                yield self._by_root[root]
        for host in self._asking_of(request).candidate_hosts(self):
            if host[0].root.id not in touched:
                yield host

    def _rooms_at(
        self, request: CandidatesRequest, host: Host, holders: Holders
    ) -> Iterator[tuple[Provider, Way]]:
        # the list is complete before the first way is tried, because a trial changes free amounts
        for way in list(self.room_at(request, host, holders)):
            yield host[0].root, way

    def _choose_devices(self, way: Way, holders: Holders) -> Iterator[Way]:
        """Replace each pool in a way by devices; yield one way for each choice of devices that matters."""
        self.budget.spend(1 + len(way))
        if not way:
            yield ()
            return
        (slot, amount), *rest = way
        chosen: Iterable[Way] = (((slot, amount),),)
        if isinstance(slot, DevicePool):
            chosen = _divide_units(self._kinds_of_devices(slot, holders), amount // slot.unit, slot.unit)
        for some in chosen:
            for others in self._choose_devices(tuple(rest), holders):
                yield (*some, *others)

    def _kinds_of_devices(self, pool: DevicePool, holders: Holders) -> list[_DeviceKind]:
        """Return the devices with free units, grouped by kind; kinds with the fewest free units come first.

        Devices of one pool are equal for this request, but may differ for other requests. Devices of one
        kind are equal for all requests, now and after any moves.
        """
        kinds: dict[Hashable, list[Slot]] = {}
        self.budget.spend(len(pool.slots))
        for slot in pool.slots:
            units = self.free(slot) // pool.unit
            if units > 0:
                device = self.snapshot.providers[slot[0]]
                inventories = frozenset(
                    [(name, each, self.free((device.id, name))) for name, each in device.inventories.items()]
                )
                held = frozenset(
                    [
                        (name, guest, amount)
                        for name in device.inventories
                        for guest, amount in holders.get((device.id, name), {}).items()
                    ]
                )
                key = units, device.traits, device.aggregates, inventories, held
                kinds.setdefault(key, []).append(slot)
        found = [(slots, self.free(slots[0]) // pool.unit) for slots in kinds.values()]
        # devices in use come first, so that whole devices stay free
        return sorted(found, key=itemgetter(1))

    def _asking_of(self, request: CandidatesRequest) -> _RequestRoom:
        # requests are compared by identity, because a request contains mappings and has no hash
        found = self._asking.get(id(request))
        if found is None:
            found = self._asking[id(request)] = _RequestRoom(self.snapshot, request, self.budget)
        return found

    def _plain_free(self, found: FlavorFootprints, tree: HostTree) -> Free | None:
        """Return free amounts by slot; None if the simulation changed them, or sharing providers serve."""
        if self._touched.get(tree.root.id) or self.is_coupled(found, tree):
            return None
        return found.with_pools(tree.free)

    def is_coupled(self, found: FlavorFootprints, tree: HostTree) -> bool:
        """Return whether guests of other hosts may use the sharing providers of this host."""
        return found.coupled or (self.shares and any(each.id in self._sharing for each in tree.members))

    def _keyed_ways(self, found: FlavorFootprints, tree: HostTree) -> Sequence[Way]:
        key = key_slots(tree, found.pools)
        return [tuple([(key(slot), amount) for slot, amount in way]) for way in found.ways]


class _RequestRoom:
    """The request of a guest, and the hosts with room for the guest at the beginning of the simulation."""

    def __init__(self, snapshot: ModelSnapshot, request: CandidatesRequest, budget: SearchBudget) -> None:
        self.request = request
        self.finder = FootprintFinder(snapshot, request, budget, pooled=True)
        self._formulas: dict[FlavorFootprints, Callable[[Free], int] | None] = {}
        self._open: list[Host] = []
        self._left: Iterator[Host] | None = None

    def may_fit(self, found: FlavorFootprints, free: Free | None) -> bool:
        """Return whether a guest may fit; it may if the free amounts are unknown (None)."""
        if not found.ways or free is None:
            return bool(found.ways)
        if found not in self._formulas:
            self._formulas[found] = fit_formula(found.ways)
        formula = self._formulas[found]
        return formula is None or formula(free) > 0

    def candidate_hosts(self, board: ClusterSimulation) -> Iterator[Host]:
        """Yield the hosts that may have had room for the guest at the beginning."""
        if self._left is None:
            self._left = self._look_for_room(board)
        number = 0
        while True:
            # hosts are searched on demand and kept, because most guests find a place at one of the first
            # hosts
            if number == len(self._open):
                host = next(self._left, None)
                if host is None:
                    return
                self._open.append(host)
            yield self._open[number]
            number += 1

    def _look_for_room(self, board: ClusterSimulation) -> Iterator[Host]:
        for host in board.each_host():
            found = self.finder.footprints_at(*host)
            if self.may_fit(
                found, None if board.is_coupled(found, host[0]) else found.with_pools(host[0].free)
            ):
                yield host
