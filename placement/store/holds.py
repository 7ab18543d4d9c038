"""Writes holds, which are consumers that keep amounts of a provider free for windows.

The module ``time_profile`` decides how large holds are.

A provider has at most one hold, which is a consumer of the type ``WINDOW_HOLD``; the provider's uuid
determines the uuid of the hold. Each write of timed amounts also writes a claim for the provider's hold. This
claim replaces the old amounts of the hold by the new amounts. So the usual check of capacity also covers
windows. If all timed amounts of a provider have begun, and no claim gives amounts back to a window, the hold
of the provider has no amounts. Then the hold disappears like each consumer without allocations.

A transaction reads or writes the hold of a provider only while it has locked the provider's bucket. So the
transaction locks the row of the hold after the bucket, and no deadlock is possible; the transaction locks the
rows of other consumers before the buckets.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import sqlalchemy as sa

from placement.db import clock
from placement.db.batch import PreparedStatement
from placement.db.database import WriteTransaction
from placement.db.tables import WINDOW_HOLD, ConsumerId, allocations, planned_allocations, window_promises
from placement.store import consumers as consumer_store
from placement.store.claimants import LockedConsumers, lock_consumers
from placement.store.claims import (
    ClaimantHolding,
    ConsumerClaim,
    ProviderSupply,
    capacity_exceeded,
    claimed_amounts,
)
from placement.store.consumers import ANY_GENERATION, ConsumerOwnership
from placement.store.time_profile import (
    AT_ONCE,
    HoldKey,
    HoldRefusal,
    TimedAmount,
    TimedRows,
    TimeWindow,
    WindowPromise,
    by_key,
    check_amounts,
    first_growth,
    needed_holds,
    returned_amounts,
)
from placement.store.time_schedule import AMOUNTS, hold_uuid, timed_rows

LOG = logging.getLogger(__name__)

_OWNER: Final = ConsumerOwnership("placement-windows", "placement-windows", WINDOW_HOLD)
"""The owner of all holds; the project of the owner does not exist, because one hold is for windows of several
projects.
"""


@dataclass(frozen=True, slots=True)
class TimedWrite:
    """A write of timed amounts, with the claims that have allocations now and the claims that begin later.

    ``promises`` has the new promises of windows. ``lasting`` has the uuids of windows that must stay even
    without allocations, because claims have taken their amounts.
    """

    claims: Sequence[ConsumerClaim]
    planned: Sequence[ConsumerClaim]
    locked: LockedConsumers
    change: TimedChange | None = None
    promises: Sequence[WindowPromise] = ()
    lasting: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TimedChange:
    """The timed amounts before and after a write, both of the claimants and of all other consumers.

    ``before`` has only amounts with an end time. ``untimed`` has the claimants' holdings without an end time.
    """

    now: float
    others: Sequence[TimedAmount]
    before: Sequence[TimedAmount]
    untimed: Sequence[ClaimantHolding]
    after: Sequence[TimedAmount]

    def check_instants(self, supplies: Mapping[str, ProviderSupply], class_ids: Mapping[str, int]) -> None:
        """Refuse a write that increases the excess over a capacity at any instant.

        A check of the peak alone would accept an additional amount now if a later window is above the
        capacity.

        :param supplies: the supplies without the amounts of all claimants and holds.
        :raises CapacityExceeded: at some instant the claimed amounts exceed the capacity.
        """
        names = {class_id: name for name, class_id in class_ids.items()}
        untimed = [
            TimedAmount(each.consumer, each.provider, names[each.class_id], each.used, _ALWAYS, True)
            for each in self.untimed
            if each.class_id in names
        ]
        others, before, after = map(by_key, (self.others, [*self.before, *untimed], self.after))
        for (uuid, name), new in after.items():
            key, beside = (uuid, name), others.get((uuid, name), [])
            # a deleted provider or inventory has no capacity
            capacity, used = supplies[uuid].balance_of(class_ids.get(name)) if uuid in supplies else (0, 0)
            limit = capacity - used + sum(each.used for each in beside if each.has_begun)
            # the sum grows only while there are new amounts
            begin = max(self.now, min(each.starts_at for each in new))
            affected = TimeWindow(begin, max(each.window.ends_at for each in new))
            growth = first_growth([*beside, *before.get(key, [])], [*beside, *new], limit, affected)
            if growth < affected.ends_at:
                raise capacity_exceeded(uuid, name)


_ALWAYS: Final = TimeWindow(AT_ONCE, math.inf)
"""The time window of amounts without an end time."""


def plan_write(
    tx: WriteTransaction,
    claims: Sequence[ConsumerClaim],
    locked: LockedConsumers,
    *,
    may_lack_holds: bool = False,
) -> TimedWrite:
    """Return the write of these claims, with the claims of their providers' holds added.

    The caller has locked the consumers, and the buckets of all providers of the claims and of the holdings.

    :param may_lack_holds: whether to write the claims even if a hold cannot be written.
    :raises HoldRefusal: a provider would have too many timed amounts, or another consumer has the uuid of a
        hold.
    """
    claimants = {*locked.consumers, *(claim.consumer for claim in claims)}
    concerned = (*locked.holdings, *locked.planned, *locked.promised)
    providers = sorted(
        {each.provider for each in concerned if each.consumer in locked.timed}
        | {uuid for claim in claims if claim.window is not None for uuid in claim.resources}
    )
    state = _lock_holds(tx, providers, may_lack_holds=may_lack_holds)
    now, others = state.now, state.rows.without_consumers(claimants)
    # a window that has begun does not wait again if the clock has been set back
    active = {each.consumer for each in (*locked.holdings, *locked.promised)}
    active -= {each.consumer for each in locked.planned}
    pending = {
        claim.consumer
        for claim in claims
        if claim.window is not None and claim.window.starts_at > now and claim.consumer not in active
    }
    after = []
    for claim, uuid, name, amount in claimed_amounts(claims):
        window, has_begun = claim.window or _ALWAYS, claim.consumer not in pending
        after.append(TimedAmount(claim.consumer, uuid, name, amount, window, has_begun))
    rows = _rows_after(claims, locked, others, [each for each in after if each.window != _ALWAYS])
    returns = returned_amounts(rows)
    if len(rows.amounts) > len(others.amounts) and not may_lack_holds:
        check_amounts([*rows.amounts, *returns], now)
    known = state.locked.consumers
    holds = _create_holds(tx, state.providers, needed_holds([*rows.amounts, *returns], now), known)
    planned = [claim for claim in claims if claim.consumer in pending]
    begun = [claim for claim in claims if claim.consumer not in pending]
    if locked.planned:
        # windows that begin now lose their plans, too: their amounts become allocations
        waiting = sorted({locked.consumers[each.consumer].id for each in locked.planned})
        consumer_store.remove_amounts(tx, planned_allocations, waiting)
    new_promises = [each for each in rows.promises if each.window in claimants]
    old_promises = [each for each in state.rows.promises if each.window in claimants]
    # a claim only divides the amounts of its window in another way, so mostly no promise changes
    if not _are_same_amounts(old_promises, new_promises):
        _remove_promises(tx, locked)
    else:
        new_promises = []
    return TimedWrite(
        [*begun, *holds],
        planned,
        replace(
            locked,
            consumers={**locked.consumers, **known},
            holdings=[*locked.holdings, *state.locked.holdings],
        ),
        TimedChange(
            now,
            others.amounts,
            [
                *(each for each in state.rows.amounts if each.consumer in claimants),
                *returned_amounts(state.rows),
            ],
            [each for each in locked.holdings if each.consumer not in locked.timed],
            [*after, *returns],
        ),
        new_promises,
        frozenset(each.window for each in rows.promises),
    )


def _rows_after(
    claims: Sequence[ConsumerClaim],
    locked: LockedConsumers,
    others: TimedRows,
    own: Sequence[TimedAmount],
) -> TimedRows:
    """Return the rows of timed amounts after a write of these claims.

    :param others: the rows of all other consumers.
    :param own: the timed amounts of the claims.
    """
    taken = {each.consumer: locked.consumers[each.taken_from].id for each in claims if each.taken_from}
    sources, amounts = {**others.sources, **taken}, [*others.amounts, *own]
    windows = {
        row.id: claim
        for claim in claims
        if claim.window is not None and (row := locked.consumers.get(claim.consumer)) is not None
    }
    promised: Counter[tuple[int, HoldKey]] = Counter()
    for each in amounts:
        window_id = sources.get(each.consumer)
        if window_id is not None and window_id in windows:
            promised[window_id, each.key] += each.used
    used = {window_id for window_id, _ in promised}
    # the promise of a window consists of the amounts that it holds, and of the amounts that its claims use
    for window_id in used:
        for _, uuid, name, amount in claimed_amounts([windows[window_id]]):
            promised[window_id, (uuid, name)] += amount
    new = [
        WindowPromise(window_id, windows[window_id].consumer, uuid, name, amount, time)
        for (window_id, (uuid, name)), amount in promised.items()
        if (time := windows[window_id].window) is not None
    ]
    return TimedRows(amounts, [*others.promises, *new], sources)


def _are_same_amounts(one: Iterable[WindowPromise], other: Iterable[WindowPromise]) -> bool:
    """Return whether two lists of promises promise the same amounts to the same windows."""
    first, second = (
        {(each.window_id, each.provider, each.resource_class, each.used) for each in some}
        for some in (one, other)
    )
    return first == second


def _remove_promises(tx: WriteTransaction, locked: LockedConsumers) -> None:
    """Queue the removal of the promises of locked windows, which are written again."""
    windows = {each.consumer for each in locked.promised}
    whole = sorted(locked.consumers[each].id for each in windows - locked.scopes.keys())
    consumer_store.remove_amounts(tx, window_promises, whole)
    for window in windows & locked.scopes.keys():
        here = {each.provider_id for each in locked.promised if each.consumer == window}
        consumer_store.remove_amounts_at(tx, window_promises, locked.consumers[window].id, here)


def plan_repair(tx: WriteTransaction, providers: Sequence[str]) -> TimedWrite:
    """Lock these providers; return a write that corrects their holds according to their timed amounts.

    :raises HoldRefusal: another consumer has the uuid of a hold.
    """
    tx.lock(providers)
    state = _lock_holds(tx, providers)
    needed = needed_holds(state.rows.all_amounts, state.now)
    return TimedWrite(
        _create_holds(tx, providers, needed, state.locked.consumers), planned=(), locked=state.locked
    )


@dataclass(frozen=True, slots=True)
class _HoldState:
    """The time of the database, with the timed amounts and the locked holds of some providers.

    ``providers`` has the uuids of the providers that can have a hold.
    """

    now: float
    rows: TimedRows
    locked: LockedConsumers
    providers: Sequence[str]


def _lock_holds(
    tx: WriteTransaction, providers: Sequence[str], *, may_lack_holds: bool = False
) -> _HoldState:
    """Lock the holds of some providers, and read the timed amounts of these providers.

    :param may_lack_holds: whether to leave out the holds of which other consumers have the uuids.
    :raises HoldRefusal: another consumer has the uuid of a hold, and no hold may be left out.
    """
    clock_answer = tx.queue(clock.READ_TIME, {})
    amounts_answer = tx.queue(*AMOUNTS.bind_list(providers))
    # the four statements are sent together, because no answer is read before the last one is queued
    locked = lock_consumers(tx, [hold_uuid(each) for each in providers])
    if others := {uuid for uuid, row in locked.consumers.items() if row.consumer_type != WINDOW_HOLD}:
        refusal = HoldRefusal(
            f"The consumer {min(others)} has the uuid of the hold for windows of its provider: no window can"
            " be held there until this consumer is deleted."
        )
        if not may_lack_holds:
            raise refusal
        # each request first releases expired allocations, so a refusal here would stop the service
        LOG.error(
            "%s Until then, other consumers can get the resources of the windows at this provider.",
            refusal.detail,
        )
        locked = LockedConsumers(
            {uuid: row for uuid, row in locked.consumers.items() if uuid not in others},
            [each for each in locked.holdings if each.consumer not in others],
        )
    # the clock is read once, so that all amounts are compared with the same instant
    return _HoldState(
        float(clock_answer.scalars[0]),
        timed_rows(amounts_answer.rows),
        locked,
        [each for each in providers if hold_uuid(each) not in others],
    )


def _create_holds(
    tx: WriteTransaction,
    providers: Iterable[str],
    needed: dict[HoldKey, int],
    known: Mapping[str, consumer_store.ConsumerRow],
) -> list[ConsumerClaim]:
    """Create the holds that are missing; return the claims of all holds of these providers."""
    holds = _hold_claims(providers, needed)
    consumer_store.create_consumers(
        tx, {each.consumer: _OWNER for each in holds if each.takes_anything and each.consumer not in known}
    )
    return [each for each in holds if each.takes_anything or each.consumer in known]


def _hold_claims(providers: Iterable[str], needed: dict[HoldKey, int]) -> list[ConsumerClaim]:
    claims = []
    for provider in providers:
        amounts = {name: amount for (uuid, name), amount in needed.items() if uuid == provider and amount}
        resources = {provider: amounts} if amounts else {}
        # min_unit, max_unit and step_size do not apply to holds
        claims.append(
            ConsumerClaim(hold_uuid(provider), resources, ANY_GENERATION, _OWNER, in_any_portions=True)
        )
    return claims


def insert_planned(tx: WriteTransaction, planned: Sequence[ConsumerClaim]) -> None:
    """Queue the planned allocations of claims that begin later; the caller has checked their capacity."""
    rows = [
        {"consumer_id": claim.consumer, "provider_id": uuid, "resource_class_id": name, "used": amount}
        for claim, uuid, name, amount in claimed_amounts(planned)
    ]
    tx.insert(planned_allocations, rows, keys=_KEY)


def insert_promises(tx: WriteTransaction, promises: Sequence[WindowPromise], locked: LockedConsumers) -> None:
    """Queue the promises of windows; the caller has removed the former promises.

    With its first promise, a window gets promises for all its amounts, also for those outside of its scope.
    """
    rows = [
        {
            "consumer_id": each.window,
            "provider_id": each.provider,
            "resource_class_id": each.resource_class,
            "used": each.used,
        }
        for each in promises
    ]
    tx.insert(window_promises, rows, keys=_KEY)
    for window_id in sorted({each.window_id for each in promises if each.window in locked.scopes}):
        tx.queue(_REST_OF_PROMISES, {"consumer": window_id})


_KEY: Final = ("consumer_id", "provider_id", "resource_class_id")
# no lock of the providers is needed: only transactions that have locked the window change its allocations
_REST_OF_PROMISES: Final = PreparedStatement(
    sa.insert(window_promises).from_select(
        [*_KEY, "used"],
        sa.select(*(allocations.c[name] for name in _KEY), allocations.c.used).where(
            allocations.c.consumer_id == sa.bindparam("consumer", type_=ConsumerId),
            ~sa.select(sa.literal(1))
            .where(*(window_promises.c[name] == allocations.c[name] for name in _KEY))
            .correlate(allocations)
            .exists(),
        ),
    )
)
