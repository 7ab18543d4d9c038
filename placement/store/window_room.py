"""Makes room for a new window: ends preemptible claims at its start, and moves windows that have not begun.

Windows move from one host to another with all their amounts there (:class:`WindowMove`). The transaction of a
booking writes both kinds of changes together with the window.

A preemptible claim keeps its allocations at least until a promised time (``kept_until``). After that time,
the start of a window may end the claim, with some notice. The transaction that writes the window also writes
the earlier end time of the claim: a new claim of the same consumer for the same amounts. So one check covers
all instants of the claim and of the window, and no amount is promised twice. The generation of the claim's
consumer increases.

A worked example
    A host has 8 VCPU. Preemptible claims ``a`` and, later, ``b`` hold 3 VCPU each until the end of the year.
    A window needs 4 VCPU from tomorrow on. The window ends the newer claim ``b`` at its start, which leaves 5
    VCPU.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import Any, Final

import sqlalchemy as sa

from placement.db import clock
from placement.db.batch import StatementBatch, StatementFamily, split_rows
from placement.db.database import WriteTransaction
from placement.db.tables import (
    allocations,
    claim_expiries,
    consumers,
    join_amounts,
    planned_allocations,
    reservations,
    resource_classes,
    resource_providers,
)
from placement.exceptions import Conflict
from placement.store import reservations as reservation_store
from placement.store.allocations import write_claims
from placement.store.claimants import LockedConsumers, lock_consumers
from placement.store.claims import ByProvider, ConsumerClaim
from placement.store.consumers import EXPIRING_CONSUMERS
from placement.store.providers import queue_versions
from placement.store.time_profile import (
    AT_ONCE,
    EndAction,
    HoldKey,
    TimedAmount,
    TimeWindow,
    by_key,
    largest_sum,
)
from placement.store.time_schedule import TimeSchedule, read_schedule

# an agent or a guest needs some time to stop in good order
MIN_NOTICE: Final = 300.0
"""Minimum number of seconds from the booking of a window to the end of a claim that makes room for it."""
# the number limits the work of one booking in a cloud full of preemptible claims
_MAX_CLAIMS: Final = 1000
"""Maximum number of preemptible claims that one booking considers, the newest claims first."""


@dataclass(frozen=True, slots=True)
class PreemptibleRoom:
    """Preemptible claims that may end at ``ends_at``, the newest first, and their providers' schedule."""

    ends_at: float
    claims: Sequence[str]
    schedule: TimeSchedule

    @property
    def shortened_amounts(self) -> list[TimedAmount]:
        """The timed amounts as if all these claims ended at ``ends_at``."""
        return shorten_amounts(self.schedule.amounts, self.claims, self.ends_at)


def shorten_amounts(
    amounts: Iterable[TimedAmount], claims: Collection[str], ends_at: float
) -> list[TimedAmount]:
    """Return timed amounts as if some claims ended at a time."""
    chosen = frozenset(claims)
    return [
        replace(each, window=TimeWindow(each.window.starts_at, min(each.window.ends_at, ends_at)))
        if each.consumer in chosen
        else each
        for each in amounts
    ]


def choose_preempted(
    room: PreemptibleRoom,
    limits: Mapping[HoldKey, int],
    window: TimeWindow,
    spend: Callable[[int], None] = lambda _: None,
) -> tuple[str, ...] | None:
    """Return the claims that have to end for a window: as few as needed, the newest claims first.

    :param limits: the largest sums of timed amounts that leave room for the window.
    :param window: a window that begins when the claims end, or later.
    :param spend: a function that is called with the number of amounts of each test; its exception ends the
        choice.
    :returns: None if the window has no room even without all these claims.
    """
    amounts = by_key(each for each in room.schedule.amounts if each.key in limits)
    size = sum(len(some) for some in amounts.values())
    concerned = {each.consumer for some in amounts.values() for each in some}
    claims = [each for each in room.claims if each in concerned]

    def has_room(ended: Iterable[str]) -> bool:
        spend(size)
        gone = frozenset(ended)
        return all(
            largest_sum((each for each in amounts.get(key, ()) if each.consumer not in gone), window) <= limit
            for key, limit in limits.items()
        )

    # the free amount only grows with the number of claims that end
    count = bisect_left(range(len(claims) + 1), True, key=lambda number: has_room(claims[:number]))
    if count > len(claims):
        return None
    chosen = claims[:count]
    # an older claim may free so much that a newer one need not end; without the oldest claim there is too
    # little free
    for each in reversed(chosen[:-1]):
        others = [one for one in chosen if one != each]
        if has_room(others):
            chosen = others
    return tuple(chosen)


def any_preemptible(conn: sa.Connection, ends_at: float) -> bool:
    """Return whether any preemptible claim may end at a time."""
    return conn.execute(_ANY, {"ends_at": ends_at}).first() is not None


def read_preemptible(
    conn: sa.Connection, names: Collection[str], of_providers: Collection[str] | None, ends_at: float
) -> PreemptibleRoom | None:
    """Return the newest preemptible claims of these classes that may end at a time.

    The result is None if there are no such claims.

    :param of_providers: the uuids of the providers to search; None means all providers.
    """
    values = {"names": sorted(names), "ends_at": ends_at, "limit": _MAX_CLAIMS}
    if of_providers is None:
        rows = conn.execute(_NEWEST, values).all()
    else:
        chunks = split_rows(sorted(of_providers))
        rows = [row for each in chunks for row in conn.execute(_NEWEST_THERE, {**values, "providers": each})]
    # a claim on providers of several chunks is in several answers
    found = {(-float(booked_at), uuid) for uuid, booked_at in rows}
    if not found:
        return None
    claims = [uuid for _, uuid in nsmallest(_MAX_CLAIMS, found)]
    used = {
        provider
        for chunk in split_rows(claims)
        for provider in conn.execute(_USED, {"names": sorted(names), "uuids": chunk}).scalars()
    }
    schedule = read_schedule(conn, of_providers=used if of_providers is None else used & set(of_providers))
    return PreemptibleRoom(ends_at, claims, schedule)


def preemptible_claims(conn: sa.Connection, uuids: Collection[str]) -> list[str]:
    """Return those of some consumers that have preemptible claims."""
    return list(conn.execute(_PREEMPTIBLE, {"uuids": sorted(uuids)}).scalars()) if uuids else []


_PREEMPTIBLE: Final = (
    sa.select(consumers.c.uuid)
    .select_from(EXPIRING_CONSUMERS)
    .where(
        claim_expiries.c.kept_until.is_not(None), consumers.c.uuid.in_(sa.bindparam("uuids", expanding=True))
    )
)
_MAY_END: Final = sa.and_(
    claim_expiries.c.is_final,
    claim_expiries.c.kept_until <= sa.bindparam("ends_at", type_=sa.Double),
    claim_expiries.c.expires_at > sa.bindparam("ends_at", type_=sa.Double),
    clock.ServerNow() + sa.literal(MIN_NOTICE, sa.Double) <= sa.bindparam("ends_at", type_=sa.Double),
)
_ANY: Final = sa.select(claim_expiries.c.consumer_id).where(_MAY_END).limit(1)
_preemptible: Final = join_amounts(allocations, EXPIRING_CONSUMERS)
_of_classes: Final = resource_classes.c.name.in_(sa.bindparam("names", expanding=True))
_NEWEST: Final = (
    # the limit counts claims, because a claim may have many amounts
    sa.select(consumers.c.uuid, claim_expiries.c.booked_at)
    .distinct()
    .select_from(_preemptible)
    .where(_MAY_END, _of_classes)
    .order_by(claim_expiries.c.booked_at.desc(), consumers.c.uuid)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)
_NEWEST_THERE: Final = _NEWEST.where(resource_providers.c.uuid.in_(sa.bindparam("providers", expanding=True)))
_USED: Final = (
    sa.select(resource_providers.c.uuid)
    .distinct()
    .select_from(_preemptible)
    .where(_of_classes, consumers.c.uuid.in_(sa.bindparam("uuids", expanding=True)))
)
_LOCKED: Final = (
    sa.select(consumers.c.uuid, claim_expiries.c.kept_until, claim_expiries.c.on_end)
    .select_from(EXPIRING_CONSUMERS)
    .where(_MAY_END, consumers.c.uuid.in_(sa.bindparam("uuids", expanding=True)))
)


def preempted_claims(
    tx: WriteTransaction, preempted: Collection[str], ends_at: float, locked: LockedConsumers
) -> list[ConsumerClaim] | None:
    """Return claims of locked consumers that end at ``ends_at``; None if one must not end then."""
    values = {"uuids": sorted(preempted), "ends_at": ends_at}
    found = {uuid: (kept, on_end) for uuid, kept, on_end in tx.conn.execute(_LOCKED, values)}
    if found.keys() != set(preempted):
        return None
    window, claims = TimeWindow(AT_ONCE, ends_at), []
    for uuid, (kept_until, on_end) in sorted(found.items()):
        claim = reservation_store.window_claim(tx, locked.consumers[uuid], locked, window)
        claims.append(replace(claim, kept_until=float(kept_until), on_end=EndAction(on_end)))
    return claims


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
    present = queue_versions(tx, move.described)
    write_claims(tx, claims, locked)
    if present() != move.described:
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
