"""Reads timed amounts and holds: which consumers may use how much of which providers, and when.

The module ``time_profile`` computes with these amounts, and the module ``holds`` writes them.
"""

from __future__ import annotations

import uuid as uuids
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from placement.db import clock
from placement.db.batch import Rows, StatementBatch, StatementFamily, split_rows
from placement.db.tables import (
    RESERVATION,
    WINDOW_HOLD,
    allocations,
    claim_expiries,
    consumers,
    join_amounts,
    planned_allocations,
    reservations,
    resource_classes,
    resource_providers,
    window_promises,
)
from placement.store import consumers as consumer_store
from placement.store.consumers import EXPIRING_CONSUMERS, RESERVING_CONSUMERS
from placement.store.time_profile import (
    AT_ONCE,
    HoldKey,
    TimedAmount,
    TimedRows,
    TimeWindow,
    WindowPromise,
    wrong_holds,
)

# any constant namespace serves; with another namespace, the service would not find the holds of existing
# databases
_NAMESPACE: Final = uuids.UUID("b6f0c1de-3c6f-4a0e-8a37-5f3a4ad6a9f1")

_MAX_NAMED_PROVIDERS: Final = 500
"""Maximum number of providers that are searched for windows to name in an error message."""


def hold_uuid(provider: str) -> str:
    """Return the uuid of the hold of a provider."""
    return str(uuids.uuid5(_NAMESPACE, provider))


_PROMISED: Final = 2
_KINDS: Final = {planned_allocations.name: "0", allocations.name: "1", window_promises.name: str(_PROMISED)}
"""The kinds of rows with timed amounts: planned amounts, begun amounts, and promises of windows."""
IS_WINDOW: Final = reservations.c.starts_at.is_not(None)
"""SQL condition that selects windows among reservations."""


def _amounts_query(
    chosen: sa.ColumnElement[bool],
    is_window: sa.ColumnElement[bool] = IS_WINDOW,
    is_claim: sa.ColumnElement[bool] = claim_expiries.c.is_final,
) -> sa.Select[Any]:
    """Return a query for the timed amounts of those providers that the condition selects.

    :param is_window: SQL condition that selects reservations.
    :param is_claim: SQL condition that selects claims with an end time.
    """

    def amounts(held: sa.Table, owners: sa.FromClause, ends: sa.Table, *more: Any) -> sa.Select[Any]:
        is_reservation = ends is reservations
        starts_at = reservations.c.starts_at if is_reservation else sa.null()
        # this is the window of a promise, or the window from which a claim has taken its amounts
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
            .select_from(join_amounts(held, owners))
            .where(chosen, *more)
        )

    found = sa.union_all(
        amounts(allocations, RESERVING_CONSUMERS, reservations, is_window),
        amounts(planned_allocations, RESERVING_CONSUMERS, reservations, is_window),
        amounts(window_promises, RESERVING_CONSUMERS, reservations, is_window),
        amounts(allocations, EXPIRING_CONSUMERS, claim_expiries, is_claim),
    ).subquery()
    return sa.select(*found.c)


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

    ``used_windows`` has the uuids of windows from which claims have taken amounts, and ``window_claims`` the
    uuids of the consumers of these claims.
    """

    now: float
    amounts: Sequence[TimedAmount]
    holds: Sequence[tuple[HoldKey, int]]
    used_windows: frozenset[str] = frozenset()
    window_claims: frozenset[str] = frozenset()


def read_schedule(
    conn: sa.Connection, without: Collection[str] = (), of_providers: Collection[str] | None = None
) -> TimeSchedule:
    """Return the timed amounts and holds of some or all providers; leave out the consumers in ``without``."""
    batch = StatementBatch(conn)
    clock_answer = batch.add(clock.READ_TIME, {})
    if of_providers is None:
        now = float(clock_answer.scalars[0])
        found = timed_rows(conn.execute(_ALL_AMOUNTS).all())
        # only providers with timed amounts have holds, and their uuids are indexed, unlike the types of
        # consumers
        of_providers = {each.provider for each in found.amounts} | {each.provider for each in found.promises}
        hold_answers = [
            batch.add(*_HOLDS.bind_list(map(hold_uuid, chunk))) for chunk in split_rows(sorted(of_providers))
        ]
    else:
        # all statements are queued before an answer is read, so that they are sent together
        chunks = list(split_rows(sorted(of_providers)))
        amounts_answers = [batch.add(*AMOUNTS.bind_list(chunk)) for chunk in chunks]
        hold_answers = [batch.add(*_HOLDS.bind_list(map(hold_uuid, chunk))) for chunk in chunks]
        now = float(clock_answer.scalars[0])
        found = timed_rows([row for answer in amounts_answers for row in answer.rows])
    held = [((provider, name), int(used)) for answer in hold_answers for provider, name, used in answer.rows]
    rest = found.without_consumers(without) if without else found
    used_windows = frozenset(each.window for each in rest.promises)
    return TimeSchedule(now, rest.all_amounts, held, used_windows, rest.window_claims)


def read_overlaps(
    conn: sa.Connection, window: TimeWindow, without: Collection[str], of_providers: Collection[str]
) -> list[TimedAmount]:
    """Return the timed amounts of some providers that overlap a window, except those of some consumers."""
    batch = StatementBatch(conn)
    times = {"window_begin": window.starts_at, "window_end": window.ends_at}
    answers = [batch.add(*_OVERLAPS.bind_list(chunk, **times)) for chunk in split_rows(sorted(of_providers))]
    found = timed_rows([row for each in answers for row in each.rows])
    return [*found.without_consumers(without).all_amounts]


def has_amounts(conn: sa.Connection) -> bool:
    """Return whether there is any timed amount."""
    windows = sa.select(reservations.c.consumer_id).where(IS_WINDOW).limit(1)
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


def count_timed(conn: sa.Connection) -> dict[str, int]:
    """Return the number of reservations and of claims with an end time by project, sorted by project."""
    return {project: int(count) for project, count in conn.execute(_COUNT_TIMED)}


def find_wrong_holds(conn: sa.Connection) -> dict[HoldKey, tuple[int, int]]:
    """Return all holds with wrong amounts, each with its present and its needed amount."""
    schedule = read_schedule(conn)
    held = [((provider, name), int(used)) for provider, name, used in conn.execute(_ALL_HOLDS)]
    return wrong_holds(schedule.amounts, held, schedule.now)


_ALL_AMOUNTS: Final = _amounts_query(sa.true())
_PROJECT_AMOUNTS: Final = _amounts_query(
    consumer_store.is_of_project(sa.bindparam("project")), consumers.c.consumer_type == RESERVATION
)
_TIMED_CONSUMERS: Final = sa.union_all(
    sa.select(consumers.c.project_id)
    .select_from(RESERVING_CONSUMERS)
    .where(consumers.c.consumer_type == RESERVATION, reservations.c.expires_at > clock.ServerNow()),
    sa.select(consumers.c.project_id)
    .select_from(EXPIRING_CONSUMERS)
    .where(claim_expiries.c.is_final, claim_expiries.c.expires_at > clock.ServerNow()),
).subquery()
_COUNT_TIMED: Final = (
    sa.select(_TIMED_CONSUMERS.c.project_id, sa.func.count())
    .group_by(_TIMED_CONSUMERS.c.project_id)
    .order_by(_TIMED_CONSUMERS.c.project_id)
)
_ALL_HOLDS: Final = (
    sa.select(resource_providers.c.uuid, resource_classes.c.name, allocations.c.used)
    .select_from(join_amounts(allocations))
    .where(consumers.c.consumer_type == WINDOW_HOLD)
)
AMOUNTS: Final = StatementFamily(resource_providers.c.uuid, _amounts_query)
"""Statements that read the timed amounts of some providers, by uuid."""
_BEGIN: Final = sa.bindparam("window_begin", type_=sa.Double)
_OVERLAPS: Final = StatementFamily(
    resource_providers.c.uuid,
    lambda chosen: _amounts_query(
        chosen,
        sa.and_(
            reservations.c.starts_at < sa.bindparam("window_end", type_=sa.Double),
            reservations.c.expires_at > _BEGIN,
        ),
        sa.and_(claim_expiries.c.is_final, claim_expiries.c.expires_at > _BEGIN),
    ),
)
_HOLDS: Final = StatementFamily(consumers.c.uuid, _ALL_HOLDS.where)
