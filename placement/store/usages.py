"""Computes sums of usage: those of projects, and those of all windows for metrics.

The usage of a project has the sums of its allocations, and the numbers of its consumers. It includes amounts
that claims have given back to a window, although these have no allocations yet
(:mod:`placement.store.time_profile`).

The usage of windows has their number and their amounts, and the amounts lent before their start.
Amounts that are lent depend on the times of all amounts, so they are computed only if there are few amounts.
The database computes all other sums if there are many.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from placement.db import clock
from placement.db.tables import (
    RESERVATION,
    allocations,
    claim_expiries,
    consumers,
    is_planned,
    planned_allocations,
    reservations,
    resource_classes,
    window_promises,
)
from placement.store.consumers import EXPIRING_CONSUMERS, NOT_EXPIRED
from placement.store.time_profile import AT_ONCE, TimedAmount, TimeWindow, by_key, largest_sum
from placement.store.time_schedule import IS_WINDOW, TimeSchedule, read_schedule
from placement.store.window_promises import claimed_sum

_ALWAYS: Final = TimeWindow(-math.inf, math.inf)
# a scrape reads all amounts, which takes about 10 microseconds for each amount
MAX_AMOUNTS: Final = 10_000
"""Maximum number of amounts of windows, and of claims with an end time, for which lent amounts are computed.
"""


@dataclass(frozen=True, slots=True)
class WindowUsage:
    """The numbers of pending and of active windows, and their amounts by resource class.

    - ``booked``: the amounts of pending windows, and those amounts of active windows that no claim has
      taken.
    - ``used``: the amounts that claims from active windows use.
    - ``lent``: those amounts of pending windows that active windows, and claims with an end time, use until
      the start of the window; None if there are too many amounts.
    """

    pending: int
    active: int
    booked: Mapping[str, int]
    used: Mapping[str, int]
    lent: Mapping[str, int] | None

    @classmethod
    def from_schedule(cls, schedule: TimeSchedule) -> WindowUsage:
        """Compute the sums from a schedule of all providers."""
        # claims with an end time have no start
        windows = [each for each in schedule.amounts if each.is_return or each.window.starts_at != AT_ONCE]
        pending = [each for each in windows if not each.has_begun and not each.is_return]
        booked, used, lent = Counter[str](), Counter[str](), Counter[str]()
        for each in windows:
            # an amount that a claim has given back may have no allocation yet
            if not each.is_return or each.window.starts_at <= schedule.now:
                booked[each.resource_class] += each.used
        for each in schedule.amounts:
            if each.consumer in schedule.window_claims and each.window.ends_at > schedule.now:
                used[each.resource_class] += each.used
        every, ahead = by_key(schedule.amounts), TimeWindow(schedule.now, math.inf)
        for key, some in by_key(pending).items():
            # the hold is not used here, because it also keeps the room that windows get back from claims
            kept = largest_sum(every[key], ahead) - _present_sum(every[key], schedule.now)
            lent[key[1]] += max(0, largest_sum(some, _ALWAYS) - kept)
        waiting = {each.consumer for each in pending}
        active = ({each.consumer for each in windows} | schedule.used_windows) - waiting
        return cls(len(waiting), len(active), booked, used, lent)


def _present_sum(amounts: Iterable[TimedAmount], now: float) -> int:
    """Return the present sum of active windows and claims, with returned amounts that lack an allocation."""
    return sum(
        each.used
        for each in amounts
        if (each.has_begun or each.is_return) and each.starts_at <= now < each.window.ends_at
    )


def read_window_usage(conn: sa.Connection) -> WindowUsage:
    """Read the sums of all windows, without lent amounts above :data:`MAX_AMOUNTS` amounts."""
    count = conn.execute(_COUNT, {"limit": MAX_AMOUNTS + 1}).scalar_one()
    return read_sums(conn) if count > MAX_AMOUNTS else WindowUsage.from_schedule(read_schedule(conn))


def read_sums(conn: sa.Connection) -> WindowUsage:
    """Read the sums that the database computes; the work of this service does not grow with the windows."""
    sums = {kind: Counter[str]() for kind in (_PLANNED, _HELD, _PROMISED, _USED)}
    for kind, name, used in conn.execute(_SUMS):
        # some drivers return sums as Decimal
        sums[kind][name] += int(used)
    pending, every = conn.execute(_NUMBERS).one()
    booked = Counter(sums[_PLANNED])
    booked.update(sums[_HELD])
    # the promise of a window consists of the amounts that it holds, and of the amounts that its claims use
    booked.update(sums[_PROMISED])
    booked.subtract(sums[_USED])
    return WindowUsage(pending, every - pending, booked, sums[_USED], None)


_one: Final = sa.literal(1).label("one")
_COUNT: Final = sa.select(sa.func.count()).select_from(
    sa.union_all(
        sa.select(_one).select_from(planned_allocations),
        sa.select(_one).select_from(window_promises),
        sa.select(_one)
        .select_from(reservations.join(allocations, allocations.c.consumer_id == reservations.c.consumer_id))
        .where(IS_WINDOW),
        sa.select(_one)
        .select_from(EXPIRING_CONSUMERS.join(allocations, allocations.c.consumer_id == consumers.c.id))
        .where(claim_expiries.c.is_final),
    )
    .limit(sa.bindparam("limit", type_=sa.Integer))
    .subquery()
)

_PLANNED: Final = "planned"
_HELD: Final = "held"
_PROMISED: Final = "promised"
_USED: Final = "used"
_PROMISING: Final = sa.select(window_promises.c.consumer_id)


def _sums_by_class(kind: str, amounts: sa.Table, owners: sa.FromClause, *where: Any) -> sa.Select[Any]:
    return (
        sa.select(
            sa.literal_column(f"'{kind}'").label("kind"),
            amounts.c.resource_class_id,
            sa.func.sum(amounts.c.used).label("used"),
        )
        .select_from(owners)
        .where(*where)
        .group_by(amounts.c.resource_class_id)
    )


_PARTS: Final = sa.union_all(
    _sums_by_class(_PLANNED, planned_allocations, planned_allocations),
    _sums_by_class(_PROMISED, window_promises, window_promises),
    _sums_by_class(
        _HELD,
        allocations,
        reservations.join(allocations, allocations.c.consumer_id == reservations.c.consumer_id),
        IS_WINDOW,
        reservations.c.consumer_id.not_in(_PROMISING),
    ),
    _sums_by_class(
        _USED,
        allocations,
        EXPIRING_CONSUMERS.join(allocations, allocations.c.consumer_id == consumers.c.id),
        claim_expiries.c.is_final,
        claim_expiries.c.expires_at > clock.ServerNow(),
        claim_expiries.c.window_id.in_(_PROMISING),
    ),
).subquery()
_SUMS: Final = sa.select(_PARTS.c.kind, resource_classes.c.name, _PARTS.c.used).join(
    resource_classes, resource_classes.c.id == _PARTS.c.resource_class_id
)
_NUMBERS: Final = sa.select(
    sa.select(sa.func.count(planned_allocations.c.consumer_id.distinct())).scalar_subquery(),
    sa.select(sa.func.count()).select_from(reservations).where(IS_WINDOW).scalar_subquery(),
)
"""The number of pending windows, and of all windows."""


@dataclass(frozen=True, slots=True)
class ClassUsage:
    """The amount of one resource class that all consumers of one type use; the type None is unknown."""

    consumer_type: str | None
    resource_class: str
    used: int


@dataclass(frozen=True, slots=True)
class ProjectUsage:
    """The usage of a project, or of one of its users, and the number of its consumers by type."""

    amounts: Sequence[ClassUsage]
    consumer_counts: Mapping[str | None, int]


def read_project_usage(conn: sa.Connection, project_id: str, user_id: str | None) -> ProjectUsage:
    """Return the usage of a project, or of one user in the project."""
    is_owner = [consumers.c.project_id == project_id]
    if user_id is not None:
        is_owner.append(consumers.c.user_id == user_id)
    counts = {kind: count for kind, count in conn.execute(_counts.where(*is_owner))}  # noqa: C416  # rows are not pairs to dict()
    amounts = [ClassUsage(kind, name, int(used)) for kind, name, used in conn.execute(_sums.where(*is_owner))]
    # projects without reservations need no further statement
    return (
        _with_windows(conn, ProjectUsage(amounts, counts), is_owner)
        if RESERVATION in counts
        else ProjectUsage(amounts, counts)
    )


def _with_windows(
    conn: sa.Connection, usage: ProjectUsage, is_owner: Sequence[sa.ColumnElement[bool]]
) -> ProjectUsage:
    """Add the amounts that windows have got back, and do not count windows of which claims use everything."""
    held, returned = Counter[int](), Counter[str]()
    for window_id, name, promised, claimed, allocated in conn.execute(_promises.where(*is_owner)):
        present = max(0, int(promised - claimed))
        held[window_id] += present
        returned[name] += present - int(allocated)
    used = {each.resource_class: each.used for each in usage.amounts if each.consumer_type == RESERVATION}
    total = {name: used.get(name, 0) + returned[name] for name in (*used, *returned)}
    others = [each for each in usage.amounts if each.consumer_type != RESERVATION]
    windows = [ClassUsage(RESERVATION, name, amount) for name, amount in total.items() if amount]
    count = usage.consumer_counts[RESERVATION] - sum(not amount for amount in held.values())
    counts = {kind: number for kind, number in usage.consumer_counts.items() if kind != RESERVATION}
    return ProjectUsage([*others, *windows], {**counts, RESERVATION: count} if count else counts)


_sums: Final = (
    sa.select(consumers.c.consumer_type, resource_classes.c.name, sa.func.sum(allocations.c.used))
    .select_from(allocations)
    .join(consumers, consumers.c.id == allocations.c.consumer_id)
    .join(resource_classes, resource_classes.c.id == allocations.c.resource_class_id)
    .where(NOT_EXPIRED)
    # the rows are ordered by id, so that classes are in the order of their creation, as in other answers
    .group_by(consumers.c.consumer_type, resource_classes.c.id, resource_classes.c.name)
    .order_by(consumers.c.consumer_type, resource_classes.c.id)
)
_counts: Final = (
    sa.select(consumers.c.consumer_type, sa.func.count())
    # pending windows use nothing yet. A project may have many of them, and CASE does not look up their expiry
    .where(sa.case((is_planned(consumers.c.id), sa.false()), else_=NOT_EXPIRED))
    .group_by(consumers.c.consumer_type)
)
_allocated: Final = (
    sa.select(sa.func.coalesce(sa.func.sum(allocations.c.used), 0))
    .where(
        allocations.c.consumer_id == window_promises.c.consumer_id,
        allocations.c.provider_id == window_promises.c.provider_id,
        allocations.c.resource_class_id == window_promises.c.resource_class_id,
    )
    .correlate(window_promises)
    .scalar_subquery()
)
_promises: Final = (
    sa.select(
        consumers.c.id,
        resource_classes.c.name,
        window_promises.c.used,
        # the usage of a project does not have claims that are over, even if they are not released yet
        claimed_sum(claim_expiries.c.expires_at > clock.ServerNow()),
        _allocated,
    )
    .select_from(consumers)
    .join(window_promises, window_promises.c.consumer_id == consumers.c.id)
    .join(reservations, reservations.c.consumer_id == consumers.c.id)
    .join(resource_classes, resource_classes.c.id == window_promises.c.resource_class_id)
    .where(consumers.c.consumer_type == RESERVATION, reservations.c.expires_at > clock.ServerNow())
    .order_by(resource_classes.c.id)
)
