"""Locks the claimants, which are the consumers of claims with their holdings, and then the providers.

A claimant may be a pending window, which has planned allocations instead of holdings. Clients cannot claim
for a pending window or for a hold: these consumers change only with time, and by operations on reservations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import sqlalchemy as sa

from placement.db.batch import StatementFamily
from placement.db.database import WriteTransaction
from placement.db.tables import (
    RESERVATION,
    WINDOW_HOLD,
    allocations,
    consumers,
    planned_allocations,
    resource_providers,
    window_promises,
)
from placement.exceptions import Conflict, ConsumerExists
from placement.store import consumers as consumer_store
from placement.store.claims import ClaimantHolding, ConsumerClaim
from placement.store.consumers import ANY_GENERATION, IS_TIMED, NOT_EXPIRED


@dataclass(frozen=True, slots=True)
class LockedConsumers:
    """The consumers that a transaction has locked, by uuid, and all their holdings.

    - ``expired``: the uuids of expired consumers.
    - ``planned``: the planned allocations of pending windows.
    - ``promised``: the amounts of windows that have begun, including the amounts that claims have taken from
      them.
    - ``timed``: the uuids of windows, pending or not, and of consumers that have claims with an end time.
    - ``scopes``: the windows of which only the amounts at some providers are here, with these providers.
    """

    # the field has only consumers that existed before; new consumers are created for the claims
    consumers: Mapping[str, consumer_store.ConsumerRow]
    holdings: Sequence[ClaimantHolding] = ()
    expired: frozenset[str] = frozenset()
    planned: Sequence[ClaimantHolding] = ()
    promised: Sequence[ClaimantHolding] = ()
    timed: frozenset[str] = frozenset()
    scopes: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def with_scope(self, window: str, providers: Collection[str]) -> LockedConsumers:
        """Return these consumers without the amounts that an active window has at other providers."""
        if window not in self.timed or any(each.consumer == window for each in self.planned):
            return self
        holdings, promised = (
            [each for each in some if each.consumer != window or each.provider in providers]
            for some in (self.holdings, self.promised)
        )
        scopes = {**self.scopes, window: frozenset(providers)}
        return replace(self, holdings=holdings, promised=promised, scopes=scopes)

    def providers_beside(self, window: str | None) -> set[str]:
        """Return the uuids of all providers of which the other consumers have amounts, now or later."""
        amounts = (*self.holdings, *self.planned, *self.promised)
        return {each.provider for each in amounts if each.consumer != window}

    @property
    def provider_ids(self) -> set[int]:
        """The ids of all providers of which these consumers hold allocations."""
        return {each.provider_id for each in self.holdings}

    @property
    def providers(self) -> set[str]:
        """The uuids of all providers of which these consumers have allocations, now or later."""
        return self.providers_beside(None)


def lock_claimed(
    tx: WriteTransaction,
    claims: Sequence[ConsumerClaim],
    more: Iterable[str] = (),
    buckets: Iterable[int] = (),
    others: Sequence[str] = (),
    source: str | None = None,
) -> LockedConsumers:
    """Create the new consumers of claims, and lock first all consumers, then all providers.

    :param more: uuids of further providers to lock; ``buckets`` are further buckets.
    :param others: uuids of further consumers to lock; their holdings are read, too.
    :param source: the window from which the claims take all amounts. Its amounts at other providers than
        those of the claims are neither locked nor returned.
    """
    # if the client declares all consumers as new, no lookup is needed: consumers mostly are new, and the
    # insertion fails otherwise
    new_only = all(claim.generation is None and claim.takes_anything for claim in claims)
    looked_up = [] if tx.optimistic and new_only else [claim.consumer for claim in claims]
    locked = lock_consumers(tx, [*looked_up, *others])
    new = [claim for claim in claims if claim.takes_anything and claim.consumer not in locked.consumers]
    # consumers are created before the buckets are locked, because the insertion locks the new rows, and
    # consumers are locked before buckets
    consumer_store.create_consumers(tx, {claim.consumer: claim.owner for claim in new})
    named = {uuid for claim in claims for uuid in claim.resources}
    if source is not None:
        locked = locked.with_scope(source, locked.providers_beside(source) | named)
    # a single call locks all providers, so that all buckets are locked in ascending order
    tx.lock({*locked.providers, *named, *more}, buckets)
    return locked


def check_generations(claims: Iterable[ConsumerClaim], locked: LockedConsumers) -> None:
    """Refuse claims with a wrong generation of their consumer.

    An expired consumer counts as missing. A claim for the uuid of an expired consumer has to wait until the
    service has released the expired allocations (:func:`placement.store.due_changes.write_with_room`).

    :raises ConcurrentUpdate: a generation is wrong; the message has the wrong and the current generation.
        ConsumerExists if the consumer has to be released first.
    :raises Conflict: the consumer is a pending window or a hold.
    """
    pending = {each.consumer for each in locked.planned}
    for claim in claims:
        if claim.consumer in locked.expired:
            # the client sees no such consumer, so each number that it gives as generation is a conflict
            if claim.generation is not ANY_GENERATION:
                consumer_store.check_generation(None, claim.generation)
            # the row and the allocations still exist, so the caller releases the consumer and tries again
            raise ConsumerExists(f"consumer generation conflict - {claim.consumer} has expired just now")
        present = locked.consumers.get(claim.consumer)
        consumer_store.check_generation(present, claim.generation)
        if claim.consumer in pending:
            raise Conflict(
                f"The consumer {claim.consumer} is a reservation that begins later: until then, only"
                " /ext/v1/reservations changes it."
            )
        if present is not None:
            refuse_hold(present)


def refuse_hold(consumer: consumer_store.ConsumerRow) -> None:
    """Refuse to change a hold, which only the service changes, with :class:`Conflict`."""
    if consumer.consumer_type == WINDOW_HOLD:
        raise Conflict(
            f"The consumer {consumer.uuid} keeps resources free for reservations that begin later: it changes"
            " with these reservations only."
        )


def refuse_used_windows(claims: Iterable[ConsumerClaim], locked: LockedConsumers) -> None:
    """Refuse a claim that would replace the amounts of a window while other claims use the window.

    Such a claim has no time, and does not know which amounts return to the window. A claim is allowed if it
    takes nothing, or gives the consumer another type.

    :raises Conflict: the consumer of a claim is such a window.
    """
    for window in sorted({each.consumer for each in locked.promised}):
        for claim in claims:
            if (
                claim.consumer == window
                and claim.takes_anything
                and consumer_store.owner_after(locked.consumers[window], claim.owner).consumer_type
                == RESERVATION
            ):
                raise Conflict(
                    f"The consumer {window} is a reservation that claims use: only /ext/v1/reservations"
                    " changes its amounts."
                )


def lock_consumers(tx: WriteTransaction, uuids: Collection[str]) -> LockedConsumers:
    """Lock the consumers with these uuids until the transaction ends; ignore unknown uuids."""
    if not uuids:
        return LockedConsumers({})
    consumers_locked = consumer_store.lock(tx, uuids)
    # the query is queued before an answer is read, so that both statements are sent together
    held = tx.queue(*_HELD_BY.bind_list(uuids))
    known = {row.uuid: row for row in consumer_store.rows(consumers_locked)}
    holdings = [ClaimantHolding(*row) for *row, _, _ in held.rows]
    # the clock of the database decides in the same statement, because the clocks of workers differ
    expired = {uuid for uuid, *_, is_over, _ in held.rows if is_over}
    timed = {uuid for uuid, *_, is_timed in held.rows if is_timed}
    # a reservation without holdings is a window, which is pending or used by claims; other consumers need no
    # further query
    holders = {each.consumer for each in holdings}
    windows = [
        row.id
        for row in known.values()
        if row.consumer_type == RESERVATION and (row.uuid in timed or row.uuid not in holders)
    ]
    planned: list[ClaimantHolding] = []
    promised: list[ClaimantHolding] = []
    if windows:
        later = tx.queue(*_LATER_OF.bind_list(windows)).rows
        for *row, is_planned, is_over in later:
            holding = ClaimantHolding(*row)
            (planned if is_planned else promised).append(holding)
            # a window may expire while claims have all its amounts
            if is_over:
                expired.add(holding.consumer)
        timed.update(each.consumer for each in (*planned, *promised))
    return LockedConsumers(known, holdings, frozenset(expired), planned, promised, frozenset(timed))


_HELD_BY: Final = StatementFamily(
    consumers.c.uuid,
    sa.select(
        consumers.c.uuid,
        resource_providers.c.id,
        resource_providers.c.uuid,
        allocations.c.resource_class_id,
        allocations.c.used,
        # the rows include expired consumers, because their holdings still occupy resources
        sa.not_(NOT_EXPIRED),
        IS_TIMED,
    )
    .select_from(allocations)
    .join(resource_providers, resource_providers.c.id == allocations.c.provider_id)
    .join(consumers, consumers.c.id == allocations.c.consumer_id)
    .where,
)


def _later_amounts(chosen: sa.ColumnElement[bool]) -> sa.Select[Any]:
    def amounts(table: sa.Table, is_planned: str) -> sa.Select[Any]:
        return (
            sa.select(
                consumers.c.uuid,
                resource_providers.c.id,
                resource_providers.c.uuid.label("provider"),
                table.c.resource_class_id,
                table.c.used,
                sa.literal_column(is_planned).label("is_planned"),
                sa.not_(NOT_EXPIRED).label("is_over"),
            )
            .select_from(table)
            .join(resource_providers, resource_providers.c.id == table.c.provider_id)
            .join(consumers, consumers.c.id == table.c.consumer_id)
            .where(chosen)
        )

    found = sa.union_all(amounts(planned_allocations, "1"), amounts(window_promises, "0")).subquery()
    return sa.select(*found.c)


_LATER_OF: Final = StatementFamily(consumers.c.id, _later_amounts)
