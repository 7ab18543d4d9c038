"""Writes holds, which are consumers that keep amounts of a provider free for windows.

The module ``time_profile`` decides how large holds are.

A provider has at most one hold, which is a consumer of the type ``WINDOW_HOLD``; the provider's uuid
determines the uuid of the hold. Each write of timed amounts also writes a claim for the provider's hold. This
claim replaces the old amounts of the hold by the new amounts. So the usual check of capacity also covers
windows. If all timed amounts of a provider have begun, its hold has no amounts, and disappears like each
consumer without allocations.

A transaction reads or writes the hold of a provider only while it has locked the provider's bucket. So the
transaction locks the row of the hold after the bucket, and no deadlock is possible; the transaction locks the
rows of other consumers before the buckets.
"""

from __future__ import annotations

import math
import uuid as uuids
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa

from placement.db import clock
from placement.db.batch import (
    KEPT_SIZES,
    PreparedStatement,
    Rows,
    StatementBatch,
    Values,
    bind_parameters,
    bind_rows,
    bind_values,
    pad_values,
    split_rows,
)
from placement.db.database import WriteTransaction
from placement.db.tables import (
    RESERVATION,
    WINDOW_HOLD,
    ConsumerId,
    allocations,
    claim_expiries,
    consumers,
    planned_allocations,
    reservations,
    resource_classes,
    resource_providers,
    window_promises,
)
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
from placement.store.expired import EXPIRES
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
    wrong_holds,
)

# any constant namespace serves; a change would orphan the holds of existing databases
_NAMESPACE: Final = uuids.UUID("b6f0c1de-3c6f-4a0e-8a37-5f3a4ad6a9f1")
_OWNER: Final = ConsumerOwnership("placement-windows", "placement-windows", WINDOW_HOLD)
"""The owner of all holds; the project of the owner does not exist, because one hold is for windows of several
projects.
"""

_MAX_NAMED_PROVIDERS: Final = 500
"""Maximum number of providers that are searched for windows to name in an error message."""


def hold_uuid(provider: str) -> str:
    """Return the uuid of the hold of a provider."""
    return str(uuids.uuid5(_NAMESPACE, provider))


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
            ahead = TimeWindow(self.now, math.inf)
            if first_growth([*beside, *before.get(key, [])], [*beside, *new], limit, ahead) < math.inf:
                raise capacity_exceeded(uuid, name)


_ALWAYS: Final = TimeWindow(AT_ONCE, math.inf)
"""The time window of amounts without an end time."""


def plan_write(tx: WriteTransaction, claims: Sequence[ConsumerClaim], locked: LockedConsumers) -> TimedWrite:
    """Return the write of these claims, with the claims of their providers' holds added.

    The caller has locked the consumers, and the buckets of all providers of the claims and of the holdings.

    :raises HoldRefusal: a provider would have too many timed amounts, or another consumer has the uuid of a
        hold.
    """
    claimants = {*locked.consumers, *(claim.consumer for claim in claims)}
    concerned = (*locked.holdings, *locked.planned, *locked.promised)
    providers = sorted(
        {each.provider for each in concerned if each.consumer in locked.timed}
        | {uuid for claim in claims if claim.window is not None for uuid in claim.resources}
    )
    state = _lock_holds(tx, providers)
    now, others = state.now, state.rows.without_consumers(claimants)
    after = []
    for claim, uuid, name, amount in claimed_amounts(claims):
        window = claim.window or _ALWAYS
        after.append(TimedAmount(claim.consumer, uuid, name, amount, window, window.starts_at <= now))
    rows = _rows_after(claims, locked, others, [each for each in after if each.window != _ALWAYS])
    returns = returned_amounts(rows)
    if len(rows.amounts) > len(others.amounts):
        check_amounts([*rows.amounts, *returns], now)
    known = state.locked.consumers
    holds = _create_holds(tx, providers, needed_holds([*rows.amounts, *returns], now), known)
    planned = [claim for claim in claims if claim.window is not None and claim.window.starts_at > now]
    begun = [claim for claim in claims if claim.window is None or claim.window.starts_at <= now]
    if locked.planned:
        # windows that begin now lose their plans, too: their amounts become allocations
        pending = sorted({locked.consumers[each.consumer].id for each in locked.planned})
        tx.queue(_plan_removal(len(pending)), bind_values("id", pending))
    new_promises = [each for each in rows.promises if each.window in claimants]
    old_promises = [each for each in state.rows.promises if each.window in claimants]
    # a claim divides the amounts of its window in another way, and mostly changes no promise
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
    # the promise of a window is what it holds, together with what its claims use
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
    """Return whether two lists of promises have the same amounts of the same windows."""
    first, second = (
        {(each.window_id, each.provider, each.resource_class, each.used) for each in some}
        for some in (one, other)
    )
    return first == second


def _remove_promises(tx: WriteTransaction, locked: LockedConsumers) -> None:
    """Queue the removal of the promises of locked windows, which are written again."""
    if windows := sorted({locked.consumers[each.consumer].id for each in locked.promised}):
        tx.queue(_promise_removal(len(windows)), bind_values("id", windows))


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
    """The time of the database, with the timed amounts and the locked holds of some providers."""

    now: float
    rows: TimedRows
    locked: LockedConsumers


def _lock_holds(tx: WriteTransaction, providers: Sequence[str]) -> _HoldState:
    clock_answer = tx.queue(_CLOCK, {})
    amounts_answer = tx.queue(*_amounts_of(providers))
    # the four statements are sent together, because no answer is read before the last one is queued
    locked = lock_consumers(tx, [hold_uuid(each) for each in providers])
    _check_types(locked.consumers.values())
    # the clock is read once, so that all amounts are compared with the same instant
    return _HoldState(float(clock_answer.scalars[0]), timed_rows(amounts_answer.rows), locked)


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
        # min_unit, max_unit and step_size are for guests
        claims.append(
            ConsumerClaim(hold_uuid(provider), resources, ANY_GENERATION, _OWNER, in_any_portions=True)
        )
    return claims


def _check_types(rows: Iterable[consumer_store.ConsumerRow]) -> None:
    for row in rows:
        if row.consumer_type != WINDOW_HOLD:
            raise HoldRefusal(
                f"The consumer {row.uuid} has the uuid of the hold for windows of its provider: no window can"
                " be held there until this consumer is deleted."
            )


def insert_planned(tx: WriteTransaction, planned: Sequence[ConsumerClaim]) -> None:
    """Queue the planned allocations of claims that begin later; the caller has checked their capacity."""
    rows = [
        {"consumer": claim.consumer, "provider": uuid, "class": name, "used": amount}
        for claim, uuid, name, amount in claimed_amounts(planned)
    ]
    for chunk in split_rows(rows):
        tx.queue(_plan_insertion(len(chunk)), bind_rows(chunk))


def insert_promises(tx: WriteTransaction, promises: Sequence[WindowPromise]) -> None:
    """Queue the promises of windows; the caller has removed the former promises."""
    rows = [
        {"consumer": each.window, "provider": each.provider, "class": each.resource_class, "used": each.used}
        for each in promises
    ]
    for chunk in split_rows(rows):
        tx.queue(_promise_insertion(len(chunk)), bind_rows(chunk))


@lru_cache(KEPT_SIZES)
def _plan_removal(count: int) -> PreparedStatement:
    chosen = planned_allocations.c.consumer_id.in_(bind_parameters("id", count, ConsumerId))
    return PreparedStatement(sa.delete(planned_allocations).where(chosen))


@lru_cache(KEPT_SIZES)
def _promise_removal(count: int) -> PreparedStatement:
    chosen = window_promises.c.consumer_id.in_(bind_parameters("id", count, ConsumerId))
    return PreparedStatement(sa.delete(window_promises).where(chosen))


@lru_cache(KEPT_SIZES)
def _plan_insertion(count: int) -> PreparedStatement:
    return PreparedStatement(_later_insertion(planned_allocations, count))


@lru_cache(KEPT_SIZES)
def _promise_insertion(count: int) -> PreparedStatement:
    return PreparedStatement(_later_insertion(window_promises, count))


def _later_insertion(table: sa.Table, count: int) -> sa.Insert:
    # consumers are selected by uuid, because the id of a new consumer is not known yet
    rows = [
        {
            "consumer_id": sa.select(consumers.c.id).where(consumers.c.uuid == consumer).scalar_subquery(),
            "provider_id": sa.select(resource_providers.c.id)
            .where(resource_providers.c.uuid == provider)
            .scalar_subquery(),
            "resource_class_id": sa.select(resource_classes.c.id)
            .where(resource_classes.c.name == name)
            .scalar_subquery(),
            "used": used,
        }
        for consumer, provider, name, used in zip(
            bind_parameters("consumer", count),
            bind_parameters("provider", count),
            bind_parameters("class", count),
            bind_parameters("used", count, sa.Integer),
            strict=True,
        )
    ]
    return sa.insert(table).values(rows)


_CLOCK: Final = PreparedStatement(sa.select(clock.ServerNow()))
_PROMISED: Final = 2
_KINDS: Final = {planned_allocations.name: "0", allocations.name: "1", window_promises.name: str(_PROMISED)}
"""The kinds of rows with timed amounts: planned amounts, begun amounts, and promises of windows."""
_OF_CLAIMS: Final = claim_expiries.join(consumers, EXPIRES)
_IS_WINDOW: Final = reservations.c.starts_at.is_not(None)
_OF_WINDOWS: Final = reservations.join(consumers, consumers.c.id == reservations.c.consumer_id)


def _amounts_query(
    chosen: sa.ColumnElement[bool], is_window: sa.ColumnElement[bool] = _IS_WINDOW
) -> sa.Select[Any]:
    """Return a query for the timed amounts of those providers that the condition selects.

    :param is_window: SQL condition that selects reservations.
    """

    def amounts(held: sa.Table, owners: sa.FromClause, ends: sa.Table, *more: Any) -> sa.Select[Any]:
        is_reservation = ends is reservations
        starts_at = reservations.c.starts_at if is_reservation else sa.null()
        # the window of a promise, or that from which a claim has taken its amounts
        window_id = consumers.c.id if is_reservation else claim_expiries.c.window_id
        return (
            sa.select(
                consumers.c.uuid.label("consumer"),
                resource_providers.c.uuid.label("provider"),
                resource_classes.c.name,
                held.c.used,
                sa.cast(starts_at, sa.Double).label("starts_at"),
                ends.c.expires_at,
                sa.literal_column(_KINDS[held.name]).label("kind"),
                window_id.label("window_id"),
            )
            .select_from(owners)
            .join(held, held.c.consumer_id == consumers.c.id)
            .join(resource_providers, resource_providers.c.id == held.c.provider_id)
            .join(resource_classes, resource_classes.c.id == held.c.resource_class_id)
            .where(chosen, *more)
        )

    found = sa.union_all(
        amounts(allocations, _OF_WINDOWS, reservations, is_window),
        amounts(planned_allocations, _OF_WINDOWS, reservations, is_window),
        amounts(window_promises, _OF_WINDOWS, reservations, is_window),
        amounts(allocations, _OF_CLAIMS, claim_expiries, claim_expiries.c.is_final),
    ).subquery()
    return sa.select(*found.c)


def _amounts_of(providers: Sequence[str]) -> tuple[PreparedStatement, Values]:
    """Return a statement, with its values, that reads the timed amounts of providers."""
    padded = pad_values(providers)
    return _amounts_statement(len(padded)), bind_values("uuid", padded)


@lru_cache(KEPT_SIZES)
def _amounts_statement(count: int) -> PreparedStatement:
    return PreparedStatement(_amounts_query(resource_providers.c.uuid.in_(bind_parameters("uuid", count))))


def _holds_of(providers: Sequence[str]) -> tuple[PreparedStatement, Values]:
    """Return a statement, with its values, that reads the holds of providers."""
    padded = pad_values([hold_uuid(each) for each in providers])
    return _holds_statement(len(padded)), bind_values("uuid", padded)


@lru_cache(KEPT_SIZES)
def _holds_statement(count: int) -> PreparedStatement:
    return PreparedStatement(_ALL_HOLDS.where(consumers.c.uuid.in_(bind_parameters("uuid", count))))


def timed_rows(rows: Rows) -> TimedRows:
    """Convert the rows of a query for timed amounts."""
    amounts: list[TimedAmount] = []
    promises: list[WindowPromise] = []
    sources: dict[str, int] = {}
    for consumer, provider, name, used, starts_at, ends_at, kind, window_id in rows:
        # a claim with an end time has begun with its creation
        time = TimeWindow(AT_ONCE if starts_at is None else float(starts_at), float(ends_at))
        if int(kind) == _PROMISED:
            promises.append(WindowPromise(window_id, consumer, provider, name, int(used), time))
            continue
        amounts.append(TimedAmount(consumer, provider, name, int(used), time, bool(int(kind))))
        if starts_at is None and window_id is not None:
            sources[consumer] = window_id
    return TimedRows(amounts, promises, sources)


@dataclass(frozen=True, slots=True)
class TimeSchedule:
    """Timed amounts and holds of some or all providers, and the time of the database when they were read.

    ``used_windows`` has the uuids of windows from which claims have taken amounts.
    """

    now: float
    amounts: Sequence[TimedAmount]
    holds: Sequence[tuple[HoldKey, int]]
    used_windows: frozenset[str] = frozenset()


def read_schedule(
    conn: sa.Connection, without: Collection[str] = (), of_providers: Collection[str] | None = None
) -> TimeSchedule:
    """Return the timed amounts and holds of some or all providers; leave out the consumers in ``without``."""
    batch = StatementBatch(conn)
    clock_answer = batch.add(_CLOCK, {})
    if of_providers is None:
        now = float(clock_answer.scalars[0])
        found = timed_rows(conn.execute(_ALL_AMOUNTS).all())
        # only providers with timed amounts have holds, and their uuids are indexed, unlike the types of
        # consumers
        of_providers = {each.provider for each in found.amounts} | {each.provider for each in found.promises}
        hold_answers = [batch.add(*_holds_of(chunk)) for chunk in split_rows(sorted(of_providers))]
    else:
        # all statements are queued before an answer is read, so that they are sent together
        chunks = list(split_rows(sorted(of_providers)))
        amounts_answers = [batch.add(*_amounts_of(chunk)) for chunk in chunks]
        hold_answers = [batch.add(*_holds_of(chunk)) for chunk in chunks]
        now = float(clock_answer.scalars[0])
        found = timed_rows([row for answer in amounts_answers for row in answer.rows])
    held = [((provider, name), int(used)) for answer in hold_answers for provider, name, used in answer.rows]
    rest = found.without_consumers(without) if without else found
    return TimeSchedule(now, rest.all_amounts, held, frozenset(each.window for each in rest.promises))


def has_amounts(conn: sa.Connection) -> bool:
    """Return whether there is any timed amount."""
    windows = sa.select(reservations.c.consumer_id).where(_IS_WINDOW).limit(1)
    claims = sa.select(claim_expiries.c.consumer_id).where(claim_expiries.c.is_final).limit(1)
    return any(conn.execute(each).first() is not None for each in (windows, claims))


def planned_providers(
    conn: sa.Connection, names: Collection[str], of_providers: Collection[str] | None, limit: int
) -> list[str]:
    """Return the uuids of providers of which future windows will take some of the given resource classes.

    :param of_providers: the providers to search; None means all providers.
    """
    query = (
        sa.select(resource_providers.c.uuid)
        .distinct()
        .select_from(planned_allocations)
        .join(resource_providers, resource_providers.c.id == planned_allocations.c.provider_id)
        .join(resource_classes, resource_classes.c.id == planned_allocations.c.resource_class_id)
        .where(resource_classes.c.name.in_(sorted(names)))
        .limit(limit)
    )
    if of_providers is not None:
        # the statement has a limited length, and a message names few windows
        query = query.where(resource_providers.c.uuid.in_(sorted(of_providers)[:_MAX_NAMED_PROVIDERS]))
    return list(conn.execute(query).scalars())


def project_amounts(conn: sa.Connection, project_id: str) -> list[TimedAmount]:
    """Return the amounts of all reservations of a project, and of its claims with an end time.

    The amounts that a window gets back from its claims are included.
    """
    return [*timed_rows(conn.execute(_PROJECT_AMOUNTS, {"project": project_id}).all()).all_amounts]


def find_wrong_holds(conn: sa.Connection) -> dict[HoldKey, tuple[int, int]]:
    """Return all holds with wrong amounts, each with its present and its needed amount."""
    schedule = read_schedule(conn)
    held = [((provider, name), int(used)) for provider, name, used in conn.execute(_ALL_HOLDS)]
    return wrong_holds(schedule.amounts, held, schedule.now)


_ALL_AMOUNTS: Final = _amounts_query(sa.true())
_PROJECT_AMOUNTS: Final = _amounts_query(
    consumer_store.is_of_project(sa.bindparam("project")), consumers.c.consumer_type == RESERVATION
)
_ALL_HOLDS: Final = (
    sa.select(resource_providers.c.uuid, resource_classes.c.name, allocations.c.used)
    .select_from(allocations)
    .join(consumers, consumers.c.id == allocations.c.consumer_id)
    .join(resource_providers, resource_providers.c.id == allocations.c.provider_id)
    .join(resource_classes, resource_classes.c.id == allocations.c.resource_class_id)
    .where(consumers.c.consumer_type == WINDOW_HOLD)
)
