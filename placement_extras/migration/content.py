"""What a database holds, in one shape for our schema and for that of OpenStack Placement.

Both sides of an import are read through the same queries of the same columns,
so that they can be counted, summed and compared alike.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from placement.db import tables

BATCH: Final = 5_000

_SUMMED: Final[Mapping[str, str | None]] = {
    "resource_providers": "generation",
    "provider_traits": None,
    "provider_aggregates": None,
    "inventories": "total",
    "consumers": "generation",
    "allocations": "used",
}
"""The tables that are compared, with the column that is summed."""
CONSUMERS: Final = "consumers (sum of generations)"
_TITLES: Final = {
    "resource_providers": "resource providers (sum of generations)",
    "provider_traits": "traits of resource providers",
    "provider_aggregates": "aggregates of resource providers",
    "inventories": "inventories of {} (sum of totals)",
    "consumers": CONSUMERS,
    "allocations": "allocations of {} (sum used)",
}
_NOT_COMPARED: Final = frozenset(
    {"bucket", "change_seq", "described_seq", "root_id", "updated_at"}
)  # derived, or unknown


@dataclass(frozen=True, slots=True)
class RowTally:
    """How many rows there are of something, and the sum of what they say."""

    rows: int = 0
    total: int = 0


@dataclass(frozen=True)
class DatabaseContent:
    """The data behind a connection, as queries that yield rows of our tables.

    :param classes: the resource classes, by the id that inventories and allocations use.
    :param traits: the traits, likewise.
    :param queries: by name of our table, a query with our columns.
    """

    conn: sa.Connection
    classes: Mapping[int, str]
    traits: Mapping[int, str]
    queries: Mapping[str, sa.Select[Any]]

    def rows(self, table: str) -> Iterator[dict[str, Any]]:
        """The rows of one of our tables, streamed; only one stream at a time on a connection."""
        result = self.conn.execute(self.queries[table], execution_options={"yield_per": BATCH})
        columns = tuple(result.keys())
        for row in result:
            yield self._finish(dict(zip(columns, row, strict=True)))

    def _finish(self, row: dict[str, Any]) -> dict[str, Any]:
        """What only Python can do to a row."""
        return row

    def tallies(self) -> dict[str, RowTally]:
        """Counts and sums, by what they are of; the database computes them."""
        found: dict[str, RowTally] = {}
        for table, summed in _SUMMED.items():
            rows = self.queries[table].subquery()
            columns: list[Any] = [
                sa.func.count(),
                sa.literal(0) if summed is None else sa.func.sum(rows.c[summed]),
            ]
            if "resource_class_id" in rows.c:
                by_class = sa.select(rows.c.resource_class_id, *columns).group_by(rows.c.resource_class_id)
                for class_id, count, total in self.conn.execute(by_class):
                    found[_TITLES[table].format(self.classes[class_id])] = RowTally(count, int(total))
            else:
                count, total = self.conn.execute(sa.select(*columns).select_from(rows)).one()
                found[_TITLES[table]] = RowTally(count, int(total or 0))
        return found

    def fingerprints(self) -> dict[str, int]:
        """A number for the content of each table: equal for equal rows in any order.

        Only numbers of one process can be compared. Times are left out, since a
        source may have none.
        """
        return {table: self._fingerprint(self.rows(table)) for table in _SUMMED}

    def _fingerprint(self, rows: Iterator[dict[str, Any]]) -> int:
        total = 0
        columns: list[str] = []
        for row in rows:
            columns = columns or sorted(row.keys() - _NOT_COMPARED)
            if "resource_class_id" in row:
                row["resource_class_id"] = self.classes.get(row["resource_class_id"])
            if "trait_id" in row:
                row["trait_id"] = self.traits.get(row["trait_id"])
            total += hash(tuple([row[column] for column in columns]))
        return total


def of_ours(conn: sa.Connection, prefix: str = "") -> DatabaseContent:
    """The content of a database of this service.

    :param prefix: what stands before the names of the tables.
    """
    metadata = sa.MetaData()
    named = {
        name: table.to_metadata(metadata, name=prefix + name)
        for name, table in tables.metadata.tables.items()
    }
    names = [
        {row.id: row.name for row in conn.execute(sa.select(table.c.id, table.c.name))}
        for table in (named["resource_classes"], named["traits"])
    ]
    return DatabaseContent(conn, names[0], names[1], {name: sa.select(named[name]) for name in _SUMMED})


@dataclass(frozen=True, slots=True)
class TallyComparison:
    """Two sets of tallies side by side, by what they are of."""

    pairs: Mapping[str, tuple[RowTally, RowTally]] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Mapping[str, RowTally], target: Mapping[str, RowTally]) -> "TallyComparison":
        """What is on one side only counts as nothing on the other."""
        nothing = RowTally()
        return cls(
            {
                title: (source.get(title, nothing), target.get(title, nothing))
                for title in dict.fromkeys((*source, *target))
            }
        )

    @property
    def differences(self) -> list[str]:
        """What is not equal on both sides."""
        return [title for title, (source, target) in self.pairs.items() if source != target]
