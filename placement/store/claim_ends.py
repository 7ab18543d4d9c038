"""Changes the end times of claims; the consumer, the providers and the amounts of a claim stay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from placement.db import clock
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.exceptions import ConcurrentUpdate, Conflict, EndTooLate, Unavailable
from placement.store import allocations, claimants, due_changes, expiries, reservations, window_promises
from placement.store import consumers as consumer_store
from placement.store.claims import CapacityExceeded
from placement.store.expiries import ClaimEnd
from placement.store.reservations import CapacityReservation
from placement.store.time_profile import (
    AT_ONCE,
    EndAction,
    HoldKey,
    TimedAmount,
    TimeWindow,
    by_key,
    check_window,
    first_growth,
    iso_time,
)
from placement.store.time_schedule import read_schedule


@dataclass(frozen=True, slots=True)
class EndChange:
    """The new end time of a claim, and the action on the guest then; None keeps the present value."""

    ends_at: float | None
    on_end: EndAction | None


def change_end(database: ServiceDatabase, consumer: str, generation: int, change: EndChange) -> ClaimEnd:
    """Change the end time of a claim; return the new end. The generation of the consumer increases by one.

    :raises NotFound: the consumer has no claim with a future end time.
    :raises InvalidRequest: the new end time is not in the future.
    :raises EndTooLate: the resources of the claim are not free until the new end time.
    :raises Conflict: the claim has no fixed end time. Or the new end time is later than both the present end
        time and the end of the claim's window.
    """
    try:
        return due_changes.write_with_room(
            database, lambda tx: _change_locked(tx, consumer, generation, change), [consumer]
        )
    except CapacityExceeded as refusal:
        latest = None
        # the refusal is certain, so a failure of the database after it must not replace it
        with suppress(Unavailable):
            # the refused transaction was rolled back, so this transaction reads the amounts without the
            # change
            latest = database.write(lambda tx: _latest_end(tx, consumer))
        refused = Conflict(f"The claim of consumer {consumer} cannot last until then. {refusal.detail}")
        if change.ends_at is not None and latest is not None and latest < change.ends_at:
            latest_end = iso_time(latest)
            refused = EndTooLate(f"{refused.detail} It may end at {latest_end} at the latest.", latest_end)
        refused.has_overlaps = refusal.has_overlaps
        raise refused from refusal


def _change_locked(tx: WriteTransaction, consumer: str, generation: int, change: EndChange) -> ClaimEnd:
    before = _source_window(tx, consumer)
    # one call locks both consumers, so that locks are taken in the usual order
    locked = claimants.lock_consumers(tx, [consumer, *([] if before is None else [before.uuid])])
    row, found = locked.consumers.get(consumer), expiries.find_expiry(tx.conn, consumer)
    consumer_store.check_generation(row, generation)
    # this line is for the type checker: a consumer with this generation exists
    assert row is not None
    if not found.is_final:
        raise Conflict(
            f"The claim of consumer {consumer} has no fixed end: confirm it with expires_in, or claim again"
            " with ends_at."
        )
    if found.seconds <= found.cleaning_time:
        # the claim is over, and its guest may be gone
        raise expiries.no_expiry(consumer)
    source = _source_window(tx, consumer)
    if (before and before.uuid) != (source and source.uuid):
        raise ConcurrentUpdate("The reservation of the claim has changed just now. Please try again.")
    present_end = found.expires_at - found.cleaning_time
    guest_end = present_end if change.ends_at is None else change.ends_at
    check_window(TimeWindow(AT_ONCE, guest_end), clock.server_time(tx.conn))
    # the end of the window may have moved to a time before the end of the claim. Even then the claim may get
    # an earlier end
    if source is not None and guest_end > max(source.usable.ends_at, present_end):
        raise Conflict(
            f"The claim of consumer {consumer} is from the reservation {source.uuid}, which ends at"
            f" {iso_time(source.usable.ends_at)}: move the end of the reservation first."
        )
    if source is not None:
        locked = locked.with_scope(source.uuid, locked.providers_beside(source.uuid))
    end = _later_end(expiries.read_ends(tx, [consumer])[consumer], guest_end, change.on_end)
    tx.lock(locked.providers)
    claims = [
        replace(
            reservations.window_claim(tx, row, locked, TimeWindow(AT_ONCE, end.expires_at)),
            taken_from=None if source is None else source.uuid,
        )
    ]
    if source is not None and source.starts_at is not None:
        # the window is written, too, because the amounts that return to it depend on its claims
        time = TimeWindow(source.starts_at, source.expires_at)
        claims.append(reservations.window_claim(tx, locked.consumers[source.uuid], locked, time))
    allocations.write_claims(tx, claims, locked)
    expiries.write_ends(tx, {consumer: end if source is not None else replace(end, window_id=None)}, [row.id])
    return end


def latest_expiry(
    tx: WriteTransaction,
    consumer: str,
    amounts: Mapping[HoldKey, int],
    present: TimeWindow,
    *,
    has_begun: bool,
) -> tuple[float, list[TimedAmount]]:
    """Return the latest possible end of timed amounts, and the timed amounts of other consumers there.

    The end is infinite if nothing limits it. It is never earlier than the present end.

    :param amounts: the amounts that the consumer keeps. An amount of 0 means that claims use all of it, and
        give it back to the consumer at their ends.
    :param present: the present time of the amounts.
    :param has_begun: whether the amounts have allocations.
    """
    keys = sorted(amounts)
    supplies, class_ids = allocations.read_supplies(tx, {provider for provider, _ in keys})
    schedule = read_schedule(tx.conn, of_providers=supplies)
    by_provider = by_key(schedule.amounts)
    endless, ahead = TimeWindow(present.starts_at, math.inf), TimeWindow(present.ends_at, math.inf)
    latest, others = math.inf, list[TimedAmount]()
    for key in keys:
        provider, name = key
        some = by_provider.get(key, [])
        capacity, used = supplies[provider].balance_of(class_ids.get(name))
        timed = sum(one.used for one in some if one.has_begun)
        timed += sum(amount for held_key, amount in schedule.holds if held_key == key)
        room = capacity - (used - timed)
        beside = [one for one in some if one.consumer != consumer]
        longer = [TimedAmount(consumer, *key, amounts[key], endless, has_begun)]
        longer += [
            # claims give these amounts back at their ends
            replace(one, window=replace(one.window, ends_at=math.inf))
            for one in some
            if one.consumer == consumer and one.is_return and one.window.starts_at > present.starts_at
        ]
        latest = min(latest, first_growth(some, [*beside, *longer], room, ahead))
        others += beside
    return latest, others


def _latest_end(tx: WriteTransaction, consumer: str) -> float | None:
    """Return the latest possible end of a claim on its present providers; None if it has a window.

    Then the end of the window is the latest end.
    """
    found = expiries.find_expiry(tx.conn, consumer)
    if _source_window(tx, consumer) is not None:
        return None
    held = allocations.of_consumers(tx.conn, [consumer])
    amounts = {(each.provider, each.resource_class): each.used for each in held}
    present = TimeWindow(AT_ONCE, found.expires_at)
    latest, _ = latest_expiry(tx, consumer, amounts, present, has_begun=True)
    return latest - found.cleaning_time


def _later_end(end: ClaimEnd, guest_end: float, on_end: EndAction | None) -> ClaimEnd:
    expires_at = guest_end + end.cleaning_time
    return replace(
        end,
        expires_at=expires_at,
        on_end=on_end or end.on_end,
        # a preemptible claim cannot keep its room for longer than it lasts
        kept_until=None if end.kept_until is None else min(end.kept_until, expires_at),
        # events of the new end count from now on
        booked_at=None,
    )


def _source_window(tx: WriteTransaction, consumer: str) -> CapacityReservation | None:
    """Return the window from which a claim was made; None if there is none, or it is over."""
    uuid = window_promises.source_windows(tx.conn, [consumer]).get(consumer)
    return None if uuid is None else reservations.find_reservation(tx.conn, uuid)
