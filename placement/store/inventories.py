"""Inventories of a provider: add one, change one, replace all, remove."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

import sqlalchemy as sa

from placement import exceptions
from placement.db.database import Transaction
from placement.db.tables import allocations, inventories, resource_classes
from placement.exceptions import Conflict, InvalidRequest, NotFound
from placement.store import providers


@dataclass(frozen=True, slots=True)
class Values:
    """What a client says about an inventory."""

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float


def check_reserved(
    uuid: str, resource_class: str, values: Values, *, may_reserve_all: bool, verb: str
) -> None:
    """Refuse more reserved than there is; before microversion 1.26 also as much.

    :raises InvalidRequest: saying so.
    """
    if values.reserved > values.total or (values.reserved == values.total and not may_reserve_all):
        relation = "greater than total" if may_reserve_all else "greater than or equal to total"
        raise InvalidRequest(
            f"Unable to {verb} inventory for resource provider {uuid}: "
            f"Invalid inventory for '{resource_class}' on resource provider '{uuid}'. "
            f"The reserved value is {relation}."
        )


def _class_id(tx: Transaction, name: str) -> int:
    found = tx.names.classes.ids(tx.conn, [name])
    if name not in found:
        raise InvalidRequest(f"No such resource class {name}.")
    return found[name]


def add(tx: Transaction, uuid: str, resource_class: str, values: Values) -> int:
    """Add an inventory of a class the provider has none of; return its new generation.

    :raises NotFound, InvalidRequest, Conflict: no such provider, no such class, already there.
    """
    row = providers.lock(tx, uuid)
    class_id = _class_id(tx, resource_class)
    if class_id in _present(tx.conn, row.id):
        raise Conflict(f"Update conflict: Inventory for '{resource_class}' already exists on {uuid}.")
    _insert(tx, row.id, {class_id: values})
    tx.changed([row.id], generation=True)
    return row.generation + 1


def change(tx: Transaction, uuid: str, generation: int, resource_class: str, values: Values) -> int:
    """Change an inventory the provider has; return its new generation.

    :raises NotFound, InvalidRequest, ConcurrentUpdate: no such provider, no such inventory, stale.
    """
    row = providers.lock(tx, uuid, generation)
    class_id = tx.names.classes.ids(tx.conn, [resource_class]).get(resource_class)
    if class_id is None or class_id not in _present(tx.conn, row.id):
        raise InvalidRequest(f"No inventory record with resource class {resource_class} for {uuid}.")
    _update(tx, row.id, {class_id: values})
    tx.changed([row.id], generation=True)
    return row.generation + 1


def replace_all(tx: Transaction, uuid: str, generation: int, wanted: Mapping[str, Values]) -> int:
    """Make the provider's inventories exactly these; return its new generation.

    :raises NotFound, InvalidRequest, ConcurrentUpdate: no such provider, unknown class, stale.
    :raises Conflict: when an inventory that is in use would go.
    """
    row = providers.lock(tx, uuid, generation)
    present = write(tx, row, wanted)
    remove_others(tx, row, wanted, present)
    return row.generation + 1


def write(tx: Transaction, row: providers.Row, wanted: Mapping[str, Values]) -> set[int]:
    """Insert or update these inventories of a locked provider, and leave its others.

    Return the ids of the classes of which it had some before.
    """
    ids = tx.names.classes.ids(tx.conn, wanted)
    unknown = sorted(set(wanted) - set(ids))
    if unknown:
        raise InvalidRequest(
            f"Unknown resource class in inventory for resource provider {row.uuid}: "
            f"No such resource class {', '.join(unknown)}."
        )
    present = _present(tx.conn, row.id)
    by_id = {ids[name]: values for name, values in wanted.items()}
    _update(tx, row.id, {number: values for number, values in by_id.items() if number in present})
    _insert(tx, row.id, {number: values for number, values in by_id.items() if number not in present})
    tx.changed([row.id], generation=True)
    return present


def remove_others(
    tx: Transaction, row: providers.Row, keep: Mapping[str, object], present: set[int] | None = None
) -> None:
    """Remove the inventories of a locked provider whose classes are not in ``keep``.

    :param present: the classes it has, by id, where the caller knows them.
    :raises Conflict: when one of them is in use.
    """
    kept = set(tx.names.classes.ids(tx.conn, keep).values())
    going = (_present(tx.conn, row.id) if present is None else present) - kept
    if not going:
        return
    used = (
        sa.select(resource_classes.c.name)
        .where(
            resource_classes.c.id.in_(
                sa.select(allocations.c.resource_class_id).where(
                    allocations.c.provider_id == row.id, allocations.c.resource_class_id.in_(going)
                )
            )
        )
        .order_by(resource_classes.c.id)
    )
    in_use = tx.conn.execute(used).scalars().all()
    if in_use:
        raise Conflict(
            f"Inventory for '{', '.join(in_use)}' on resource provider '{row.uuid}' in use.",
            exceptions.INVENTORY_IN_USE,
        )
    tx.conn.execute(
        sa.delete(inventories).where(
            inventories.c.provider_id == row.id, inventories.c.resource_class_id.in_(going)
        )
    )


def remove_all(tx: Transaction, uuid: str) -> None:
    """Remove every inventory of a provider.

    :raises NotFound, Conflict: no such provider, an inventory is in use.
    """
    row = providers.lock(tx, uuid)
    remove_others(tx, row, {})
    tx.changed([row.id], generation=True)


def remove(tx: Transaction, uuid: str, resource_class: str) -> None:
    """Remove one inventory of a provider.

    :raises NotFound, Conflict: no such provider or inventory, it is in use.
    """
    row = providers.lock(tx, uuid)
    class_id = tx.names.classes.ids(tx.conn, [resource_class]).get(resource_class)
    present = tx.conn.execute(
        sa.select(resource_classes.c.name)
        .join(inventories, inventories.c.resource_class_id == resource_classes.c.id)
        .where(inventories.c.provider_id == row.id)
    )
    names = set(present.scalars())
    if class_id is None or resource_class not in names:
        raise NotFound(f"No inventory of class {resource_class} found for delete")
    remove_others(tx, row, dict.fromkeys(names - {resource_class}))
    tx.changed([row.id], generation=True)


_classes_of: Final = sa.select(inventories.c.resource_class_id).where(
    inventories.c.provider_id == sa.bindparam("provider")
)


def _present(conn: sa.Connection, provider_id: int) -> set[int]:
    return set(conn.execute(_classes_of, {"provider": provider_id}).scalars())


def _insert(tx: Transaction, provider_id: int, values: Mapping[int, Values]) -> None:
    if values:
        tx.conn.execute(
            sa.insert(inventories),
            [
                {
                    "provider_id": provider_id,
                    "resource_class_id": number,
                    "updated_at": tx.now,
                    **asdict(each),
                }
                for number, each in values.items()
            ],
        )


def _update(tx: Transaction, provider_id: int, values: Mapping[int, Values]) -> None:
    for number, each in values.items():
        tx.conn.execute(
            sa.update(inventories)
            .where(inventories.c.provider_id == provider_id, inventories.c.resource_class_id == number)
            .values(updated_at=tx.now, **asdict(each))
        )
