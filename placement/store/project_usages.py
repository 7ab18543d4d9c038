"""Reads the usage of projects: the sums of their allocations, and the numbers of their consumers.

The usage of a window includes amounts that claims have given back to it, although these have no allocations
yet (:mod:`placement.store.time_profile`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from placement.db import clock
from placement.db.tables import (
    RESERVATION,
    allocations,
    claim_expiries,
    consumers,
    is_planned,
    reservations,
    resource_classes,
    window_promises,
)
from placement.store.expired import COUNTS
from placement.store.window_promises import claimed_sum


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


def read_usage(conn: sa.Connection, project_id: str, user_id: str | None) -> ProjectUsage:
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
    .where(COUNTS)
    # the rows are ordered by id, so that classes are in the order of their creation, as in other answers
    .group_by(consumers.c.consumer_type, resource_classes.c.id, resource_classes.c.name)
    .order_by(consumers.c.consumer_type, resource_classes.c.id)
)
_counts: Final = (
    sa.select(consumers.c.consumer_type, sa.func.count())
    # pending windows use nothing yet
    .where(COUNTS, ~is_planned(consumers.c.id))
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
