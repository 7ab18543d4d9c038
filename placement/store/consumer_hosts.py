"""The hosts of consumers: the roots of the trees from which they have, or will have, allocations.

The hosts of a window include those of which claims use all of its amounts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from placement.db.batch import split_rows
from placement.db.tables import (
    allocations,
    consumers,
    planned_allocations,
    resource_providers,
    window_promises,
)


def find_roots(conn: sa.Connection, uuids: Collection[str]) -> Mapping[str, Sequence[str]]:
    """Return the sorted uuids of root providers by consumer; consumers without amounts are missing.

    The root of a sharing provider is included.
    """
    found: dict[str, set[str]] = {}
    for chunk in split_rows(sorted(uuids)):
        for query in _ROOTS:
            for consumer, root in conn.execute(query, {"uuids": chunk}):
                found.setdefault(consumer, set()).add(root)
    return {consumer: sorted(roots) for consumer, roots in found.items()}


_root: Final = resource_providers.alias("root")


def _roots_query(amounts: sa.Table) -> sa.Select[Any]:
    return (
        sa.select(consumers.c.uuid, _root.c.uuid)
        .distinct()
        .select_from(consumers)
        .join(amounts, amounts.c.consumer_id == consumers.c.id)
        .join(resource_providers, resource_providers.c.id == amounts.c.provider_id)
        # the root_id of a root is NULL
        .join(_root, _root.c.id == sa.func.coalesce(resource_providers.c.root_id, resource_providers.c.id))
        .where(consumers.c.uuid.in_(sa.bindparam("uuids", expanding=True)))
    )


_ROOTS: Final = tuple(map(_roots_query, (allocations, planned_allocations, window_promises)))
