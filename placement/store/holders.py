"""Who holds something of providers, and whose they are: for people who look."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from placement.db.batch import chunks
from placement.db.tables import allocations, consumers, resource_classes, resource_providers


@dataclass(frozen=True, slots=True)
class Holder:
    """One amount that a consumer holds, and whose consumer it is."""

    consumer: str
    consumer_type: str | None
    project_id: str
    provider: str
    resource_class: str
    used: int


def holders(
    conn: sa.Connection, uuids: Collection[str], limit: int, skip: int = 0
) -> tuple[list[Holder], bool]:
    """All that consumers hold of these providers, each consumer's together, in the order in which they came.

    :param limit: so many consumers at most, after the first ``skip``.
    :returns: what they hold, and whether there are more of them.
    """
    ids: set[int] = set()
    for chunk in chunks(sorted(uuids)):
        ids.update(conn.execute(_first_holders, {"providers": chunk, "limit": skip + limit + 1}).scalars())
    shown = sorted(ids)[skip : skip + limit]
    found: list[tuple[int, Holder]] = []
    for chunk in chunks(sorted(uuids)):
        for some in chunks(shown):
            rows = conn.execute(_holdings, {"providers": chunk, "consumers": some})
            found += [(first, Holder(*others)) for first, *others in rows]
    return [each for _, each in sorted(found, key=lambda item: item[0])], len(ids) > skip + limit


_first_holders: Final = (
    sa.select(allocations.c.consumer_id)
    .join(resource_providers, resource_providers.c.id == allocations.c.provider_id)
    .where(resource_providers.c.uuid.in_(sa.bindparam("providers", expanding=True)))
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
    .select_from(allocations)
    .join(consumers, consumers.c.id == allocations.c.consumer_id)
    .join(resource_providers, resource_providers.c.id == allocations.c.provider_id)
    .join(resource_classes, resource_classes.c.id == allocations.c.resource_class_id)
    .where(consumers.c.id.in_(sa.bindparam("consumers", expanding=True)))
    .where(resource_providers.c.uuid.in_(sa.bindparam("providers", expanding=True)))
    .order_by(consumers.c.id, resource_providers.c.id, resource_classes.c.id)
)
