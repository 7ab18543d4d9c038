"""How much the consumers of a project hold whose time is not over, in all and by consumer type."""

from dataclasses import dataclass

import sqlalchemy as sa

from placement.db.tables import allocations, consumers, resource_classes
from placement.store.expired import COUNTS


@dataclass(frozen=True, slots=True)
class ClassUsage:
    """The sum of one resource class over the consumers of one type (None: of unknown type)."""

    consumer_type: str | None
    resource_class: str
    used: int


def of_project(conn: sa.Connection, project_id: str, user_id: str | None) -> list[ClassUsage]:
    """The usages of a project, or of one user in it, by consumer type and resource class."""
    query = (
        sa.select(consumers.c.consumer_type, resource_classes.c.name, sa.func.sum(allocations.c.used))
        .select_from(allocations)
        .join(consumers, consumers.c.id == allocations.c.consumer_id)
        .join(resource_classes, resource_classes.c.id == allocations.c.resource_class_id)
        .where(consumers.c.project_id == project_id, COUNTS)
        .group_by(consumers.c.consumer_type, resource_classes.c.id, resource_classes.c.name)
        .order_by(consumers.c.consumer_type, resource_classes.c.id)
    )
    if user_id is not None:
        query = query.where(consumers.c.user_id == user_id)
    return [ClassUsage(kind, name, int(used)) for kind, name, used in conn.execute(query)]


def consumer_counts(conn: sa.Connection, project_id: str, user_id: str | None) -> dict[str | None, int]:
    """How many consumers of each type hold something, in a project or for one user in it."""
    query = (
        sa.select(consumers.c.consumer_type, sa.func.count())
        .where(consumers.c.project_id == project_id, COUNTS)
        .group_by(consumers.c.consumer_type)
    )
    if user_id is not None:
        query = query.where(consumers.c.user_id == user_id)
    return {kind: count for kind, count in conn.execute(query)}  # noqa: C416  # rows are not pairs to dict()
