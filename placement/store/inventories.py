"""Adds, changes, replaces and deletes the inventories of a provider."""

from collections.abc import Collection, Container, Mapping, Set
from typing import Final

import sqlalchemy as sa

from placement import exceptions
from placement.db.batch import PreparedStatement
from placement.db.database import WriteTransaction
from placement.db.tables import allocations, inventories, resource_classes, resource_providers
from placement.exceptions import ConcurrentUpdate, Conflict, InvalidRequest, NotFound
from placement.read_model.provider import Inventory
from placement.read_model.rows import INVENTORY_COLUMNS
from placement.store import optimistic_write, providers

UPDATE_CONFLICT: Final = "update conflict: "
"""Prefix of the error of ``PUT .../inventories`` that clients expect before "Inventory for ... in use"."""


def check_capacity(
    uuid: str, wanted: Mapping[str, Inventory], *, may_have_none: bool, verb: str = "update"
) -> None:
    """Refuse inventories with a negative capacity and, unless ``may_have_none``, with a capacity of 0.

    :param may_have_none: whether a capacity of 0 is allowed, as from microversion 1.26 on.
    :raises InvalidRequest: an inventory has such a capacity.
    """
    for resource_class, values in wanted.items():
        if values.capacity < 0 or (values.capacity == 0 and not may_have_none):
            # both cases have the words of OpenStack Placement
            relation = "greater than total" if may_have_none else "greater than or equal to total"
            raise InvalidRequest(
                f"Unable to {verb} inventory for resource provider {uuid}: "
                f"Invalid inventory for '{resource_class}' on resource provider '{uuid}'. "
                f"The reserved value is {relation}."
            )


def add(
    tx: WriteTransaction,
    uuid: str,
    resource_class: str,
    values: Inventory,
    *,
    may_have_none: bool = True,
) -> int:
    """Add an inventory of a new class to a provider; return the new generation of the provider.

    :raises InvalidRequest: no such class.
    :raises ConcurrentUpdate: the provider already has an inventory of this class.
    """
    # no generation is checked, because this request of the API has none
    row, present, ids = _lock(tx, uuid, [resource_class])
    check_capacity(uuid, {resource_class: values}, may_have_none=may_have_none, verb="create")
    if resource_class not in ids:
        raise InvalidRequest(f"No such resource class {resource_class}.")
    class_id = ids[resource_class]
    if class_id in present:
        # the error is a conflict and no wrong request, because another client may have created the inventory
        # meanwhile
        raise ConcurrentUpdate(f"Update conflict: Inventory for '{resource_class}' already exists on {uuid}.")
    insert(tx, {row.id: {class_id: values}})
    tx.note_changed([row.id], generation=True)
    return row.generation + 1


def change_inventory(
    tx: WriteTransaction,
    uuid: str,
    generation: int,
    resource_class: str,
    values: Inventory,
    *,
    may_have_none: bool = True,
) -> int:
    """Change an inventory of a provider; return the new generation of the provider.

    :raises NotFound: no such provider or class.
    :raises InvalidRequest: no such inventory.
    """
    # the generation is passed, so that an outdated one is refused before any value is checked
    row, present, ids = _lock(tx, uuid, [resource_class], generation)
    check_capacity(uuid, {resource_class: values}, may_have_none=may_have_none)
    class_id = ids.get(resource_class)
    if class_id is None:
        # the error is NotFound instead of InvalidRequest, because the class is a part of the path
        raise NotFound(f"No such resource class {resource_class}.")
    if class_id not in present:
        why = f"No inventory of class {resource_class} found."
        raise InvalidRequest(f"No inventory record with resource class for {uuid}: {why}")
    update(tx, row.id, {class_id: values})
    tx.note_changed([row.id], generation=True)
    return row.generation + 1


def replace_all(
    tx: WriteTransaction,
    uuid: str,
    generation: int,
    wanted: Mapping[str, Inventory],
    *,
    may_have_none: bool = True,
) -> int:
    """Replace all inventories of a provider; return its new generation.

    :raises InvalidRequest: a resource class does not exist.
    :raises Conflict: an inventory to be removed is in use.
    """
    if (
        generation == 0  # the optimistic way suits new providers, which mostly have no inventories
        and optimistic_write.is_worthwhile(tx, generation, len(wanted))
        # otherwise the checks below have to decide about a capacity of 0 or less
        and all(each.capacity > 0 for each in wanted.values())
    ):
        # the statement finds only a provider without inventories, with which the insertion would collide
        optimistic_write.find_provider(tx, _without, uuid, generation)
        rows = [{"name": name, **each.to_values(), "updated_at": tx.now} for name, each in wanted.items()]
        optimistic_write.insert(tx, inventories.c.resource_class_id, rows, resource_classes)
        optimistic_write.stamp_provider(tx)
        return generation + 1
    row, present, ids = _lock(tx, uuid, wanted, generation)
    check_capacity(uuid, wanted, may_have_none=may_have_none)
    write(tx, row, wanted, present, ids)
    # inventories are removed last, because the query for inventories in use sends all queued writes
    remove_some(tx, row, present - set(ids.values()), said_before=UPDATE_CONFLICT)
    return row.generation + 1


# the condition is NOT EXISTS instead of a count, which would read all inventories
_without: Final = optimistic_write.finding_statement(
    ~sa.exists(sa.select(sa.literal(1)).where(inventories.c.provider_id == resource_providers.c.id))
)


def write(
    tx: WriteTransaction,
    row: providers.ProviderRow,
    wanted: Mapping[str, Inventory],
    present: Set[int],
    ids: Mapping[str, int],
) -> None:
    """Insert or update these inventories of a locked provider; all its other inventories stay.

    :param present: the class ids of the provider's current inventories.
    :param ids: the ids of those wanted resource classes that exist.
    :raises InvalidRequest: there is no such class.
    """
    unknown = sorted(set(wanted) - set(ids))
    if unknown:
        raise InvalidRequest(
            f"Unknown resource class in inventory for resource provider {row.uuid}: "
            f"No such resource class {', '.join(unknown)}."
        )
    put(tx, row.id, {ids[name]: values for name, values in wanted.items()}, present)
    tx.note_changed([row.id], generation=True)


def remove_some(
    tx: WriteTransaction,
    row: providers.ProviderRow,
    going: Set[int],
    *,
    said_before: str = "",
    code: str = exceptions.INVENTORY_IN_USE,
) -> None:
    """Delete some inventories of a locked provider, given by the ids of their resource classes.

    :param said_before: text at the beginning of the error message.
    :raises Conflict: an inventory is in use. Clients depend on the message and the code of this error.
    """
    # the function returns early in the common case, in which a client only changes amounts
    if not going:
        return
    # the amounts include those of expired consumers that were not released yet
    used = (
        sa.select(resource_classes.c.name)
        .where(
            resource_classes.c.id.in_(
                sa.select(allocations.c.resource_class_id).where(
                    allocations.c.provider_id == row.id, allocations.c.resource_class_id.in_(going)
                )
            )
        )
        # the rows are ordered, so that the message is the same each time
        .order_by(resource_classes.c.id)
    )
    # the database is asked before the deletion, because the message has to name the classes in use
    in_use = tx.conn.execute(used).scalars().all()
    if in_use:
        raise Conflict(
            f"{said_before}Inventory for '{', '.join(in_use)}' on resource provider '{row.uuid}' in use.",
            code,
        )
    tx.conn.execute(
        sa.delete(inventories).where(
            inventories.c.provider_id == row.id, inventories.c.resource_class_id.in_(going)
        )
    )


def remove_all(tx: WriteTransaction, uuid: str) -> None:
    """Delete every inventory of a provider; raise Conflict if one is in use."""
    row, present, _ = _lock(tx, uuid, ())
    remove_some(tx, row, present)
    tx.note_changed([row.id], generation=True)


def remove(tx: WriteTransaction, uuid: str, resource_class: str) -> None:
    """Delete one inventory of a provider.

    :raises NotFound: no such provider or inventory.
    :raises Conflict: the inventory is in use.
    """
    row, present, ids = _lock(tx, uuid, [resource_class])
    class_id = ids.get(resource_class)
    if class_id is None or class_id not in present:
        raise NotFound(f"No inventory of class {resource_class} found for delete")
    # clients expect exactly this message and this code
    said_before = f"Unable to delete inventory of class {resource_class}: "
    remove_some(tx, row, {class_id}, said_before=said_before, code=exceptions.CONCURRENT_UPDATE)
    tx.note_changed([row.id], generation=True)


def _lock(
    tx: WriteTransaction, uuid: str, wanted: Collection[str], generation: int | None = None
) -> tuple[providers.ProviderRow, Set[int], dict[str, int]]:
    """Lock a provider; return its row, the ids of its classes, and the ids of wanted classes that exist."""
    found = providers.lock_parts(tx, uuid, inventories.c.resource_class_id, resource_classes, wanted)
    row = found[0]
    if generation is not None and row.generation != generation:
        raise ConcurrentUpdate(
            f"resource provider generation conflict: {uuid} is at {row.generation}, the request "
            f"gave {generation}"
        )
    return found


def insert(tx: WriteTransaction, wanted: Mapping[int, Mapping[int, Inventory]]) -> None:
    """Add inventories of new classes to locked providers, by the ids of providers and of classes."""
    rows = [
        {
            "provider_id": provider_id,
            "resource_class_id": class_id,
            "updated_at": tx.now,
            **each.to_values(),
        }
        for provider_id, values in wanted.items()
        for class_id, each in values.items()
    ]
    # the code uses one statement for all providers, because trees are written at once
    tx.insert(inventories, rows)


def put(
    tx: WriteTransaction, provider_id: int, wanted: Mapping[int, Inventory], present: Container[int]
) -> None:
    """Change or add inventories of a locked provider, by the ids of their classes.

    :param present: the class ids of the inventories to change.
    """
    # insertions have a statement of their own, because databases have no common statement for insertion and
    # update
    update(tx, provider_id, {class_id: each for class_id, each in wanted.items() if class_id in present})
    insert(tx, {provider_id: {each: values for each, values in wanted.items() if each not in present}})


def update(tx: WriteTransaction, provider_id: int, values: Mapping[int, Inventory]) -> None:
    """Change inventories of a locked provider; the keys are the ids of their classes."""
    for class_id, each in values.items():
        # the prefix is necessary because SQLAlchemy itself uses the names of columns as bound parameters
        given = {f"new_{name}": value for name, value in each.to_values().items()}
        # the rows are updated one by one, because databases have no common statement that gives several rows
        # different values
        tx.queue(_update, {"provider": provider_id, "class": class_id, "now": tx.now, **given})


_update: Final = PreparedStatement(
    sa.update(inventories)
    .where(
        inventories.c.provider_id == sa.bindparam("provider"),
        inventories.c.resource_class_id == sa.bindparam("class"),
    )
    .values(
        updated_at=sa.bindparam("now"),
        **{each.name: sa.bindparam(f"new_{each.name}", type_=each.type) for each in INVENTORY_COLUMNS},
    )
)
