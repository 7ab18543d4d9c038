"""Reads the consumers that have allocations of given providers, for the console and for planning moves."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from placement.db.batch import split_rows
from placement.db.tables import allocations, consumers, join_amounts, resource_classes, resource_providers


@dataclass(frozen=True, slots=True)
class AllocationHolder:
    """One allocation of a consumer from a provider, with the project of the consumer."""

    consumer: str
    consumer_type: str | None
    project_id: str
    provider: str
    resource_class: str
    used: int


def list_holders(
    conn: sa.Connection, uuids: Collection[str], limit: int, skip: int = 0
) -> tuple[list[AllocationHolder], bool]:
    """Return the allocations of these providers, in the order in which their consumers were created.

    :param limit: the maximum number of consumers in the result; the first ``skip`` consumers are left out.
    :returns: the amounts, and whether more consumers have allocations of these providers.
    """
    # the first query reads the consumers up to the limit, the second query their rows, because a consumer may
    # have several rows
    ids: set[int] = set()
    # each chunk gives its first consumers, so that the union has the first consumers of all chunks
    for chunk in split_rows(sorted(uuids)):
        ids.update(conn.execute(_first_holders, {"providers": chunk, "limit": skip + limit + 1}).scalars())
    shown = sorted(ids)[skip : skip + limit]
    found: list[tuple[int, AllocationHolder]] = []
    for chunk in split_rows(sorted(uuids)):
        # both lists may be longer than a statement allows
        for some in split_rows(shown):
            rows = conn.execute(_holdings, {"providers": chunk, "consumers": some})
            found += [(first, AllocationHolder(*others)) for first, *others in rows]
    # rows are sorted, because chunks split the rows of a consumer by provider; a stable sort keeps the order
    # of classes
    return [each for _, each in sorted(found, key=lambda item: item[0])], len(ids) > skip + limit


_first_holders: Final = (
    sa.select(allocations.c.consumer_id)
    .join(resource_providers, resource_providers.c.id == allocations.c.provider_id)
    .where(resource_providers.c.uuid.in_(sa.bindparam("providers", expanding=True)))
    # the ids are distinct, because a consumer may hold several classes of a provider
    .distinct()
    .order_by(allocations.c.consumer_id)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)
_holdings: Final = (
    sa.select(
        consumers.c.id,
        consumers.c.uuid,
        consumers.c.consumer_type,
        consumers.c.project_id,
        resource_providers.c.uuid,
        resource_classes.c.name,
        allocations.c.used,
    )
    .select_from(join_amounts(allocations))
    .where(consumers.c.id.in_(sa.bindparam("consumers", expanding=True)))
    .where(resource_providers.c.uuid.in_(sa.bindparam("providers", expanding=True)))
    .order_by(consumers.c.id, resource_providers.c.id, resource_classes.c.id)
)


@dataclass(frozen=True, slots=True)
class HeldAmount:
    """One allocation of a consumer, with the values that are needed to plan a move of the consumer."""

    consumer: str
    consumer_type: str | None
    provider_id: int
    resource_class: str
    used: int


def held_beside(
    conn: sa.Connection, provider_ids: Collection[int], limit: int
) -> tuple[list[HeldAmount], bool]:
    """Return all allocations of the consumers of these providers, also allocations of other providers.

    :param limit: the maximum number of amounts that are read.
    :returns: the amounts, consumer by consumer, and whether all consumers are included. The amounts of an
        included consumer are complete.
    """
    ids: set[int] = set()
    for chunk in split_rows(sorted(provider_ids)):
        # one more than the limit is read, to find out whether there are more
        ids.update(conn.execute(_holders, {"providers": chunk, "limit": limit + 1 - len(ids)}).scalars())
        if len(ids) > limit:
            break
    found: list[HeldAmount] = []
    for some in split_rows(sorted(ids)):
        found += [
            HeldAmount(*row)
            for row in conn.execute(_held, {"consumers": some, "limit": limit + 1 - len(found)})
        ]
        if len(found) > limit:
            # the last consumer is left out, because more of its amounts may follow
            cut = found[-1].consumer
            return [each for each in found if each.consumer != cut], False
    # the amounts of these consumers are complete; there are more consumers if the ids exceed the limit
    return found, len(ids) <= limit


_holders: Final = (
    sa.select(allocations.c.consumer_id)
    .where(allocations.c.provider_id.in_(sa.bindparam("providers", expanding=True)))
    .distinct()
    .limit(sa.bindparam("limit", type_=sa.Integer))
)
_held: Final = (
    sa.select(
        consumers.c.uuid,
        consumers.c.consumer_type,
        allocations.c.provider_id,
        resource_classes.c.name,
        allocations.c.used,
    )
    .select_from(allocations)
    .join(consumers, consumers.c.id == allocations.c.consumer_id)
    .join(resource_classes, resource_classes.c.id == allocations.c.resource_class_id)
    .where(consumers.c.id.in_(sa.bindparam("consumers", expanding=True)))
    .order_by(consumers.c.id)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)


def find_projects(conn: sa.Connection, uuids: Collection[str]) -> dict[str, str]:
    """Return the projects of the consumers with these uuids, by uuid; ignore unknown uuids."""
    query = sa.select(consumers.c.uuid, consumers.c.project_id).where(
        consumers.c.uuid.in_(sa.bindparam("uuids", expanding=True))
    )
    return {
        row.uuid: row.project_id
        for chunk in split_rows(sorted(uuids))
        for row in conn.execute(query, {"uuids": chunk})
    }
