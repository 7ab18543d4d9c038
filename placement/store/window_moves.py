"""Moves windows that have not begun from one host to another."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import sqlalchemy as sa

from placement.db import clock
from placement.db.batch import StatementBatch, StatementFamily, split_rows
from placement.db.database import WriteTransaction
from placement.db.tables import (
    consumers,
    planned_allocations,
    reservations,
    resource_classes,
    resource_providers,
)
from placement.exceptions import Conflict
from placement.store import reservations as reservation_store
from placement.store.allocations import write_claims
from placement.store.claimants import LockedConsumers, lock_consumers
from placement.store.claims import ConsumerClaim
from placement.store.providers import queue_versions, versions_of
from placement.store.time_profile import TimeWindow

ByProvider = Mapping[str, Mapping[str, int]]
"""Amounts by uuid of the provider and by resource class."""


@dataclass(frozen=True, slots=True)
class WindowMove:
    """A pending window, by uuid of its reservation, with all its amounts before and after a move.

    ``described`` has the ``described_seq`` of each provider of the new host, by id, when it was chosen.
    """

    consumer: str
    window: TimeWindow
    before: ByProvider
    after: ByProvider
    described: Mapping[int, int]


def movable_windows(conn: sa.Connection, providers: Collection[str]) -> dict[str, ByProvider]:
    """Return the movable windows of some providers that have not begun, with their amounts at all providers.

    :param providers: the uuids of these providers.
    """
    batch = StatementBatch(conn)
    answers = [batch.add(*_MOVABLE.bind_list(chunk)) for chunk in split_rows(sorted(providers))]
    found: dict[str, dict[str, dict[str, int]]] = {}
    for consumer, provider, name, used in (row for each in answers for row in each.rows):
        found.setdefault(consumer, {}).setdefault(provider, {})[name] = used
    return {**found}


def _movable_query(chosen: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Return a query for the movable windows of some providers, with all amounts of each window."""
    held, supplies = planned_allocations.alias(), resource_providers.alias()
    there = (
        sa.select(planned_allocations.c.consumer_id)
        .join(resource_providers, resource_providers.c.id == planned_allocations.c.provider_id)
        .where(chosen)
    )
    return (
        sa.select(consumers.c.uuid, supplies.c.uuid, resource_classes.c.name, held.c.used)
        .select_from(reservations)
        .join(consumers, consumers.c.id == reservations.c.consumer_id)
        .join(held, held.c.consumer_id == consumers.c.id)
        .join(supplies, supplies.c.id == held.c.provider_id)
        .join(resource_classes, resource_classes.c.id == held.c.resource_class_id)
        .where(
            reservations.c.consumer_id.in_(there),
            reservations.c.is_movable,
            reservations.c.starts_at > clock.ServerNow(),
        )
    )


_MOVABLE: Final = StatementFamily(resource_providers.c.uuid, _movable_query)


def write_move(tx: WriteTransaction, move: WindowMove) -> bool:
    """Move a window in this transaction; return False if the window has changed since it was chosen.

    :raises Conflict: the new host has no room, or more than its usage has changed.
    """
    locked = lock_consumers(tx, [move.consumer])
    tx.lock({*move.before, *move.after})
    claims = moved_claims(tx, [move], locked)
    if claims is None:
        return False
    # the query is queued now and its answer is read after the write, so that one batch has all statements
    found = queue_versions(tx, move.described)
    write_claims(tx, claims, locked)
    if versions_of(found) != move.described:
        raise Conflict(f"The new host of the window {move.consumer} has changed.")
    return True


def moved_claims(
    tx: WriteTransaction, moves: Sequence[WindowMove], locked: LockedConsumers
) -> list[ConsumerClaim] | None:
    """Return the claims of moved windows; None if one of the windows has changed.

    The caller has locked the windows, and the buckets of all their providers.
    """
    claims = []
    for move in moves:
        row = locked.consumers.get(move.consumer)
        # the window is read under the lock, so that no other transaction changes it after the check
        found = None if row is None else reservation_store.find_reservation(tx.conn, move.consumer)
        if row is None or found is None or found.has_begun or not found.is_movable:
            return None
        claim = reservation_store.window_claim(tx, row, locked, move.window)
        if (found.starts_at, found.expires_at) != (move.window.starts_at, move.window.ends_at):
            return None
        if claim.resources != move.before:
            return None
        claims.append(replace(claim, resources=move.after))
    return claims
