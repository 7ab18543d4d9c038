"""Resource classes and traits: their numbers in the database, remembered."""

from collections.abc import Iterable
from typing import Protocol

import sqlalchemy as sa

from placement.db.tables import resource_classes, traits


class Connected(Protocol):
    """What has a connection, maybe only when it is asked for it."""

    @property
    def conn(self) -> sa.Connection:
        """The connection."""


class NameTable:
    """The ids of one table of names.

    Only names that were found are remembered. One that another worker deleted
    meanwhile is caught by the foreign keys on everything that refers to it.
    """

    def __init__(self, table: sa.Table) -> None:
        self.table = table
        self._ids: dict[str, int] = {}
        self._query = sa.select(table.c.name, table.c.id).where(
            table.c.name.in_(sa.bindparam("names", expanding=True))
        )

    def ids(self, source: Connected, names: Iterable[str]) -> dict[str, int]:
        """The ids of those of the names that exist; the source is only asked for unknown ones."""
        wanted = set(names)
        unknown = [name for name in wanted if name not in self._ids]
        if unknown:
            self._ids.update(
                {row.name: row.id for row in source.conn.execute(self._query, {"names": unknown})}
            )
        return {name: self._ids[name] for name in wanted if name in self._ids}

    def clear(self) -> None:
        """Forget all."""
        self._ids.clear()


class Names:
    """The two tables of names."""

    def __init__(self) -> None:
        self.classes = NameTable(resource_classes)
        self.traits = NameTable(traits)

    def clear(self) -> None:
        """Forget all names of both tables."""
        self.classes.clear()
        self.traits.clear()
