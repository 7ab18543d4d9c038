"""What resource classes and traits have in common: they are names, and ids in the database.

No id is remembered beyond its transaction. Others rename and delete what it stands for, and
in a database that was restored from a backup it may be that of another name.
"""

from collections.abc import Collection
from functools import lru_cache

import sqlalchemy as sa

from placement.db.batch import KEPT_SIZES, PreparedStatement, bind_parameters, bind_values
from placement.db.database import WriteTransaction


class NameLookup:
    """The ids of some names, asked for together with what else waits in the transaction.

    Until it ends these ids can be written: that something refers to them keeps what they stand for
    (foreign keys), and if they were removed before that, the transaction fails and starts again.

    :param table: that of resource classes or that of traits.
    """

    def __init__(self, tx: WriteTransaction, table: sa.Table, names: Collection[str]) -> None:
        self._answer = tx.queue(_ids(table, len(names)), bind_values("name", names)) if names else None

    @property
    def ids(self) -> dict[str, int]:
        """The ids of those of the names that there are."""
        rows = self._answer.rows if self._answer else ()
        return {name: each for name, each in rows}  # noqa: C416  # rows are not pairs


@lru_cache(KEPT_SIZES)
def _ids(table: sa.Table, count: int) -> PreparedStatement:
    chosen = table.c.name.in_(bind_parameters("name", count))
    return PreparedStatement(sa.select(table.c.name, table.c.id).where(chosen))


def locked(tx: WriteTransaction, table: sa.Table, name: str) -> int | None:
    """The id of a name, if there is one, with no other transaction making or removing names."""
    tx.lock_names()
    return NameLookup(tx, table, [name]).ids.get(name)


def create(tx: WriteTransaction, table: sa.Table, name: str) -> bool:
    """Make a name; False when it is there already."""
    if locked(tx, table, name) is not None:
        return False
    tx.conn.execute(sa.insert(table).values(name=name, updated_at=tx.now))
    return True
