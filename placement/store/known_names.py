"""The names of resource classes and traits in the database: looks them up, creates, renames and deletes them.

Resource classes are standard, additional or custom classes.

A transaction uses only ids that it has read itself, because another transaction may rename or delete a name
at any time. In a database that was restored from a backup, an id read earlier may belong to another name.
"""

from collections.abc import Collection, Iterable
from functools import cache
from typing import Final

import os_resource_classes
import os_traits
import sqlalchemy as sa

from placement.db.batch import StatementFamily
from placement.db.database import WriteTransaction
from placement.db.tables import (
    allocations,
    inventories,
    planned_allocations,
    provider_traits,
    resource_classes,
    traits,
    window_promises,
)
from placement.exceptions import Conflict, InvalidRequest, NotFound


class NameLookup:
    """The ids of resource classes or traits, by name.

    The query for the ids is queued together with other statements.

    The same transaction may write rows that contain these ids. While such a row exists, a foreign key
    protects the name from deletion. If the name was deleted before the row was written, the transaction fails
    and runs again.

    :param table: the table of resource classes or of traits.
    """

    def __init__(self, tx: WriteTransaction, table: sa.Table, names: Collection[str]) -> None:
        # the constructor only queues the query, so that several lookups take one round trip
        self._answer = tx.queue(*_id_lookup(table).bind_list(names)) if names else None

    @property
    def ids(self) -> dict[str, int]:
        """The ids of those names that exist, by name."""
        return dict(self._answer.rows) if self._answer else {}


@cache
def _id_lookup(table: sa.Table) -> StatementFamily:
    return StatementFamily(table.c.name, sa.select(table.c.name, table.c.id).where)


def lock_name(tx: WriteTransaction, table: sa.Table, name: str) -> int | None:
    """Lock all names until the transaction ends; return the id of this name, or None if it does not exist."""
    # the table of names is locked before the lookup, so that two workers cannot create the same name
    tx.lock_names()
    return NameLookup(tx, table, [name]).ids.get(name)


def create_name(tx: WriteTransaction, table: sa.Table, name: str) -> bool:
    """Create a resource class or trait with this name; return False if the name exists."""
    if lock_name(tx, table, name) is not None:
        return False
    tx.conn.execute(sa.insert(table).values(name=name, updated_at=tx.now))
    return True


_USERS: Final = (inventories, allocations, planned_allocations, window_promises)
"""The tables with rows that refer to resource classes."""


def create_class(tx: WriteTransaction, name: str) -> bool:
    """Create a resource class; return False if the class exists already."""
    return create_name(tx, resource_classes, name)


def rename_class(tx: WriteTransaction, old: str, new: str) -> None:
    """Rename a custom class (microversions 1.2 to 1.6).

    :raises InvalidRequest: the class is a standard class.
    :raises Conflict: a class with the name ``new`` exists.
    """
    class_id = _lock_custom(tx, old, "update")
    if old == new:
        return
    # the name is checked here, because the unique constraint would report the conflict only when the
    # statements are sent
    if NameLookup(tx, resource_classes, [new]).ids:
        raise Conflict(f"Resource class already exists: {new}")
    # the renamed class gets a new id, so that a concurrent transaction that has read the old one cannot write
    # it any more
    inserted = tx.conn.execute(sa.insert(resource_classes).values(name=new, updated_at=tx.now))
    (new_id,) = inserted.inserted_primary_key or (None,)
    # rows that refer to the class move to the new id before the old row of the class is deleted, because
    # foreign keys protect the old row
    for table in _USERS:
        tx.conn.execute(
            sa.update(table).where(table.c.resource_class_id == class_id).values(resource_class_id=new_id)
        )
    tx.conn.execute(sa.delete(resource_classes).where(resource_classes.c.id == class_id))


def delete_class(tx: WriteTransaction, name: str) -> None:
    """Delete a custom class.

    :raises InvalidRequest: the class is a standard class.
    :raises Conflict: the class is in use.
    """
    class_id = _lock_custom(tx, name, "delete")
    if _in_use(tx, class_id):
        raise Conflict(
            f"Error in delete resource class: Cannot delete resource class {name}. "
            "Class is in use in inventory."
        )
    tx.conn.execute(sa.delete(resource_classes).where(resource_classes.c.id == class_id))


def _lock_custom(tx: WriteTransaction, name: str, verb: str) -> int:
    class_id = lock_name(tx, resource_classes, name)
    if class_id is None:
        raise NotFound(f"No such resource class {name}.")
    if not name.startswith("CUSTOM_"):
        raise InvalidRequest(f"Cannot {verb} standard resource class {name}")
    return class_id


def create_trait(tx: WriteTransaction, name: str) -> bool:
    """Create a trait; return False if the trait exists already."""
    return create_name(tx, traits, name)


def delete_trait(tx: WriteTransaction, name: str) -> None:
    """Delete a custom trait.

    :raises InvalidRequest: the trait is a standard trait.
    :raises Conflict: a provider has the trait.
    """
    trait_id = lock_name(tx, traits, name)
    # the use of the trait is checked under the lock of names, so that no provider can get the trait before
    # the deletion
    if trait_id is None:
        raise NotFound(f"No such trait(s): {name}.")
    if not name.startswith("CUSTOM_"):
        raise InvalidRequest(f"Cannot delete standard trait {name}.")
    if tx.has_row(provider_traits.c.trait_id == trait_id):
        raise Conflict(f"The trait {name} is in use by a resource provider.")
    tx.conn.execute(sa.delete(traits).where(traits.c.id == trait_id))


def make_standard_names(tx: WriteTransaction, additional: Iterable[str]) -> None:
    """Create missing standard and additional names; delete unused classes no longer named as additional."""
    # the names are a list in the order of the library, so that ids of a new database have this order
    wanted = list(dict.fromkeys((*os_resource_classes.STANDARDS, *additional)))
    for table, standard in ((resource_classes, wanted), (traits, os_traits.get_traits())):
        present = set(tx.conn.execute(sa.select(table.c.name)).scalars())
        # in the common case no name is missing, and no lock is taken
        missing = [name for name in standard if name not in present]
        if missing:
            tx.lock_names()
            # the names are read again under the lock, because another starting worker may have created names
            # meanwhile
            again = set(tx.conn.execute(sa.select(table.c.name)).scalars())
            rows = [{"name": name, "updated_at": tx.now} for name in missing if name not in again]
            if rows:
                tx.conn.execute(sa.insert(table), rows)
    known = sa.select(resource_classes.c.id, resource_classes.c.name)
    for class_id, name in tx.conn.execute(known).all():
        if name not in wanted and not name.startswith("CUSTOM_") and not _in_use(tx, class_id):
            tx.lock_names()
            tx.conn.execute(sa.delete(resource_classes).where(resource_classes.c.id == class_id))


def unknown_classes(conn: sa.Connection, wanted: Iterable[str]) -> list[str]:
    """Return those of the names that are not resource classes, in alphabetical order."""
    # before its first start, a new database has no names
    missing = set(wanted).difference(os_resource_classes.STANDARDS)
    return sorted(missing.difference(conn.execute(sa.select(resource_classes.c.name)).scalars()))


def _in_use(tx: WriteTransaction, class_id: int) -> bool:
    return any(tx.has_row(table.c.resource_class_id == class_id) for table in _USERS)
