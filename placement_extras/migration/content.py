"""The content of a database, in one format for our schema and the schema of OpenStack Placement.

Both databases of an import are read as rows with the same columns, so that rows can be counted, summed and
compared. Each difference is described with names and uuids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from placement.db import tables

# maximum number of rows in memory at the same time; they need a few megabytes
BATCH_ROWS: Final = 5_000

CONSUMERS: Final = "consumers (sum of generations)"
COMPARED_TABLES: Final[Mapping[str, tuple[str, str | None]]] = {
    "resource_providers": ("resource providers (sum of generations)", "generation"),
    "provider_traits": ("traits of resource providers", None),
    "provider_aggregates": ("aggregates of resource providers", None),
    "inventories": ("inventories of {} (sum of totals)", "total"),
    "consumers": (CONSUMERS, "generation"),
    "allocations": ("allocations of {} (sum used)", "used"),
}
"""The tables that are copied and compared, each after the tables that its foreign keys refer to. Each has a
title and the column that is summed; None if the rows are only counted.
"""
# these columns are not compared: our schema computes some from other columns, and a source can lack the time
_NOT_COMPARED: Final = frozenset({"bucket", "change_seq", "described_seq", "root_id", "updated_at"})


@dataclass(frozen=True, slots=True)
class RowTally:
    """The number of rows of a table, and the sum of one of its columns; 0 if no column is summed."""

    rows: int = 0
    total: int = 0


@dataclass(frozen=True)
class DatabaseContent:
    """The content of a database, as queries that yield rows of our tables.

    :param classes: names of resource classes, by their ids in the rows of inventories and allocations.
    :param traits: names of traits, by their ids in the rows of provider traits.
    :param queries: for each of our tables, a query that yields rows with the columns of this table.
    """

    conn: sa.Connection
    classes: Mapping[int, str]
    traits: Mapping[int, str]
    queries: Mapping[str, sa.Select[Any]]

    def rows(self, table: str) -> Iterator[dict[str, Any]]:
        """Read the rows of one of our tables in batches. A connection can execute one such read at a time."""
        # yield_per also asks the driver for a cursor on the server, if the database has such cursors
        result = self.conn.execute(self.queries[table], execution_options={"yield_per": BATCH_ROWS})
        columns = tuple(result.keys())
        for row in result:
            yield dict(zip(columns, row, strict=True))

    def row_tallies(self) -> dict[str, RowTally]:
        """Return the number of rows and the sum for each title. The database computes these numbers."""
        found: dict[str, RowTally] = {}
        for table, (title, summed) in COMPARED_TABLES.items():
            rows = self.queries[table].subquery()
            columns: list[Any] = [
                sa.func.count(),
                sa.literal(0) if summed is None else sa.func.sum(rows.c[summed]),
            ]
            if "resource_class_id" in rows.c:
                by_class = sa.select(rows.c.resource_class_id, *columns).group_by(rows.c.resource_class_id)
                # int() is needed, because MySQL returns sums as decimals
                for class_id, count, total in self.conn.execute(by_class):
                    found[title.format(self.classes[class_id])] = RowTally(count, int(total))
            else:
                count, total = self.conn.execute(sa.select(*columns).select_from(rows)).one()
                # the sum over no rows is NULL
                found[title] = RowTally(count, int(total or 0))
        return found

    def table_fingerprints(self) -> dict[str, int]:
        """Return a fingerprint of each table: a number that is equal for equal rows in any order.

        Fingerprints can be compared only within one process, because Python's hashes of texts differ
        between processes. Times are left out, because some databases of a source have no times.
        """
        return {table: self._fingerprint_rows(self.rows(table)) for table in COMPARED_TABLES}

    def _fingerprint_rows(self, rows: Iterator[dict[str, Any]]) -> int:
        total = 0
        columns: list[str] = []
        for row in rows:
            # columns are sorted, because the two databases can return them in different orders
            columns = columns or sorted(row.keys() - _NOT_COMPARED)
            # ids of classes and traits are replaced by names, because ids differ between the two databases
            if "resource_class_id" in row:
                row["resource_class_id"] = self.classes.get(row["resource_class_id"])
            if "trait_id" in row:
                row["trait_id"] = self.traits.get(row["trait_id"])
            # a sum of hashes does not depend on the order of the rows
            total += hash(tuple([row[column] for column in columns]))
        return total


def own_content(conn: sa.Connection, prefix: str = "") -> DatabaseContent:
    """Return the content of our tables in a database. The names of these tables begin with the prefix."""
    metadata = sa.MetaData()
    named = {
        name: table.to_metadata(metadata, name=prefix + name)
        for name, table in tables.metadata.tables.items()
    }
    names = [
        {row.id: row.name for row in conn.execute(sa.select(table.c.id, table.c.name))}
        for table in (named["resource_classes"], named["traits"])
    ]
    return DatabaseContent(
        conn, names[0], names[1], {name: sa.select(named[name]) for name in COMPARED_TABLES}
    )


TallyPairs = Mapping[str, tuple[RowTally, RowTally]]
"""The numbers and sums of rows in two databases, as pairs by title. The source comes first in a pair."""


def pair_tallies(source: Mapping[str, RowTally], target: Mapping[str, RowTally]) -> TallyPairs:
    """Pair the numbers and sums of two databases by title; a missing title counts as zero."""
    nothing = RowTally()
    return {
        title: (source.get(title, nothing), target.get(title, nothing))
        for title in dict.fromkeys((*source, *target))
    }


def different_titles(pairs: TallyPairs) -> list[str]:
    """Return the titles with different numbers or sums of rows in the two databases."""
    return [title for title, (source, target) in pairs.items() if source != target]


ContentKey = tuple[str, ...]
"""Uuids and names that identify an item in each database: for example, (consumer, provider, class)."""
TableContent = Mapping[ContentKey, tuple[Any, ...]]
"""The content of a table: the values of each item, by the key of the item."""

CUSTOM_PREFIX: Final = "CUSTOM_"
INVENTORY_COLUMNS: Final = ("total", "reserved", "min_unit", "max_unit", "step_size", "allocation_ratio")


@dataclass(frozen=True)
class PortableContent:
    """The content of a database, in memory, as far as clients can see it.

    The values of a provider are its id, its name, its generation and the uuid of its parent. The values of an
    inventory are :data:`INVENTORY_COLUMNS`. The values of a consumer are project, user, type and generation;
    only consumers with allocations are included. The value of an allocation is its amount. Only custom
    resource classes and traits are included, because each release defines its standard classes and traits.
    All ids except the ids of providers are left out.

    :param by_table: the values of each item, by the name of our table and the key of the item.
    :param times: times of the last change in seconds since 1970, by table and key.
    """

    by_table: Mapping[str, TableContent]
    times: Mapping[str, Mapping[ContentKey, float]]


def read_portable(content: DatabaseContent) -> PortableContent:
    """Read all content that clients can see into memory. Keys have names and uuids instead of ids."""
    times: dict[str, dict[ContentKey, float]] = {}
    classes, traits = content.classes, content.traits
    uuids: dict[int, str] = {}
    consumers: dict[int, str] = {}

    def read(
        table: str, key: Callable[[Any], ContentKey], value: Callable[[Any], tuple[Any, ...]]
    ) -> dict[ContentKey, tuple[Any, ...]]:
        found: dict[ContentKey, tuple[Any, ...]] = {}
        changed = times.setdefault(table, {})
        for row in content.rows(table):
            name = key(row)
            found[name] = value(row)
            if row.get("updated_at") is not None:
                changed[name] = row["updated_at"]
        return found

    def provider_key(row: Any) -> ContentKey:
        uuids[row["id"]] = row["uuid"]
        return (row["uuid"],)

    def consumer_key(row: Any) -> ContentKey:
        consumers[row["id"]] = row["uuid"]
        return (row["uuid"],)

    # providers and consumers are read first, because the keys of other tables contain their uuids
    providers = read(
        "resource_providers",
        provider_key,
        lambda row: (row["id"], row["name"], row["generation"], row["parent_id"]),
    )
    listed = read(
        "consumers",
        consumer_key,
        lambda row: (row["project_id"], row["user_id"], row["consumer_type"], row["generation"]),
    )
    by_table = {
        "resource_providers": {
            # ids of parents are replaced here, because now the uuids of all providers are known
            key: (*values, None if parent is None else uuids[parent])
            for key, (*values, parent) in providers.items()
        },
        "inventories": read(
            "inventories",
            lambda row: (uuids[row["provider_id"]], classes[row["resource_class_id"]]),
            lambda row: tuple(row[column] for column in INVENTORY_COLUMNS),
        ),
        "provider_traits": read(
            "provider_traits",
            lambda row: (uuids[row["provider_id"]], traits[row["trait_id"]]),
            lambda row: (),
        ),
        "provider_aggregates": read(
            "provider_aggregates",
            lambda row: (uuids[row["provider_id"]], row["aggregate"]),
            lambda row: (),
        ),
        "allocations": read(
            "allocations",
            lambda row: (
                consumers[row["consumer_id"]],
                uuids[row["provider_id"]],
                classes[row["resource_class_id"]],
            ),
            lambda row: (row["used"],),
        ),
    }
    # clients do not see a consumer without allocations
    held = {consumer for consumer, _, _ in by_table["allocations"]}
    by_table["consumers"] = {key: value for key, value in listed.items() if key[0] in held}
    for table, names in (("resource_classes", classes), ("traits", traits)):
        by_table[table] = {(name,): () for name in names.values() if name.startswith(CUSTOM_PREFIX)}
    return PortableContent(by_table, times)


@dataclass(frozen=True, slots=True)
class TableChange:
    """The keys of the items of one table that were removed, added or changed."""

    gone: tuple[ContentKey, ...]
    new: tuple[ContentKey, ...]
    changed: tuple[ContentKey, ...]

    def __bool__(self) -> bool:
        return bool(self.gone or self.new or self.changed)


def compare_content(before: PortableContent, after: PortableContent) -> dict[str, TableChange]:
    """Return the changes from one content to another, by table. Equal tables are left out."""
    changes = {
        table: _compare_table(before.by_table[table], after.by_table[table]) for table in before.by_table
    }
    return {table: change for table, change in changes.items() if change}


def _compare_table(before: TableContent, after: TableContent) -> TableChange:
    return TableChange(
        tuple(sorted(before.keys() - after.keys())),
        tuple(sorted(after.keys() - before.keys())),
        tuple(sorted(key for key in before.keys() & after.keys() if before[key] != after[key])),
    )


_ITEM_NOUNS: Final = {
    "resource_classes": "resource class",
    "traits": "trait",
    "resource_providers": "resource provider",
    "inventories": "inventory",
    "provider_traits": "trait of a provider",
    "provider_aggregates": "aggregate of a provider",
    "consumers": "consumer",
    "allocations": "allocation",
}


def describe_changes(
    changes: Mapping[str, TableChange], before: PortableContent, after: PortableContent
) -> list[str]:
    """Describe each change in one line. Allocations and inventories come first, because they matter most."""
    lines: list[str] = []
    for table in dict.fromkeys(("allocations", "inventories", *_ITEM_NOUNS)):
        if (change := changes.get(table)) is None:
            continue
        was, now, noun = before.by_table[table], after.by_table[table], _ITEM_NOUNS[table]
        lines += [f"{noun} made: {_describe_item(table, key, now[key])}" for key in change.new]
        lines += [f"{noun} removed: {_describe_item(table, key, was[key])}" for key in change.gone]
        lines += [
            f"{noun} changed: {_describe_item(table, key, now[key])}"
            + _previous_value(table, was[key], now[key])
            for key in change.changed
        ]
    return lines


def _describe_item(table: str, key: ContentKey, value: tuple[Any, ...]) -> str:
    if table == "allocations":
        consumer, provider, name = key
        return f"{value[0]} {name} of {provider} for {consumer}"
    if table == "inventories":
        return f"{value[0]} {key[1]} of {key[0]}"
    if table == "resource_providers":
        return f"{value[1]} ({key[0]})"
    return " of ".join(reversed(key))


def _previous_value(table: str, was: tuple[Any, ...], now: tuple[Any, ...]) -> str:
    """Return the old and new values of an item's changed columns, as a text in parentheses."""
    if table == "allocations":
        return f" (was {was[0]})"
    names: Sequence[str] = {
        "resource_providers": ("id", "name", "generation", "parent"),
        "consumers": ("project", "user", "type", "generation"),
        "inventories": INVENTORY_COLUMNS,
    }[table]
    return f" ({', '.join(_changed_columns(names, was, now))})"


def _changed_columns(names: Sequence[str], was: tuple[Any, ...], now: tuple[Any, ...]) -> Iterator[str]:
    for name, old, new in zip(names, was, now, strict=True):
        if old != new:
            yield f"{name} {old} -> {new}"
