"""Claims that expire at a time (by the database's clock), unless a client confirms them first.

A consumer with an expiring claim has a row in ``claim_expiries``, which counts only for one generation of the
consumer. After any write of its allocations, or after a confirmation without a new expiry, the claim of the
consumer does not expire any more. A claim with a fixed end time has a row in the same table. No confirmation
changes this end time, and :mod:`placement.store.time_profile` relies on this. Expired claims are released
like reservations (:mod:`placement.store.due_changes`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from placement.db import buckets, clock
from placement.db.batch import PreparedStatement, StatementAnswer, StatementFamily
from placement.db.database import WriteTransaction
from placement.db.tables import (
    RESERVATION,
    ConsumerId,
    allocations,
    claim_expiries,
    consumers,
    resource_providers,
)
from placement.exceptions import Conflict, NotFound
from placement.store import consumers as consumer_store
from placement.store.consumers import EXPIRES, EXPIRING_CONSUMERS
from placement.store.time_profile import EndAction


def write(tx: WriteTransaction, seconds: Mapping[str, float], known: list[int]) -> StatementAnswer | None:
    """Set the expiry times of claims that this transaction writes.

    :param seconds: seconds until the expiry, by uuid of the consumer.
    :param known: the ids of those consumers that existed before this transaction.
    :returns: rows of the uuid of a consumer and the time when its claim expires; None if no claim expires.
    """
    # claims that do not expire, the common case, need no statement
    if not seconds:
        return None
    # rows of earlier claims are deleted, because a consumer has at most one row
    if known:
        tx.queue(*_REMOVAL.bind_list(sorted(known)))
    chosen = sorted(seconds)
    # the code uses one statement for each consumer: few claims of a call expire, and a single text is
    # prepared once
    for consumer in chosen:
        tx.queue(_insertion, {"consumer": consumer, "seconds": seconds[consumer]})
    # this counter is incremented, so that all workers read the next expiry again
    tx.lock_buckets([buckets.RESERVATIONS])
    return tx.queue(*_TIMES.bind_list(chosen))


_consumer: Final = consumers.c.uuid == sa.bindparam("consumer")


def _insert_expiry(expires_at: sa.ColumnElement[float], **others: sa.ColumnElement[Any]) -> PreparedStatement:
    return PreparedStatement(
        sa.insert(claim_expiries).values(
            # the consumer is selected by uuid, because the ids of consumers that this transaction creates are
            # unknown
            consumer_id=sa.select(consumers.c.id).where(_consumer).scalar_subquery(),
            # the statement is sent after the write of the claim, so that the row gets the new generation
            generation=sa.select(consumers.c.generation).where(_consumer).scalar_subquery(),
            expires_at=expires_at,
            **others,
        )
    )


# the time is computed by the database, so that a wrong clock of a worker does no harm
_insertion: Final = _insert_expiry(clock.ServerNow() + sa.bindparam("seconds", type_=sa.Double))


@dataclass(frozen=True, slots=True)
class ClaimEnd:
    """The end time of a claim, the cleaning time after it, and the action on the guest at the end time.

    ``expires_at`` is in seconds since 1970, ``cleaning_time`` in seconds. The start of a window may end a
    preemptible claim earlier, but not before ``kept_until``. None means that the claim is not preemptible.
    ``booked_at`` is the time at which the end time was set; None means now. ``window_id`` is the consumer of
    the window from which the claim has taken its amounts.
    """

    expires_at: float
    cleaning_time: int
    on_end: EndAction
    kept_until: float | None = None
    booked_at: float | None = None
    window_id: int | None = None


def write_ends(tx: WriteTransaction, ends: Mapping[str, ClaimEnd], known: Collection[int]) -> None:
    """Write the end times of claims that this transaction writes; no confirmation changes these times.

    :param ends: the end times of claims, by uuid of the consumer.
    :param known: the ids of those consumers that existed before the transaction.
    """
    if not ends:
        return
    if known:
        tx.queue(*_REMOVAL.bind_list(sorted(known)))
    for consumer, end in sorted(ends.items()):
        tx.queue(_end_insertion, {"consumer": consumer, **asdict(end)})
    tx.lock_buckets([buckets.RESERVATIONS])


_end_insertion: Final = _insert_expiry(
    sa.bindparam("expires_at", type_=sa.Double),
    cleaning_time=sa.bindparam("cleaning_time", type_=sa.Integer),
    on_end=sa.bindparam("on_end", type_=sa.String),
    kept_until=sa.bindparam("kept_until", type_=sa.Double),
    window_id=sa.bindparam("window_id", type_=ConsumerId),
    booked_at=sa.func.coalesce(sa.bindparam("booked_at", type_=sa.Double), clock.ServerNow()),
    is_final=sa.true(),
)


def read_ends(tx: WriteTransaction, uuids: Collection[str]) -> dict[str, ClaimEnd]:
    """Return the end of each claim of these locked consumers that has an end time, by uuid."""
    return {
        uuid: ClaimEnd(
            float(ends_at),
            cleaning,
            EndAction(on_end),
            None if kept is None else float(kept),
            float(booked),
            window_id,
        )
        for uuid, ends_at, cleaning, on_end, kept, booked, window_id in tx.conn.execute(
            _ENDS, {"uuids": sorted(uuids)}
        )
    }


def any_ends(conn: sa.Connection, uuids: Collection[str]) -> bool:
    """Return whether any of these consumers has a claim with an end time."""
    return conn.execute(_ENDS.limit(1), {"uuids": sorted(uuids)}).first() is not None


_ENDS: Final = (
    sa.select(
        consumers.c.uuid,
        claim_expiries.c.expires_at,
        claim_expiries.c.cleaning_time,
        claim_expiries.c.on_end,
        claim_expiries.c.kept_until,
        claim_expiries.c.booked_at,
        claim_expiries.c.window_id,
    )
    .select_from(EXPIRING_CONSUMERS)
    .where(claim_expiries.c.is_final, consumers.c.uuid.in_(sa.bindparam("uuids", expanding=True)))
)


_REMOVAL: Final = StatementFamily(claim_expiries.c.consumer_id, sa.delete(claim_expiries).where)
_TIMES: Final = StatementFamily(
    consumers.c.uuid,
    sa.select(consumers.c.uuid, claim_expiries.c.expires_at).select_from(EXPIRING_CONSUMERS).where,
)


class ClaimExpiry(NamedTuple):
    """The expiry of a claim (as seconds since 1970, and as seconds from now), and its consumer's generation.

    If ``is_final`` is true, the claim cannot be confirmed: its amounts are released ``cleaning_time`` seconds
    after its end. A preemptible claim has ``kept_until``.
    """

    generation: int
    expires_at: float
    seconds: float
    is_final: bool
    cleaning_time: int
    on_end: EndAction
    kept_until: float | None


def find_expiry(conn: sa.Connection, consumer: str) -> ClaimExpiry:
    """Return the expiry of a consumer's claim, or raise NotFound if it does not expire, or has expired."""
    row = conn.execute(_present, {"consumer": consumer}).one_or_none()
    if row is None:
        raise no_expiry(consumer)
    # one statement reads both times, so that their difference is right even if the clock of the client is
    # wrong
    generation, expires_at, present, is_final, cleaning_time, on_end, kept = row
    kept_until = None if kept is None else float(kept)
    seconds = float(expires_at) - float(present)
    return ClaimExpiry(
        generation, float(expires_at), seconds, bool(is_final), cleaning_time, EndAction(on_end), kept_until
    )


_present: Final = (
    sa.select(
        consumers.c.generation,
        claim_expiries.c.expires_at,
        clock.ServerNow(),
        claim_expiries.c.is_final,
        claim_expiries.c.cleaning_time,
        claim_expiries.c.on_end,
        claim_expiries.c.kept_until,
    )
    .select_from(EXPIRING_CONSUMERS)
    .where(_consumer, claim_expiries.c.expires_at > clock.ServerNow())
)


@dataclass(frozen=True, slots=True)
class EndingClaim:
    """A consumer with a claim that ends at a fixed time; all times are in seconds since 1970.

    The amounts are released at ``expires_at``. The start of a window may end a preemptible claim earlier, but
    not before ``kept_until``; None means that the claim is not preemptible.
    """

    consumer: str
    generation: int
    project_id: str
    consumer_type: str | None
    ends_at: float
    expires_at: float
    on_end: EndAction
    kept_until: float | None


EndMarker = tuple[float, str]
"""The sorting time and the consumer of the last claim on a page; the next page begins after this claim."""


def list_ending(
    conn: sa.Connection,
    root: str | None,
    after: EndMarker,
    limit: int,
    *,
    only_preemptible: bool = False,
    window: str | None = None,
) -> tuple[float, list[EndingClaim]]:
    """Return the current time, and a page of the claims with an end time.

    With a ``root``, the page is sorted by end time. Without a ``root``, the page is sorted by the time of
    release, which is the end time plus the cleaning time. Claims in their cleaning time are included.

    :param root: the uuid of the root provider of the tree; None means all trees.
    :param after: the sorting time and the consumer of the claim before the page.
    :param window: the uuid of the reservation from which the claims have taken their amounts; None means all
        claims.
    :raises NotFound: ``root`` is no root provider.
    """
    values: dict[str, Any] = {"end": after[0], "after": after[1], "limit": limit}
    if root is None:
        query, now = _ENDING, clock.server_time(conn)
    else:
        row = conn.execute(_root, {"root": root}).one_or_none()
        if row is None:
            raise NotFound(f"There is no tree with the root provider {root}: give the root of a host.")
        query, (values["root"], now) = _ENDING_THERE, row
    if only_preemptible:
        query = query.where(claim_expiries.c.kept_until.is_not(None))
    if window is not None:
        query, values["window"] = query.where(_of_window), window
    found = [_ending_claim(row) for row in conn.execute(query, {**values, "now": now})]
    return float(now), found


def _ending_claim(row: Sequence[Any]) -> EndingClaim:
    consumer, generation, project_id, consumer_type, ends_at, expires_at, on_end, kept = row
    kept_until = None if kept is None else float(kept)
    end = EndAction(on_end)
    return EndingClaim(
        consumer, generation, project_id, consumer_type, float(ends_at), float(expires_at), end, kept_until
    )


_root: Final = sa.select(resource_providers.c.id, clock.ServerNow()).where(
    resource_providers.c.uuid == sa.bindparam("root"), resource_providers.c.root_id.is_(None)
)
_end_time: Final = claim_expiries.c.expires_at - claim_expiries.c.cleaning_time
_end: Final = sa.bindparam("end", type_=sa.Double)
_window: Final = consumers.alias("window_consumers")
_of_window: Final = claim_expiries.c.window_id == (
    sa.select(_window.c.id)
    .where(_window.c.uuid == sa.bindparam("window"), _window.c.consumer_type == RESERVATION)
    .scalar_subquery()
)
_ending_claims: Final = sa.select(
    consumers.c.uuid,
    consumers.c.generation,
    consumers.c.project_id,
    consumers.c.consumer_type,
    _end_time.label("ends_at"),
    claim_expiries.c.expires_at,
    claim_expiries.c.on_end,
    claim_expiries.c.kept_until,
).where(claim_expiries.c.is_final, claim_expiries.c.expires_at > sa.bindparam("now", type_=sa.Double))


def _is_behind(time: sa.ColumnElement[float]) -> sa.ColumnElement[bool]:
    return (time > _end) | ((time == _end) & (consumers.c.uuid > sa.bindparam("after")))


_ENDING_THERE: Final = (
    # the rows are distinct, because a consumer may have several amounts of a tree
    _ending_claims.distinct()
    # the query goes from the few allocations of the tree to the end times by primary key, because a cloud may
    # have many end times
    .select_from(resource_providers)
    .join(allocations, allocations.c.provider_id == resource_providers.c.id)
    .join(claim_expiries, claim_expiries.c.consumer_id == allocations.c.consumer_id)
    .join(consumers, EXPIRES)
    .where(
        (resource_providers.c.id == sa.bindparam("root", type_=sa.Integer))
        | (resource_providers.c.root_id == sa.bindparam("root", type_=sa.Integer)),
        _is_behind(_end_time),
    )
    .order_by(sa.literal_column("ends_at"), consumers.c.uuid)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)
_ENDING: Final = (
    _ending_claims.select_from(EXPIRING_CONSUMERS)
    # the conditions are on plain columns, so that the index on the time finds a page without reading the
    # claims of other pages
    .where(claim_expiries.c.expires_at >= _end, _is_behind(claim_expiries.c.expires_at))
    .order_by(claim_expiries.c.expires_at, consumers.c.uuid)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)


def confirm_claim(
    tx: WriteTransaction, consumer: str, generation: int, seconds: float | None
) -> float | None:
    """Make an expiring claim permanent, or change its expiry; return the new expiry time.

    The result is None for a permanent claim. The generation of the consumer increases by one.

    :param seconds: seconds from now until the new expiry; None makes the claim permanent.
    :raises NotFound: no claim of this consumer expires, or the claim has expired already.
    :raises Conflict: the claim has a fixed end time.
    """
    # the statement locks the consumer, so that the claim cannot be released between the check and the write
    rows = consumer_store.rows(consumer_store.lock(tx, [consumer]))
    if not rows:
        raise no_expiry(consumer)
    (row,) = rows
    query = sa.select(claim_expiries.c.generation, claim_expiries.c.is_final).where(
        claim_expiries.c.consumer_id == row.id, claim_expiries.c.expires_at > clock.ServerNow()
    )
    found = tx.conn.execute(query).first()
    # the row counts only for the consumer's current generation
    if found is None or found.generation != row.generation:
        raise no_expiry(consumer)
    consumer_store.check_generation(row, generation)
    if found.is_final:
        raise Conflict(
            f"The claim of consumer {consumer} has a fixed end, which no confirmation changes: give the new"
            " ends_at, or claim again without it."
        )
    consumer_store.advance_consumer(tx, row, consumer_store.present_owner(row))
    if seconds is not None:
        answer = write(tx, {consumer: seconds}, [row.id])
        # this line is for the type checker: there is an answer, because one claim expires
        assert answer is not None
        return float(answer.rows[0][1])
    # the row is deleted although the new generation already makes it ineffective, because it would stay until
    # its time
    tx.queue(*_REMOVAL.bind_list([row.id]))
    tx.lock_buckets([buckets.RESERVATIONS])
    return None


def forget_confirmed(tx: WriteTransaction) -> None:
    """Delete expired rows of claims that have been confirmed or rewritten."""
    # rows of current generations stay, because these claims are released with their allocations
    current = sa.select(consumers.c.id).where(EXPIRES).exists()
    tx.conn.execute(
        sa.delete(claim_expiries).where(claim_expiries.c.expires_at <= clock.ServerNow(), ~current)
    )


def no_expiry(consumer: str) -> NotFound:
    """Return the error for a consumer that has no claim with an expiry time."""
    return NotFound(
        f"Consumer {consumer} has no claim that will expire: there is none, it has expired, or"
        " it is confirmed."
    )
