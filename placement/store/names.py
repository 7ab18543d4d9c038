"""Looks up and creates the names of resource classes and traits in the database.

A transaction uses only ids that it has read itself, because another transaction may rename or delete a name
at any time. In a database that was restored from a backup, an id read earlier may belong to another name.
"""

from collections.abc import Collection
from functools import cache

import sqlalchemy as sa

from placement.db.batch import StatementFamily
from placement.db.database import WriteTransaction


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
        rows = self._answer.rows if self._answer else ()
        return {name: each for name, each in rows}  # noqa: C416  # rows are not pairs


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
