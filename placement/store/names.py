"""What resource classes and traits have in common: they are names that come to be."""

import sqlalchemy as sa

from placement.db.database import Transaction
from placement.db.names import NameTable


def create(tx: Transaction, names: NameTable, name: str) -> bool:
    """Make a name of this kind; False when it is there already."""
    tx.lock_names()
    names.clear()
    if names.ids(tx, [name]):
        return False
    tx.conn.execute(sa.insert(names.table).values(name=name, updated_at=tx.now))
    return True
