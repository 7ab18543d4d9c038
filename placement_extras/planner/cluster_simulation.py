"""A simulated cluster: guests, requests that find new places for them, and the free amounts of hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
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
    key_slots,
)


@dataclass(eq=False, frozen=True, slots=True)
class HostedConsumer:
    """A guest: a consumer with all its allocations, and the roots of its hosts.

    ``held`` has the allocations by provider id and class. ``request`` is the request for a new place; guests
    with equal requests share one object. Placement does not store the request with which the guest was made.
    So ``request`` asks for the allocated amounts, each class from one provider, and for no traits. If the
    guest has a class from several providers, ``request`` has a group for each of these providers, with all
    amounts that the guest has from this provider. The request excludes disabled hosts.
    """

    consumer: str
    consumer_type: str | None
    held: Mapping[Slot, int]
    hosts: frozenset[int]
    request: CandidatesRequest

    @property
    def total_amounts(self) -> dict[str, int]:
        """The sums of the allocations, by resource class."""
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
            # a consumer has a row for each inventory from which it has an allocation
            whose = each.consumer, each.consumer_type
            by_consumer.setdefault(whose, {})[each.provider_id, each.resource_class] = each.used
    requests: dict[object, CandidatesRequest] = {}
    guests = []
    for (consumer, kind), amounts in sorted(by_consumer.items(), key=lambda item: item[0][0]):
        budget.spend(len(amounts))
        asked = _asked_groups(amounts)
        # guests with equal requests share one object, because caches compare requests by identity
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
        # if a guest has a class from several providers, several groups have requested this class, such as one
        # group for each NUMA node
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
"""A tree, together with the sharing providers of other trees that it uses."""
Holders = Mapping[Slot, Mapping[HostedConsumer, int]]
"""For each slot, the guests that can be moved, each with the amount that it has from this slot."""
_NO_HOLDERS: Final[Holders] = MappingProxyType({})
_DeviceKind = tuple[Sequence[Slot], int]
"""The slots of equal devices, and the number of units that are free in each device."""
_AT_ONCE: Final = 16
"""Number of hosts between two checks of the budget."""


def _divide_units(kinds: Sequence[_DeviceKind], units: int, unit: int) -> Iterator[Way]:
    """Yield each way to take units from devices. Of ways that differ only in equal devices, yield one.

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
    """Yield the partitions of a number into at most ``length`` parts, of which none exceeds ``most``.

    The parts of each partition are in descending order.
    """
    if not number:
        yield ()
        return
    # if the largest part were below the mean, the other parts would be too small for the rest
    for part in range(min(number, most), -(-number // length) - 1, -1):
        for rest in _list_partitions(number - part, length - 1, part):
            yield (part, *rest)


class ClusterSimulation:
    """The free amounts of all hosts, which change when a search adds or removes guests.

    A slot is a pair of provider id and class. The ways of a request are the ways at empty hosts with empty
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
        #: whether any provider shares resources, so that a guest on one host can use resources of another
        #: host
        self.shares = bool(cloud.sharing)
        self._taken: dict[Slot, int] = {}
        #: for each host, by its root, the number of slots with a changed free amount
        self._touched: dict[int, int] = {}
        self._asking: dict[int, _RequestRoom] = {}
        self._cloud = cloud
        self._by_root = {tree.root.id: (tree, shared) for tree, shared in self.hosts}

    def is_coupled(self, found: FlavorFootprints, tree: HostTree) -> bool:
        """Return whether guests of a flavor at a host can take the same slots; see :class:`CloudHosts`."""
        return self._cloud.is_coupled(found, tree)

    def free(self, slot: Slot) -> int:
        """Return the free amount of a slot, which can be negative, or the usable amount of a pool."""
        if isinstance(slot, DevicePool):
            return slot.usable_amount({each: self.free(each) for each in slot.slots})
        provider_id, name = slot
        return self.snapshot.providers[provider_id].free(name) - self._taken.get(slot, 0)

    def drained_root(self, slots: Iterable[Slot]) -> Provider:
        """Return the root of a drained host that has at least one of these slots."""
        roots = (self.snapshot.providers[provider_id].root_id for provider_id, _ in slots)
        return self.snapshot.providers[next(root for root in roots if root not in self._by_root)]

    def take_amounts(self, amounts: Iterable[tuple[Slot, int]], times: int = 1) -> None:
        """Subtract the amounts of ``times`` equal guests from the free amounts. If -1, give one's back."""
        for slot, amount in amounts:
            # a slot with its initial free amount has no entry, so that unchanged hosts can be recognised
            before = self._taken.pop(slot, 0)
            after = before + times * amount
            if after:
                self._taken[slot] = after
            root = self.snapshot.providers[slot[0]].root_id
            changed = self._touched.get(root, 0) + bool(after) - bool(before)
            self._touched[root] = changed

    def each_host(self) -> Iterator[Host]:
        """Yield all hosts. Each host costs a step of the budget."""
        for number, host in enumerate(self.hosts):
            if number % _AT_ONCE == 0:
                self.budget.spend(_AT_ONCE)
            yield host

    def serves_request(self, request: CandidatesRequest, host: Host) -> bool:
        """Return whether a guest with this request fits at this host when the host is empty."""
        return bool(self._asking_of(request).finder.footprints_at(*host).ways)

    def ways_at(self, request: CandidatesRequest, host: Host) -> Sequence[Way]:
        """Return the ways to place a guest with this request at an empty host; equal devices form a pool."""
        return self._keyed_ways(self._asking_of(request).finder.footprints_at(*host), host[0])

    def room_at(
        self, request: CandidatesRequest, host: Host, holders: Holders = _NO_HOLDERS
    ) -> Iterator[Way]:
        """Yield the ways to place a guest with this request in the present free amounts of a host.

        Of ways that differ only in equal devices, only one is yielded.

        :param holders: the guests that can be moved, by slot. Devices are equal only if the same guests use
            them.
        """
        self.budget.spend()
        asking = self._asking_of(request)
        found = asking.finder.footprints_at(*host)
        # for an unchanged host, a formula decides without reading the free amount of each slot
        if not asking.may_fit(found, self._plain_free(found, host[0])):
            return
        for way in self._keyed_ways(found, host[0]):
            if all(self.free(slot) >= amount for slot, amount in way):
                yield from self._choose_devices(way, holders)

    def find_rooms(
        self, request: CandidatesRequest, holders: Holders = _NO_HOLDERS
    ) -> Iterator[tuple[Provider, Way]]:
        """Yield each place for one more guest on any host, as :meth:`room_at` does for one host.

        A place is the root of a host, together with the way to place the guest at this host.
        """
        for host in self.candidate_hosts(request):
            # all ways are found before the first one is tried, because a try changes free amounts
            for way in list(self.room_at(request, host, holders)):
                yield host[0].root, way

    def candidate_hosts(self, request: CandidatesRequest) -> Iterator[Host]:
        """Yield the hosts that can have room for the request. Hosts with changed amounts come first."""
        # the set of changed hosts is copied, because the caller tries places during the iteration
        touched = {root for root, slots in self._touched.items() if slots}
        for root in sorted(touched):
            if root in self._by_root:
                yield self._by_root[root]
        for host in self._asking_of(request).candidate_hosts(self):
            if host[0].root.id not in touched:
                yield host

    def _choose_devices(self, way: Way, holders: Holders) -> Iterator[Way]:
        """Replace each pool in a way by devices. Of choices that differ only in equal devices, yield one."""
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

        Devices of one pool are equal for this request, but can differ for other requests. Devices of one kind
        are equal for all requests, and stay equal after any moves.
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
        # devices that are partly in use come first, so that unused devices stay free
        return sorted(found, key=itemgetter(1))

    def _asking_of(self, request: CandidatesRequest) -> _RequestRoom:
        # requests are compared by identity, because a request contains mappings and has no hash
        found = self._asking.get(id(request))
        if found is None:
            found = self._asking[id(request)] = _RequestRoom(self.snapshot, request, self.budget)
        return found

    def _plain_free(self, found: FlavorFootprints, tree: HostTree) -> Free | None:
        """Return the free amounts of a tree, by slot.

        Return None if the simulation has changed them, or if the host uses or has sharing providers.
        """
        if self._touched.get(tree.root.id) or self.is_coupled(found, tree):
            return None
        return found.with_pools(tree.free)

    def _keyed_ways(self, found: FlavorFootprints, tree: HostTree) -> Sequence[Way]:
        key = key_slots(tree, found.pools)
        return [tuple([(key(slot), amount) for slot, amount in way]) for way in found.ways]


class _RequestRoom:
    """The request of a guest, and the hosts with room for the guest at the beginning of the simulation."""

    def __init__(self, snapshot: ModelSnapshot, request: CandidatesRequest, budget: SearchBudget) -> None:
        self.request = request
        self.finder = FootprintFinder(snapshot, request, budget)
        self._open: list[Host] = []
        self._left: Iterator[Host] | None = None

    def may_fit(self, found: FlavorFootprints, free: Free | None) -> bool:
        """Return False if a guest certainly does not fit. If ``free`` is None, free amounts are unknown."""
        if not found.ways or free is None or found.fit_formula is None:
            return bool(found.ways)
        return found.fit_formula(free) > 0

    def candidate_hosts(self, board: ClusterSimulation) -> Iterator[Host]:
        """Yield the hosts that could have room for the guest at the beginning of the simulation."""
        if self._left is None:
            self._left = self._look_for_room(board)
        number = 0
        while True:
            # the next host is only searched for when it is needed, because most guests find a place at one of
            # the first hosts
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
