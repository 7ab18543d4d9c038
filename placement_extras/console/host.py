"""Computes the page of a host, or of a part of a host: providers, consumers, and positions of guests.

The picture of consumers has one bar for each inventory, and each bar has a part for each consumer. The parts
show amounts, because Placement does not know single CPUs. The *position* of a guest consists of its CPUs and
its cache ways. Agents with the option ``[compute] report_positions`` write the positions of guests into
attributes. The service never sends a request to an agent, because it does not know the agents' addresses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from placement.read_model.provider import SHARES, Inventory, Provider, in_order
from placement.read_model.snapshot import ModelSnapshot
from placement.store.holders import AllocationHolder
from placement_extras.console import fleet, page_request
from placement_extras.console.fleet import (
    AgentHeartbeat,
    ClassAmounts,
    HostCondition,
    class_rank,
    natural_order,
    state_of,
)
from placement_extras.console.page_request import ListPage

_MAX_DEPTH: Final = 6
"""Maximum number of nested levels of providers on a page. The page shows all providers further below on one
level.
"""
PER_PAGE: Final = 200
"""Maximum number of providers that a page shows below its main provider. Ancestors of the shown providers are
added, and do not count.
"""


@dataclass(frozen=True, slots=True)
class InventoryStock:
    """One inventory and its usage."""

    resource_class: str
    inventory: Inventory
    used: int

    @property
    def amounts(self) -> ClassAmounts:
        """The capacity and the usage of the inventory."""
        return ClassAmounts(self.inventory.capacity, self.used)


@dataclass(frozen=True, slots=True)
class ProviderNodeView:
    """A provider with its inventories, traits and aggregates, and the providers below it."""

    provider: Provider
    stocks: tuple[InventoryStock, ...]
    traits: tuple[str, ...]
    aggregates: tuple[str, ...]
    children: tuple[ProviderNodeView, ...]


@dataclass(frozen=True, slots=True)
class HostPage:
    """A provider with all providers below it.

    ``above`` has the ancestors of the provider, the root first. ``amounts`` has, for each resource class, the
    capacity and the usage of the provider and all providers below it, added up. ``sharing`` has the providers
    outside the tree that share resources with the host. For a very large tree, ``node`` has only the
    providers of the shown ``part`` and their ancestors.
    """

    node: ProviderNodeView
    root: Provider
    above: tuple[Provider, ...]
    state: HostCondition
    amounts: Mapping[str, ClassAmounts]
    providers: int
    part: ListPage[Provider]
    sharing: tuple[Provider, ...]
    members: tuple[str, ...]
    heartbeat: AgentHeartbeat | None
    broken: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerHolding:
    """The allocations of one consumer; each has a provider, a resource class and an amount."""

    consumer: str
    consumer_type: str | None
    project_id: str
    amounts: tuple[tuple[Provider, str, int], ...]


def make_page(snapshot: ModelSnapshot, provider: Provider, number: int = 1, now: float = 0.0) -> HostPage:
    """Return the page of a provider.

    :param number: the number of the page, from 1 on. The providers of a large tree fill several pages.
    :param now: the current time, in seconds since 1970.
    """
    tree = snapshot.whole_trees()[provider.root_id]
    children: dict[int, list[Provider]] = {}
    for each in tree.members:
        if each.parent_id is not None:
            children.setdefault(each.parent_id, []).append(each)
    for some in children.values():
        some.sort(key=lambda each: natural_order(each.name))
    members = list(_with_descendants(provider, children))
    part = page_request.cut_page(members[1:], number, PER_PAGE)
    # the ancestors of the shown providers are added, so that the tree has no gaps
    shown = {each.id for one in part.rows for each in snapshot.lineage_of(one)}
    sums: dict[str, list[int]] = {}
    for each in members:
        for name, inventory in each.inventories.items():
            found = sums.setdefault(name, [0, 0])
            # the reserved amount can exceed the total, and the capacity is then negative
            found[0] += max(0, inventory.capacity)
            found[1] += each.used.get(name, 0)
    # this list starts at the root and ends with the parent of the provider
    upwards = tuple(snapshot.lineage_of(provider))[:0:-1]
    return HostPage(
        node=_node_view(provider, children, shown.__contains__, _MAX_DEPTH),
        root=tree.root,
        above=upwards,
        state=state_of(tree, now),
        amounts={name: ClassAmounts(*sums[name]) for name in sorted(sums, key=class_order)},
        providers=len(members),
        part=part,
        sharing=tuple(_sharing_providers(snapshot, tree.all_aggregates, tree.root.id)),
        members=tuple([each.uuid for each in members]),
        heartbeat=fleet.last_heartbeat(tree.members),
        broken=fleet.broken_promises(tree.members),
    )


def _with_descendants(provider: Provider, children: Mapping[int, Sequence[Provider]]) -> Iterable[Provider]:
    """Return a provider and all providers below it, level by level."""
    found = [provider]
    # the list grows while it is read, so that all levels are visited
    for each in found:
        found.extend(children.get(each.id, ()))
    return found


def _node_view(
    provider: Provider,
    children: Mapping[int, Sequence[Provider]],
    is_shown: Callable[[int], bool],
    depth: int,
) -> ProviderNodeView:
    if depth:
        below = [
            _node_view(each, children, is_shown, depth - 1)
            for each in children.get(provider.id, ())
            if is_shown(each.id)
        ]
    else:
        # below the maximum depth, all descendants are listed on one level
        below = [
            _node_view(each, {}, is_shown, 0)
            for each in _with_descendants(provider, children)
            if each is not provider and is_shown(each.id)
        ]
    return ProviderNodeView(
        provider,
        stocks_of(provider),
        tuple(in_order(provider.traits)),
        tuple(sorted(provider.aggregates)),
        tuple(below),
    )


def stocks_of(provider: Provider) -> tuple[InventoryStock, ...]:
    """Return the inventories of a provider in the order of their classes."""
    return tuple(
        [
            InventoryStock(name, provider.inventories[name], provider.used.get(name, 0))
            for name in sorted(provider.inventories, key=class_order)
        ]
    )


def class_order(name: str) -> tuple[int, str]:
    """Return the key by which the resource classes of a provider are sorted."""
    return class_rank(name), name


def _sharing_providers(snapshot: ModelSnapshot, aggregates: Iterable[str], root: int) -> Iterable[Provider]:
    ids = snapshot.by_trait.get(SHARES, set())
    # a provider shares with the tree if it has the trait, and is in an aggregate of the tree
    here = set().union(*(snapshot.by_aggregate.get(each, set()) for each in aggregates)) if ids else set()
    found = [snapshot.providers[each] for each in here & ids]
    return sorted((each for each in found if each.root_id != root), key=lambda each: natural_order(each.name))


def holdings_of(rows: Iterable[AllocationHolder], providers: Mapping[str, Provider]) -> list[ConsumerHolding]:
    """Return the allocations of each consumer, in the order of the rows.

    :param providers: the providers in the rows, by uuid.
    """
    gathered: dict[str, tuple[AllocationHolder, list[tuple[Provider, str, int]]]] = {}
    for row in rows:
        amounts = gathered.setdefault(row.consumer, (row, []))[1]
        amounts.append((providers[row.provider], row.resource_class, row.used))
    return [
        ConsumerHolding(consumer, row.consumer_type, row.project_id, tuple(amounts))
        for consumer, (row, amounts) in gathered.items()
    ]


MAX_LANES: Final = 48
"""Maximum number of bars in a picture."""
MAX_PARTS: Final = 250
"""Number of parts after which the picture gets no further bar, so that the page stays small."""
COLOURS: Final = 6
"""Number of different colours. Consumers with the same colour are distinguished by their numbers."""

_MAX_PARTS: Final = 40  # maximum number of parts of one bar; visitors could not distinguish more parts
_MAX_UNITS: Final = 128
"""Largest capacity for which a bar shows a mark for each unit of the capacity."""
# with this width, the number of a consumer fits into the part on a narrow screen
_LABELLED: Final = 6.0
"""Minimum width, in percent of the bar, of a part that is labelled with the number of its consumer."""


def _number_colour(number: int) -> int:
    return number and (number - 1) % COLOURS + 1


@dataclass(frozen=True, slots=True)
class BarSegment:
    """The part of a bar for the amount of one consumer. ``start`` and ``width`` are in percent of the bar.

    ``number`` is the consumer's number in the list; 0 stands for all consumers that the list leaves out.
    """

    number: int
    amount: int
    start: float
    width: float

    @property
    def colour(self) -> int:
        """The number of the colour, from 1 on; 0 for consumers that are not in the list."""
        return _number_colour(self.number)

    @property
    def has_label(self) -> bool:
        """Whether the part is wide enough for the number of its consumer."""
        return self.number > 0 and self.width >= _LABELLED


@dataclass(frozen=True, slots=True)
class InventoryBar:
    """The bar of one inventory.

    ``units`` is the number of units that marks on the bar separate; 0 for a bar without marks.
    """

    provider: Provider
    resource_class: str
    capacity: int
    used: int
    parts: tuple[BarSegment, ...]
    units: int


@dataclass(frozen=True, slots=True)
class HostPicture:
    """The bars of a picture by provider, and the number of bars that the picture leaves out."""

    lanes: tuple[InventoryBar, ...]
    left_out: int


def draw_picture(node: ProviderNodeView, held: Sequence[ConsumerHolding]) -> HostPicture:
    """Draw a bar for each inventory, of a provider and all providers below it, that these consumers use."""
    amounts: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for number, each in enumerate(held, 1):
        for provider, name, used in each.amounts:
            amounts.setdefault((provider.id, name), []).append((number, used))
    shown: list[InventoryBar] = []
    parts = left_out = 0
    for lane in _inventory_bars(node, amounts):
        # after the first omitted bar, all later bars are omitted, too, so that the drawn bars have no gaps
        if left_out or len(shown) == MAX_LANES or parts >= MAX_PARTS:
            left_out += 1
        else:
            shown.append(lane)
            parts += len(lane.parts)
    return HostPicture(tuple(shown), left_out)


def _inventory_bars(
    node: ProviderNodeView, amounts: Mapping[tuple[int, str], Sequence[tuple[int, int]]]
) -> Iterator[InventoryBar]:
    for stock in node.stocks:
        holding = amounts.get((node.provider.id, stock.resource_class))
        if holding:
            capacity = max(0, stock.inventory.capacity)
            # allocations are read after the snapshot, so their sum can exceed the usage in the snapshot
            used = max(stock.used, sum(amount for _, amount in holding))
            units = capacity if capacity <= _MAX_UNITS and used <= capacity else 0
            parts = tuple(_bar_segments(holding, used, max(capacity, used)))
            yield InventoryBar(node.provider, stock.resource_class, capacity, used, parts, units)
    for child in node.children:
        yield from _inventory_bars(child, amounts)


def _bar_segments(holding: Sequence[tuple[int, int]], used: int, whole: int) -> Iterator[BarSegment]:
    """Return the parts of a bar for the listed consumers, and one last part for all other consumers."""
    done = 0
    for number, amount in holding[:_MAX_PARTS]:
        yield BarSegment(number, amount, 100 * done / whole, 100 * amount / whole)
        done += amount
    if used > done:
        yield BarSegment(0, used - done, 100 * done / whole, 100 * (used - done) / whole)


POSITION: Final = "position."
"""Prefix of an attribute with the CPUs and cache ways of a consumer. The uuid of the consumer follows."""
WATERMARK: Final = "watermark."
"""Prefix of an attribute about a watermark of the host. The name of the watermark follows."""

_CPUS: Final = re.compile(r"cpus ([0-9,-]+)")
_WAYS: Final = re.compile(r"L3 ([0-9]{1,4}): ([0-9,-]+) of ([0-9]{1,2})")
_RANGE: Final = re.compile(r"([0-9]{1,2})(?:-([0-9]{1,2}))?")
# clients other than the agent can write attributes, too, so parts that cannot be drawn are left out
_MAX_WAYS: Final = 64
_MAX_GUESTS: Final = 100
_MAX_WATERMARKS: Final = 100


@dataclass(frozen=True, slots=True)
class CacheWays:
    """The cache ways that a guest can fill, as text and as pieces of a bar.

    Each piece has its start and its width, in percent of the bar.
    """

    number: int
    ways: str
    total: int
    pieces: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class ConsumerPlace:
    """The CPUs and cache ways of a consumer.

    ``number`` is the number of the consumer in the list of consumers; 0 if the list does not have it.
    """

    consumer: str
    number: int
    cpus: str
    caches: tuple[CacheWays, ...]

    @property
    def colour(self) -> int:
        """The colour of the consumer in the picture; 0 for a consumer that is not in the list."""
        return _number_colour(self.number)


@dataclass(frozen=True, slots=True)
class AgentPositions:
    """The CPUs and cache ways of guests, and the watermarks of the host, as the agent reported them."""

    places: tuple[ConsumerPlace, ...]
    watermarks: tuple[tuple[str, str], ...]


def agent_positions(members: Iterable[Provider], held: Sequence[ConsumerHolding]) -> AgentPositions | None:
    """Return the positions and watermarks in attributes of these providers; None if there are none."""
    numbers = {each.consumer: number for number, each in enumerate(held, 1)}
    places, watermarks = [], []
    for each in members:
        for name, value in each.attributes.items():
            if name.startswith(POSITION):
                consumer = name.removeprefix(POSITION)
                places.append(_consumer_place(consumer, numbers.get(consumer, 0), str(value)))
            elif name.startswith(WATERMARK):
                watermarks.append((name.removeprefix(WATERMARK), str(value)))
    if not places and not watermarks:
        return None
    # the places have the order of the page's list of consumers; guests without allocations come last
    places.sort(key=lambda each: (each.number or len(held) + 1, each.consumer))
    return AgentPositions(tuple(places[:_MAX_GUESTS]), tuple(sorted(watermarks)[:_MAX_WATERMARKS]))


def _consumer_place(consumer: str, number: int, text: str) -> ConsumerPlace:
    """Return the CPUs and cache ways in the attribute of a consumer; ignore invalid parts of its text."""
    parts = text.split("; ")
    cpus = _CPUS.fullmatch(parts[0])
    return ConsumerPlace(consumer, number, cpus[1] if cpus else "", tuple(_caches(parts[1:])))


def _caches(parts: Iterable[str]) -> Iterator[CacheWays]:
    for part in parts:
        found = _WAYS.fullmatch(part)
        if found is None or not 0 < (total := int(found[3])) <= _MAX_WAYS:
            continue
        ranges = [_RANGE.fullmatch(each) for each in found[2].split(",")]
        bounds = [(int(each[1]), int(each[2] or each[1])) for each in ranges if each]
        pieces = [
            (100 * first / total, 100 * (last - first + 1) / total)
            for first, last in bounds
            if first <= last < total
        ]
        yield CacheWays(int(found[1]), found[2], total, tuple(pieces))
