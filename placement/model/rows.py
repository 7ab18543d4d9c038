"""Reading providers, and all that belongs to them, out of the database."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa

from placement.db.tables import (
    allocations,
    inventories,
    provider_aggregates,
    provider_traits,
    resource_classes,
    resource_providers,
    traits,
)
from placement.model.world import Inventory, Provider

_CHUNK: Final = 500

_rp = resource_providers.c
_own: sa.BindParameter[list[int]] = sa.bindparam("ids", expanding=True)

_providers: Final = sa.select(
    _rp.id, _rp.uuid, _rp.name, _rp.generation, _rp.parent_id, _rp.root_id, _rp.updated_at, _rp.bucket
)
_inventories: Final = sa.select(
    inventories.c.provider_id,
    inventories.c.resource_class_id,
    inventories.c.total,
    inventories.c.reserved,
    inventories.c.min_unit,
    inventories.c.max_unit,
    inventories.c.step_size,
    inventories.c.allocation_ratio,
    inventories.c.updated_at,
)
_used: Final = sa.select(
    allocations.c.provider_id, allocations.c.resource_class_id, sa.func.sum(allocations.c.used)
).group_by(allocations.c.provider_id, allocations.c.resource_class_id)
_traits: Final = sa.select(provider_traits.c.provider_id, provider_traits.c.trait_id)
_aggregates: Final = sa.select(provider_aggregates.c.provider_id, provider_aggregates.c.aggregate)

_some: Final = {
    "providers": _providers.where(_rp.id.in_(_own)),
    "inventories": _inventories.where(inventories.c.provider_id.in_(_own)),
    "used": _used.where(allocations.c.provider_id.in_(_own)),
    "traits": _traits.where(provider_traits.c.provider_id.in_(_own)),
    "aggregates": _aggregates.where(provider_aggregates.c.provider_id.in_(_own)),
}
_all: Final = {
    "providers": _providers,
    "inventories": _inventories,
    "used": _used,
    "traits": _traits,
    "aggregates": _aggregates,
}


class Names:
    """Resource classes and traits: number to name, and when each name was last written."""

    def __init__(self, classes: Sequence[Any], trait_rows: Sequence[Any]) -> None:
        self.class_of: dict[int, str] = {row.id: row.name for row in classes}
        self.trait_of: dict[int, str] = {row.id: row.name for row in trait_rows}
        self.classes: dict[str, float] = {row.name: row.updated_at for row in classes}
        self.traits: dict[str, float] = {row.name: row.updated_at for row in trait_rows}


def read_names(conn: sa.Connection) -> Names:
    """All names as the database has them, in the order in which they were made."""
    return Names(
        *(conn.execute(sa.select(table).order_by(table.c.id)).all() for table in (resource_classes, traits))
    )


class Shared:
    """Equal values kept once: thousands of hosts differ in few inventories and trait sets."""

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}

    def __call__(self, value: Any) -> Any:
        return self._kept.setdefault(value, value)


def read_all(conn: sa.Connection, names: Names, shared: Shared) -> Iterator[tuple[int, Provider]]:
    """Every provider, with the number of its change bucket."""
    return _assemble({kind: conn.execute(query).all() for kind, query in _all.items()}, names, shared)


def read_some(
    conn: sa.Connection, ids: Iterable[int], names: Names, shared: Shared
) -> Iterator[tuple[int, Provider]]:
    """Those of the providers that exist, with the numbers of their change buckets."""
    ordered = sorted(ids)
    for start in range(0, len(ordered), _CHUNK):
        chosen = {"ids": ordered[start : start + _CHUNK]}
        yield from _assemble(
            {kind: conn.execute(query, chosen).all() for kind, query in _some.items()}, names, shared
        )


def _assemble(rows: dict[str, Sequence[Any]], names: Names, shared: Shared) -> Iterator[tuple[int, Provider]]:
    owned_inventories: dict[int, dict[str, Inventory]] = {}
    for provider_id, class_id, *values in rows["inventories"]:
        owned_inventories.setdefault(provider_id, {})[names.class_of[class_id]] = shared(Inventory(*values))
    used: dict[int, dict[str, int]] = {}
    for provider_id, class_id, amount in rows["used"]:
        used.setdefault(provider_id, {})[names.class_of[class_id]] = int(amount)
    owned_traits: dict[int, list[str]] = {}
    for provider_id, trait_id in rows["traits"]:
        owned_traits.setdefault(provider_id, []).append(names.trait_of[trait_id])
    aggregates: dict[int, list[str]] = {}
    for provider_id, aggregate in rows["aggregates"]:
        aggregates.setdefault(provider_id, []).append(shared(aggregate))
    for number, uuid, name, generation, parent_id, root_id, updated_at, bucket in rows["providers"]:
        yield (
            bucket,
            Provider(
                id=number,
                uuid=uuid,
                name=name,
                generation=generation,
                parent_id=parent_id,
                root_id=number if root_id is None else root_id,
                updated_at=updated_at,
                inventories=owned_inventories.get(number, _NOTHING),
                used=used.get(number, _NOTHING),
                traits=shared(frozenset(owned_traits.get(number, ()))),
                aggregates=shared(frozenset(aggregates.get(number, ()))),
            ),
        )


_NOTHING: Final[dict[str, Any]] = {}
