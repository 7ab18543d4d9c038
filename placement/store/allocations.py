"""Writes, releases and reads the allocations of consumers.

Besides claims, the release of all allocations of a consumer is the most frequent write. On a database that
accepts several statements at once, the release sends all its statements together. The first statement of this
release locks the consumer, and stores its id in a setting of the transaction. If the consumer does not exist,
the statement stores an id that no consumer has. The other statements use this setting to find the rows to
lock, stamp and delete. If the consumer is created after the first statement, the other statements do not
change the consumer. On other databases the release reads the rows first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from placement.db import buckets
from placement.db.batch import PreparedStatement, StatementAnswer, StatementBatch, StatementFamily
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.db.tables import (
    RESERVATION,
    WINDOW_HOLD,
    allocations,
    change_buckets,
    consumers,
    inventories,
    join_amounts,
    planned_allocations,
    resource_classes,
    resource_providers,
)
from placement.exceptions import NotFound
from placement.read_model.provider import Inventory
from placement.read_model.rows import INVENTORY_COLUMNS
from placement.store import consumers as consumer_store
from placement.store import holds, known_names, time_events, window_history
from placement.store.claimants import (
    LockedConsumers,
    check_generations,
    lock_claimed,
    lock_consumers,
    refuse_hold,
    refuse_used_windows,
)
from placement.store.claims import (
    CapacityExceeded,
    ConsumerClaim,
    ProviderSupply,
    check_capacity,
    claimed_amounts,
    unmet_needs,
)
from placement.store.consumers import ANY_GENERATION, IS_TIMED, NOT_EXPIRED


def replace(tx: WriteTransaction, claims: Sequence[ConsumerClaim]) -> None:
    """Replace the current allocations of consumers by those of their claims; write all claims or none.

    :raises InvalidRequest: a provider or a resource class does not exist.
    :raises ConcurrentUpdate: a generation in a claim is not the current generation of its consumer.
    :raises Conflict: a provider has no inventory of a claimed class, or too little of the class is free. Or a
        consumer is a pending window, a window that claims use, or a hold.
    """
    # buckets are locked before any check, because data that is read under the locks stays valid until the
    # commit
    locked = lock_claimed(tx, claims)
    check_generations(claims, locked)
    refuse_used_windows(claims, locked)
    write_claims(tx, claims, locked)


def write_claims(
    tx: WriteTransaction,
    claims: Sequence[ConsumerClaim],
    locked: LockedConsumers,
    *,
    are_promised: bool = False,
) -> None:
    """Write claims of consumers and providers that are locked; this is the last step of :func:`replace`.

    :param are_promised: the claims take only amounts that holds keep free for them, so the capacity is not
        checked.
    """
    planned: Sequence[ConsumerClaim] = ()
    timed_write: holds.TimedWrite | None = None
    # holds depend on allocations with a known end only; other writes need no further statement
    if locked.timed or any(claim.window is not None for claim in claims):
        # ended claims are recorded before the write, which removes a claim or makes its end ineffective
        time_events.note_ended(
            tx,
            [
                row.uuid
                for row in locked.consumers.values()
                if row.uuid in locked.timed and row.consumer_type != RESERVATION
            ],
        )
        # a change that is due by the clock must not be refused; a new maintenance can be refused
        is_due = are_promised and bool(locked.timed)
        timed_write = holds.plan_write(tx, claims, locked, may_lack_holds=is_due)
        claims, planned, locked = timed_write.claims, timed_write.planned, timed_write.locked
    # holdings are deleted before the supplies are read, so that supplies only include the usage of other
    # consumers
    consumer_store.remove_amounts(
        tx, allocations, [row.id for uuid, row in locked.consumers.items() if uuid not in locked.scopes]
    )
    for uuid in locked.scopes:
        here = {each.provider_id for each in locked.holdings if each.consumer == uuid}
        consumer_store.remove_amounts_at(tx, allocations, locked.consumers[uuid].id, here)
    touched = {uuid for claim in (*claims, *planned) for uuid in claim.resources}
    change = None if timed_write is None else timed_write.change
    # a window can also get amounts back from providers of which it holds nothing now
    returning = set() if change is None else {each.provider for each in change.after}
    supplies, known_classes = read_supplies(tx, touched | returning)
    named = {name for claim in claims for resources in claim.resources.values() for name in resources}
    # the lookup includes classes that no provider of the claims has, to distinguish unknown names from
    # missing inventories
    others = known_names.NameLookup(tx, resource_classes, named - known_classes.keys())
    classes = {**known_classes, **others.ids}
    # the removal before this check is rolled back if the check refuses the claims
    if not are_promised:
        try:
            check_capacity(claims, supplies, classes, locked.holdings)
            if change is not None:
                change.check_instants(supplies, classes)
        except CapacityExceeded as refusal:
            if not any(claim.window for claim in (*claims, *planned)):
                refusal.claimants = [*locked.consumers, *(claim.consumer for claim in claims)]
                refusal.needs = unmet_needs(claims, supplies, classes, locked.holdings)
            raise
    _insert(tx, claims, supplies, classes)
    if planned:
        # the plans are written after the check, so that a deleted provider leads to a refusal and not to a
        # violated foreign key
        holds.insert_planned(tx, planned)
    lasting = frozenset[str]() if timed_write is None else timed_write.lasting
    if timed_write is not None:
        holds.insert_promises(tx, timed_write.promises, locked)
    _update_consumers(tx, [*claims, *planned], locked.consumers, lasting)
    # clients rely on this: the generation of a provider grows when a consumer releases all allocations, but
    # not when the consumer moves away
    emptied = {claim.consumer for claim in claims if not claim.takes_anything} - lasting
    left = {each.provider_id for each in locked.holdings if each.consumer in emptied}
    raised = left.union(supplies[uuid].provider_id for uuid in touched & supplies.keys())
    # the change is usage_only, so that readers do not read inventories, traits and aggregates again
    tx.note_changed(raised, generation=True, usage_only=True)
    # these providers are stamped, because without a hold nothing else tells other workers that the plans of a
    # provider have changed
    before = locked.provider_ids | {each.provider_id for each in (*locked.planned, *locked.promised)}
    tx.note_changed(before - raised, generation=False, usage_only=True)


# the condition is a correlated sub-query instead of a join with GROUP BY, so that only allocations of a
# claim's few inventories are read
_used: Final = (
    sa.select(sa.func.coalesce(sa.func.sum(allocations.c.used), 0))
    .where(
        allocations.c.provider_id == inventories.c.provider_id,
        allocations.c.resource_class_id == inventories.c.resource_class_id,
    )
    .scalar_subquery()
)


_SUPPLY_LOOKUP: Final = StatementFamily(
    resource_providers.c.uuid,
    sa.select(
        resource_providers.c.uuid,
        resource_providers.c.id,
        resource_classes.c.name,
        resource_classes.c.id,
        _used,
        *INVENTORY_COLUMNS,
    )
    .select_from(resource_providers)
    # the joins are outer joins, because the error for a provider without inventories differs from the error
    # for an unknown provider
    .outerjoin(inventories, inventories.c.provider_id == resource_providers.c.id)
    .outerjoin(resource_classes, resource_classes.c.id == inventories.c.resource_class_id)
    .where,
)


def read_supplies(
    tx: WriteTransaction, uuids: Collection[str]
) -> tuple[dict[str, ProviderSupply], dict[str, int]]:
    """Return the inventories and usage of existing providers, and the ids of resource classes by name."""
    supplies: dict[str, ProviderSupply] = {}
    class_ids: dict[str, int] = {}
    if uuids:
        found = tx.queue(*_SUPPLY_LOOKUP.bind_list(uuids))
        for uuid, provider_id, class_name, class_id, used, *values in found.rows:
            supply = supplies.setdefault(uuid, ProviderSupply(provider_id, {}, {}))
            if class_id is not None:
                class_ids[class_name] = class_id
                supply.inventories[class_id] = Inventory(*values)
                # some drivers return sums as Decimal
                supply.used[class_id] = int(used)
    return supplies, class_ids


def _insert(
    tx: WriteTransaction,
    claims: Sequence[ConsumerClaim],
    supplies: Mapping[str, ProviderSupply],
    classes: Mapping[str, int],
) -> None:
    rows = [
        {
            "consumer_id": claim.consumer,
            "provider_id": supplies[uuid].provider_id,
            "resource_class_id": classes[name],
            "used": amount,
        }
        for claim, uuid, name, amount in claimed_amounts(claims)
    ]
    # the ids of consumers that this transaction creates are unknown until an answer is read
    tx.insert(allocations, rows, keys=("consumer_id",), updated_at=tx.now)


def _update_consumers(
    tx: WriteTransaction,
    claims: Sequence[ConsumerClaim],
    known: Mapping[str, consumer_store.ConsumerRow],
    lasting: Collection[str],
) -> None:
    emptied = []
    for claim in claims:
        # a new consumer was created with generation 1, which is already right
        present = known.get(claim.consumer)
        if present is not None and (claim.takes_anything or claim.consumer in lasting):
            consumer_store.advance_consumer(tx, present, consumer_store.owner_after(present, claim.owner))
        elif present is not None:
            emptied.append(present.id)
            # a reservation is not recorded as deleted if claims have taken all of it
            if present.consumer_type == RESERVATION and not claim.in_any_portions:
                window_history.note_deletion(tx, present.uuid)
    if emptied:
        consumer_store.remove(tx, emptied)


def delete(tx: WriteTransaction, consumer: str) -> None:
    """Release all allocations of a consumer, or raise NotFound if there are none."""
    # this function is simpler than lock_claimed(), because nothing is created and no supply is read
    locked = lock_consumers(tx, [consumer])
    if not locked.consumers or locked.expired:
        raise no_allocations(consumer)
    row = locked.consumers[consumer]
    refuse_hold(row)
    if row.consumer_type == RESERVATION:
        window_history.note_deletion(tx, consumer)
    _give_back(tx, locked)


def no_allocations(consumer: str) -> NotFound:
    """Return the error that says that a consumer has no allocations."""
    return NotFound(f"No allocations for consumer '{consumer}'")


def give_back(tx: WriteTransaction, uuids: Collection[str]) -> int:
    """Release all allocations of these consumers; return the number of consumers that existed."""
    locked = lock_consumers(tx, uuids)
    if locked.consumers:
        _give_back(tx, locked)
    return len(locked.consumers)


def _give_back(tx: WriteTransaction, locked: LockedConsumers) -> None:
    """Release all allocations of consumers that the caller has locked."""
    ids = [row.id for row in locked.consumers.values()]
    # consumers are locked before providers, as in claims
    tx.lock(locked.providers)
    if locked.timed:
        # the holds of the providers change, so the release is a write of claims without amounts
        empty = [
            ConsumerClaim(row.uuid, {}, ANY_GENERATION, consumer_store.present_owner(row))
            for row in locked.consumers.values()
        ]
        write_claims(tx, empty, locked, are_promised=True)
        return
    # the allocations are removed before the consumer, because they refer to it
    consumer_store.remove_amounts(tx, allocations, ids)
    consumer_store.remove(tx, ids)
    tx.note_changed(locked.provider_ids, generation=False, usage_only=True)


@dataclass(frozen=True, slots=True)
class Allocation:
    """An amount of one resource class, allocated to a consumer from one provider."""

    consumer: str
    consumer_generation: int
    provider: str
    provider_generation: int
    resource_class: str
    used: int
    updated_at: float


def _shown_amounts(table: sa.Table, updated_at: sa.ColumnElement[float]) -> sa.Select[Any]:
    """Return a query with its columns in the order of the fields of :class:`Allocation`."""
    return (
        sa.select(
            consumers.c.uuid,
            consumers.c.generation,
            resource_providers.c.uuid,
            resource_providers.c.generation,
            resource_classes.c.name,
            table.c.used,
            updated_at,
        )
        .select_from(join_amounts(table))
        # consumers are ordered by creation, so that equal allocations give equal answers
        .order_by(consumers.c.id, resource_providers.c.id, resource_classes.c.id)
    )


_shown: Final = _shown_amounts(allocations, allocations.c.updated_at)
_of_consumer: Final = _shown.where(consumers.c.uuid == sa.bindparam("consumer"), NOT_EXPIRED)
# the condition NOT_EXPIRED is missing, because callers need the holdings even if the consumer has expired
PRESENT: Final = StatementFamily(consumers.c.uuid, _shown.where)
"""Statements that read all allocations of some consumers, expired or not, by uuid."""
PLANNED: Final = StatementFamily(
    consumers.c.uuid, _shown_amounts(planned_allocations, consumers.c.updated_at).where
)
"""Statements that read the planned allocations of some pending windows, by uuid."""
_of_providers: Final = _shown.where(
    resource_providers.c.uuid.in_(sa.bindparam("providers", expanding=True)), NOT_EXPIRED
)


def of_consumer(conn: sa.Connection, consumer: str) -> list[Allocation]:
    """Return all allocations of a consumer, unless it has expired."""
    return [Allocation(*row) for row in conn.execute(_of_consumer, {"consumer": consumer})]


def of_consumers(conn: sa.Connection, uuids: Collection[str]) -> list[Allocation]:
    """Return all allocations of these consumers, expired or not."""
    return read_allocations(StatementBatch(conn).add(*PRESENT.bind_list(uuids)))


def read_allocations(answer: StatementAnswer) -> list[Allocation]:
    """Return the allocations in the answer to ``PRESENT`` or ``PLANNED``."""
    return [Allocation(*row) for row in answer.rows]


def of_providers(conn: sa.Connection, uuids: Collection[str]) -> list[Allocation]:
    """Return all allocations of these providers by consumers that have not expired."""
    return [Allocation(*row) for row in conn.execute(_of_providers, {"providers": list(uuids)})]


# ids begin at 1, so no consumer has this id
_NOBODY: Final = "0"
"""A text in place of a consumer's id, if the consumer does not exist."""
_ANOTHER_WAY: Final = "-1"
"""A text in place of a consumer's id, if the release changes holds, so that the rows must be read first."""
_SETTING: Final[sa.ColumnElement[str]] = sa.literal_column("'placement.released'")
"""The setting of the transaction that stores the id of the consumer to release."""


def release(database: ServiceDatabase, consumer: str) -> None:
    """Release all allocations of a consumer in a new transaction; raise NotFound if there are none."""

    def release_all(tx: WriteTransaction) -> StatementAnswer | None:
        if tx.sends_at_once:
            return _at_once(tx, consumer)
        delete(tx, consumer)
        return None

    released = database.write(release_all)
    # an answer read after the commit is early enough: if nothing was released, there is nothing to roll back
    if released is not None and released.scalars == [_NOBODY]:
        raise no_allocations(consumer)
    if released is not None and released.scalars == [_ANOTHER_WAY]:
        database.write(lambda tx: delete(tx, consumer))


def _at_once(tx: WriteTransaction, consumer: str) -> StatementAnswer:
    """Queue all statements of a release, and return the answer of the first one, to be read after the commit.

    The answer of the first statement is the consumer's id as text, :data:`_NOBODY` or :data:`_ANOTHER_WAY`.
    """
    # the order of locks is consumers, then buckets, as everywhere
    locked = tx.queue(_lock_consumer, {"consumer": consumer})
    tx.queue(_count, {"step": buckets.random_step()})
    tx.queue(_stamp, {"now": tx.now})
    tx.queue(_consumer_removal, {})
    tx.queue(_end, {})
    return locked


_released: Final = sa.cast(sa.func.current_setting(_SETTING), sa.BigInteger)
# every statement about the providers contains this query, so these statements come before the removal
_held: Final = sa.select(allocations.c.provider_id).where(allocations.c.consumer_id == _released)
# the id is stored in a setting of the transaction, because later statements of a batch cannot use an answer
_RELEASED_AT_ONCE: Final = sa.and_(
    # a pending window has no allocations, but is a reservation
    # (the condition is without IN, because the list of IN would be an expanding parameter)
    *(sa.func.coalesce(consumers.c.consumer_type, "") != kind for kind in (RESERVATION, WINDOW_HOLD)),
    sa.not_(IS_TIMED),
)
_lock_consumer: Final = PreparedStatement(
    sa.select(
        sa.func.set_config(
            _SETTING,
            sa.func.coalesce(
                sa.cast(
                    sa.select(
                        sa.case((_RELEASED_AT_ONCE, consumers.c.id), else_=sa.literal_column(_ANOTHER_WAY))
                    )
                    .where(consumers.c.uuid == sa.bindparam("consumer", type_=sa.String), NOT_EXPIRED)
                    .with_for_update()
                    .scalar_subquery(),
                    sa.String,
                ),
                sa.literal_column(f"'{_NOBODY}'"),
            ),
            sa.literal_column("true"),  # the setting ends with the transaction
        )
    )
)
_count: Final = PreparedStatement(
    # this form locks in ascending order even though a query selects the buckets
    buckets.increment_in_order(
        sa.select(change_buckets.c.id).where(
            change_buckets.c.id.in_(
                sa.select(resource_providers.c.bucket).where(resource_providers.c.id.in_(_held))
            )
        )
    )
)
_stamp: Final = PreparedStatement(
    sa.update(resource_providers)
    .where(resource_providers.c.id.in_(_held))
    .values(
        # described_seq stays unchanged, because only usage has changed
        change_seq=buckets.present_counter(resource_providers.c.bucket),
        updated_at=sa.bindparam("now", type_=sa.Double),
    )
)
"""A statement that stamps providers after a change of their usage alone, without changing their
generations.
"""
_consumer_removal: Final = PreparedStatement(
    sa.delete(allocations).where(allocations.c.consumer_id == _released)
)
# consumers are deleted after the allocations, which refer to them
_end: Final = PreparedStatement(sa.delete(consumers).where(consumers.c.id == _released))
