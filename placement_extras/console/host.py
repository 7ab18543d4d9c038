"""A host, or a part of one, as its page shows it: providers as they are nested, and who holds what."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from placement.model.provider import SHARES, Inventory, Provider, in_order
from placement.model.snapshot import ModelSnapshot
from placement.store.holders import AllocationHolder
from placement_extras.console import heartbeat, paging
from placement_extras.console.fleet import FIRST_CLASSES, ClassAmounts, HostCondition, natural, state_of
from placement_extras.console.heartbeat import AgentHeartbeat
from placement_extras.console.paging import ListPage

_MAX_DEPTH: Final = 6
"""Generations that are nested on a page; what is below stands side by side."""
PER_PAGE: Final = 200
"""Providers below the one that a page is about, without those that lead to them."""


@dataclass(frozen=True, slots=True)
class InventoryStock:
    """One inventory, and how much of it is used."""

    resource_class: str
    inventory: Inventory
    used: int

    @property
    def amounts(self) -> ClassAmounts:
        """What may be used, and is."""
        return ClassAmounts(self.inventory.capacity, self.used)


@dataclass(frozen=True, slots=True)
class ProviderNodeView:
    """A provider with what it has, and those below it."""

    provider: Provider
    stocks: tuple[InventoryStock, ...]
    traits: tuple[str, ...]
    aggregates: tuple[str, ...]
    children: tuple["ProviderNodeView", ...]


@dataclass(frozen=True, slots=True)
class HostPage:
    """A provider with all below it: ``above`` it the root first; amounts of all together, by class.

    ``sharing`` are providers elsewhere of whose resources guests of the host may have, too. Of very large
    trees ``node`` has a ``part``, with what leads to it.
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


@dataclass(frozen=True, slots=True)
class ConsumerHolding:
    """What a consumer holds: of which provider how much of which class."""

    consumer: str
    consumer_type: str | None
    project_id: str
    amounts: tuple[tuple[Provider, str, int], ...]


def show(snapshot: ModelSnapshot, provider: Provider, number: int = 1, now: float = 0.0) -> HostPage:
    """The page of a provider, be it a host or a part of one, at a time; of a large tree one of several."""
    tree = snapshot.whole_trees()[provider.root_id]
    children: dict[int, list[Provider]] = {}
    for each in tree.members:
        if each.parent_id is not None:
            children.setdefault(each.parent_id, []).append(each)
    for some in children.values():
        some.sort(key=lambda each: natural(each.name))
    members = list(_below(provider, children))
    part = paging.cut(members[1:], number, PER_PAGE)
    shown = {each.id for one in part.rows for each in snapshot.upwards(one)}
    sums: dict[str, list[int]] = {}
    for each in members:
        for name, inventory in each.inventories.items():
            found = sums.setdefault(name, [0, 0])
            found[0] += max(0, inventory.capacity)
            found[1] += each.used.get(name, 0)
    upwards = tuple(snapshot.upwards(provider))[:0:-1]
    return HostPage(
        node=_node(provider, children, shown.__contains__, _MAX_DEPTH),
        root=tree.root,
        above=upwards,
        state=state_of(tree, now),
        amounts={name: ClassAmounts(*sums[name]) for name in sorted(sums, key=order)},
        providers=len(members),
        part=part,
        sharing=tuple(_sharing(snapshot, tree.all_aggregates, tree.root.id)),
        members=tuple([each.uuid for each in members]),
        heartbeat=heartbeat.last(tree.members),
    )


def _below(provider: Provider, children: Mapping[int, Sequence[Provider]]) -> Iterable[Provider]:
    """A provider and all below it, those of one generation before the next."""
    found = [provider]
    for each in found:
        found.extend(children.get(each.id, ()))
    return found


def _node(
    provider: Provider,
    children: Mapping[int, Sequence[Provider]],
    is_shown: Callable[[int], bool],
    depth: int,
) -> ProviderNodeView:
    if depth:
        below = [
            _node(each, children, is_shown, depth - 1)
            for each in children.get(provider.id, ())
            if is_shown(each.id)
        ]
    else:
        below = [
            _node(each, {}, is_shown, 0)
            for each in _below(provider, children)
            if each is not provider and is_shown(each.id)
        ]
    stocks = [
        InventoryStock(name, provider.inventories[name], provider.used.get(name, 0))
        for name in sorted(provider.inventories, key=order)
    ]
    return ProviderNodeView(
        provider,
        tuple(stocks),
        tuple(in_order(provider.traits)),
        tuple(sorted(provider.aggregates)),
        tuple(below),
    )


def order(name: str) -> tuple[int, str]:
    """By what the resource classes of one provider are ordered."""
    return FIRST_CLASSES.index(name) if name in FIRST_CLASSES else len(FIRST_CLASSES), name


def _sharing(snapshot: ModelSnapshot, aggregates: Iterable[str], root: int) -> Iterable[Provider]:
    ids = snapshot.by_trait.get(SHARES, set())
    here = set().union(*(snapshot.by_aggregate.get(each, set()) for each in aggregates)) if ids else set()
    found = [snapshot.providers[each] for each in here & ids]
    return sorted((each for each in found if each.root_id != root), key=lambda each: natural(each.name))


def held(rows: Iterable[AllocationHolder], providers: Mapping[str, Provider]) -> list[ConsumerHolding]:
    """Who holds what, by consumer, in the order of the rows.

    :param providers: by uuid; all that rows are about.
    """
    gathered: dict[str, tuple[AllocationHolder, list[tuple[Provider, str, int]]]] = {}
    for row in rows:
        amounts = gathered.setdefault(row.consumer, (row, []))[1]
        amounts.append((providers[row.provider], row.resource_class, row.used))
    return [
        ConsumerHolding(consumer, row.consumer_type, row.project_id, tuple(amounts))
        for consumer, (row, amounts) in gathered.items()
    ]
