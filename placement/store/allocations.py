"""Allocations: what a consumer holds of which provider, claimed and given back as one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from placement.db.database import Transaction
from placement.db.tables import (
    allocations,
    consumers,
    inventories,
    resource_classes,
    resource_providers,
)
from placement.exceptions import Conflict, InvalidRequest, NotFound
from placement.model.world import Inventory
from placement.store import consumers as consumer_store
from placement.store.consumers import Generation, Owner

Resources = Mapping[str, int]
ByProvider = Mapping[str, Resources]


@dataclass(frozen=True, slots=True)
class Claim:
    """All that one consumer shall hold from now on: amounts by provider uuid and resource class.

    ``generation`` is the consumer's as the client knows it, None for a new
    consumer, :data:`~placement.store.consumers.ANY_GENERATION` before 1.28. With
    ``owner`` None (before 1.8) a new consumer belongs to ``default_owner``. With
    ``keeps_type`` (before 1.38) the type of a known consumer stays.
    """

    consumer: str
    resources: ByProvider
    generation: Generation
    owner: Owner
    keeps_owner: bool = False
    keeps_type: bool = False


@dataclass(frozen=True, slots=True)
class Locked:
    """What claims found: the consumers that exist, and the ids of the providers they hold something of."""

    consumers: Mapping[str, consumer_store.Row]
    held: frozenset[int]


def replace(tx: Transaction, claims: Sequence[Claim]) -> None:
    """Put all the claims into effect, or none of them.

    :raises InvalidRequest: a provider or a resource class does not exist.
    :raises ConcurrentUpdate: a consumer's generation is not the given one.
    :raises Conflict: a provider has no such inventory or not enough of it.
    """
    write_claims(tx, claims, lock_claimed(tx, claims))


def lock_claimed(tx: Transaction, claims: Sequence[Claim], more: Iterable[str] = ()) -> Locked:
    """Check the generations and lock all that the claims touch: consumers first, then providers."""
    known = consumer_store.lock(tx, [claim.consumer for claim in claims]) if claims else {}
    for claim in claims:
        consumer_store.check_generation(claim.consumer, known.get(claim.consumer), claim.generation)
    held = _held(tx.conn, known.values())
    named = {uuid for claim in claims for uuid in claim.resources}
    tx.lock({*held.values(), *named, *more})
    return Locked(known, frozenset(held))


def write_claims(tx: Transaction, claims: Sequence[Claim], locked: Locked) -> None:
    """The second half of :func:`replace`, for locked consumers and providers."""
    classes = _class_ids(tx, claims)
    if locked.consumers:
        ids = [row.id for row in locked.consumers.values()]
        tx.conn.execute(sa.delete(allocations).where(allocations.c.consumer_id.in_(ids)))
    stocks = _read_stocks(tx.conn, {uuid for claim in claims for uuid in claim.resources})
    _check_capacity(claims, stocks)
    _insert(tx, claims, locked.consumers, stocks, classes)
    tx.changed((stock.provider_id for stock in stocks.values()), generation=True, usage_only=True)
    tx.changed(locked.held, generation=False, usage_only=True)


def _class_ids(tx: Transaction, claims: Sequence[Claim]) -> dict[str, int]:
    for claim in claims:
        names = {name for resources in claim.resources.values() for name in resources}
        unknown = sorted(names - set(tx.names.classes.ids(tx.conn, names)))
        if unknown:
            raise InvalidRequest(
                f"Unable to allocate inventory for consumer {claim.consumer}: "
                f"No such resource class {', '.join(unknown)}."
            )
    every = {name for claim in claims for resources in claim.resources.values() for name in resources}
    return tx.names.classes.ids(tx.conn, every)


def _held(conn: sa.Connection, rows: Iterable[consumer_store.Row]) -> dict[int, str]:
    """Id and uuid of the providers of which the consumers hold something."""
    ids = [row.id for row in rows]
    return {row.provider_id: row.uuid for row in conn.execute(_held_by, {"ids": ids})} if ids else {}


_held_by: Final = (
    sa.select(allocations.c.provider_id, resource_providers.c.uuid)
    .join(resource_providers, resource_providers.c.id == allocations.c.provider_id)
    .where(allocations.c.consumer_id.in_(sa.bindparam("ids", expanding=True)))
    .distinct()
)

_used: Final = (
    sa.select(sa.func.coalesce(sa.func.sum(allocations.c.used), 0))
    .where(
        allocations.c.provider_id == inventories.c.provider_id,
        allocations.c.resource_class_id == inventories.c.resource_class_id,
    )
    .scalar_subquery()
)
_stock: Final = (
    sa.select(
        resource_providers.c.uuid,
        resource_providers.c.id,
        resource_classes.c.name,
        _used,
        inventories.c.total,
        inventories.c.reserved,
        inventories.c.min_unit,
        inventories.c.max_unit,
        inventories.c.step_size,
        inventories.c.allocation_ratio,
        inventories.c.updated_at,
    )
    .select_from(resource_providers)
    .outerjoin(inventories, inventories.c.provider_id == resource_providers.c.id)
    .outerjoin(resource_classes, resource_classes.c.id == inventories.c.resource_class_id)
    .where(resource_providers.c.uuid.in_(sa.bindparam("uuids", expanding=True)))
)


@dataclass(frozen=True, slots=True)
class _Stock:
    """What a provider has of each class, and how much of it is used by others than the claimants."""

    provider_id: int
    inventories: dict[str, Inventory]
    used: dict[str, int]


def _read_stocks(conn: sa.Connection, uuids: Iterable[str]) -> dict[str, _Stock]:
    """The stocks of those of the providers that exist."""
    stocks: dict[str, _Stock] = {}
    if named := list(uuids):
        for uuid, number, name, used, *values in conn.execute(_stock, {"uuids": named}):
            stock = stocks.setdefault(uuid, _Stock(number, {}, {}))
            if name is not None:
                stock.inventories[name] = Inventory(*values)
                stock.used[name] = int(used)
    return stocks


def _check_capacity(claims: Sequence[Claim], stocks: Mapping[str, _Stock]) -> None:
    """Refuse what the (locked) providers cannot give; the claims of one request add up.

    :raises InvalidRequest: there is no such provider.
    :raises Conflict: it has no such inventory or not enough of it.
    """
    for claim in claims:
        for uuid in claim.resources:
            if uuid not in stocks:
                raise InvalidRequest(f"Allocation for resource provider '{uuid}' that does not exist.")
    for claim in claims:
        for uuid, resources in claim.resources.items():
            stock = stocks[uuid]
            for name, amount in resources.items():
                inventory = stock.inventories.get(name)
                if inventory is None:
                    raise _refusal(f"Inventory for '{name}' on resource provider '{uuid}' invalid.")
                _check_amount(inventory, uuid, name, amount, stock.used[name])
                stock.used[name] += amount


def _check_amount(inventory: Inventory, uuid: str, name: str, amount: int, used: int) -> None:
    if inventory.accepts(amount, used):
        return
    what = f"Unable to create allocation for '{name}' on resource provider '{uuid}'."
    if inventory.portions(amount):
        raise _refusal(f"{what} The requested amount would exceed the capacity.")
    raise _refusal(f"{what} The requested amount would violate inventory constraints.")


def _refusal(why: str) -> Conflict:
    return Conflict(f"Unable to allocate inventory: {why}")


def _insert(
    tx: Transaction,
    claims: Sequence[Claim],
    known: Mapping[str, consumer_store.Row],
    stocks: Mapping[str, _Stock],
    classes: Mapping[str, int],
) -> None:
    inserts = []
    emptied = []
    for claim in claims:
        present = known.get(claim.consumer)
        if not any(claim.resources.values()):
            if present is not None:
                emptied.append(present.id)
            continue
        if present is None:
            consumer_id = consumer_store.create(tx, claim.consumer, claim.owner)
        else:
            consumer_id = present.id
            consumer_store.advance(tx, present, _owner(claim, present))
        inserts += [
            {
                "consumer_id": consumer_id,
                "provider_id": stocks[uuid].provider_id,
                "resource_class_id": classes[name],
                "used": amount,
                "updated_at": tx.now,
            }
            for uuid, resources in claim.resources.items()
            for name, amount in resources.items()
        ]
    if inserts:
        tx.conn.execute(sa.insert(allocations), inserts)
    if emptied:
        consumer_store.remove(tx, emptied)


def _owner(claim: Claim, present: consumer_store.Row) -> Owner | None:
    """The new owner of a known consumer, or None where nothing changes."""
    if claim.keeps_owner:
        return None
    kept = present.consumer_type if claim.keeps_type else claim.owner.consumer_type
    new = Owner(claim.owner.project_id, claim.owner.user_id, kept)
    same = new == Owner(present.project_id, present.user_id, present.consumer_type)
    return None if same else new


def delete(tx: Transaction, consumer: str) -> None:
    """Give back all that a consumer holds.

    :raises NotFound: when it holds nothing.
    """
    known = consumer_store.lock(tx, [consumer])
    if not known:
        raise NotFound(f"No allocations for consumer '{consumer}'")
    ids = [row.id for row in known.values()]
    held = _held(tx.conn, known.values())
    tx.lock(held.values())
    tx.conn.execute(sa.delete(allocations).where(allocations.c.consumer_id.in_(ids)))
    consumer_store.remove(tx, ids)
    tx.changed(held, generation=False, usage_only=True)


@dataclass(frozen=True, slots=True)
class Allocation:
    """One amount that a consumer holds of a provider."""

    consumer: str
    consumer_generation: int
    provider: str
    provider_generation: int
    resource_class: str
    used: int
    updated_at: float


_shown: Final = (
    sa.select(
        consumers.c.uuid,
        consumers.c.generation,
        resource_providers.c.uuid,
        resource_providers.c.generation,
        resource_classes.c.name,
        allocations.c.used,
        allocations.c.updated_at,
    )
    .select_from(allocations)
    .join(consumers, consumers.c.id == allocations.c.consumer_id)
    .join(resource_providers, resource_providers.c.id == allocations.c.provider_id)
    .join(resource_classes, resource_classes.c.id == allocations.c.resource_class_id)
    .order_by(consumers.c.id, resource_providers.c.id, resource_classes.c.id)
)
_of_consumer: Final = _shown.where(consumers.c.uuid == sa.bindparam("consumer"))
_of_provider: Final = _shown.where(resource_providers.c.uuid == sa.bindparam("provider"))


def of_consumer(conn: sa.Connection, consumer: str) -> list[Allocation]:
    """All that a consumer holds."""
    return [Allocation(*row) for row in conn.execute(_of_consumer, {"consumer": consumer})]


def of_provider(conn: sa.Connection, provider: str) -> list[Allocation]:
    """All that consumers hold of one provider."""
    return [Allocation(*row) for row in conn.execute(_of_provider, {"provider": provider})]
