"""The content of a database in one shape, for our schema and for that of OpenStack Placement.

Both sides of an import are read by the same queries of the same columns, so that they can be counted, summed
and compared alike. Differences are listed item by item, with names and uuids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    def of(cls, source: Mapping[str, RowTally], target: Mapping[str, RowTally]) -> TallyComparison:
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


Key = tuple[str, ...]
Things = Mapping[Key, tuple[Any, ...]]

CUSTOM: Final = "CUSTOM_"
INVENTORY: Final = ("total", "reserved", "min_unit", "max_unit", "step_size", "allocation_ratio")


@dataclass(frozen=True)
class PortableContent:
    """Everything a database holds that clients can see, without the ids of rows (but providers').

    Values: of a provider its id, name, generation and the uuid of its parent; of an inventory what
    :data:`INVENTORY` says; of a consumer (which holds something) project, user, type and generation; of an
    allocation the amount. Resource classes and traits are those that somebody made: the others are there
    or not, as a version knows them.

    :param times: when providers, inventories, consumers and allocations last changed (seconds since 1970), by
        table and key.
    """

    things: Mapping[str, Things]
    times: Mapping[str, Mapping[Key, float]]


def portable(content: DatabaseContent) -> PortableContent:
    """All of it, in memory."""
    times: dict[str, dict[Key, float]] = {}
    classes, traits = content.classes, content.traits
    uuids: dict[int, str] = {}
    consumers: dict[int, str] = {}

    def read(
        table: str, key: Callable[[Any], Key], value: Callable[[Any], tuple[Any, ...]]
    ) -> dict[Key, tuple[Any, ...]]:
        found: dict[Key, tuple[Any, ...]] = {}
        changed = times.setdefault(table, {})
        for row in content.rows(table):
            name = key(row)
            found[name] = value(row)
            if row.get("updated_at") is not None:
                changed[name] = row["updated_at"]
        return found

    def provider(row: Any) -> Key:
        uuids[row["id"]] = row["uuid"]
        return (row["uuid"],)

    def consumer(row: Any) -> Key:
        consumers[row["id"]] = row["uuid"]
        return (row["uuid"],)

    providers = read(
        "resource_providers",
        provider,
        lambda row: (row["id"], row["name"], row["generation"], row["parent_id"]),
    )
    listed = read(
        "consumers",
        consumer,
        lambda row: (row["project_id"], row["user_id"], row["consumer_type"], row["generation"]),
    )
    things = {
        "resource_providers": {
            key: (*values, None if parent is None else uuids[parent])
            for key, (*values, parent) in providers.items()
        },
        "inventories": read(
            "inventories",
            lambda row: (uuids[row["provider_id"]], classes[row["resource_class_id"]]),
            lambda row: tuple(row[column] for column in INVENTORY),
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
    held = {consumer for consumer, _, _ in things["allocations"]}
    things["consumers"] = {key: value for key, value in listed.items() if key[0] in held}
    for table, names in (("resource_classes", classes), ("traits", traits)):
        things[table] = {(name,): () for name in names.values() if name.startswith(CUSTOM)}
    return PortableContent(things, times)


@dataclass(frozen=True, slots=True)
class TableChange:
    """What became of the things of one table."""

    gone: tuple[Key, ...]
    new: tuple[Key, ...]
    changed: tuple[Key, ...]

    def __bool__(self) -> bool:
        return bool(self.gone or self.new or self.changed)


def compare(before: PortableContent, after: PortableContent) -> dict[str, TableChange]:
    """The tables where something is different."""
    changes = {table: _compare(before.things[table], after.things[table]) for table in before.things}
    return {table: change for table, change in changes.items() if change}


def _compare(before: Things, after: Things) -> TableChange:
    return TableChange(
        tuple(sorted(before.keys() - after.keys())),
        tuple(sorted(after.keys() - before.keys())),
        tuple(sorted(key for key in before.keys() & after.keys() if before[key] != after[key])),
    )


_NOUNS: Final = {
    "resource_classes": "resource class",
    "traits": "trait",
    "resource_providers": "resource provider",
    "inventories": "inventory",
    "provider_traits": "trait of a provider",
    "provider_aggregates": "aggregate of a provider",
    "consumers": "consumer",
    "allocations": "allocation",
}


def describe(
    changes: Mapping[str, TableChange], before: PortableContent, after: PortableContent
) -> list[str]:
    """The changes in words, a line for each: what people look for first."""
    lines: list[str] = []
    for table in dict.fromkeys(("allocations", "inventories", *_NOUNS)):
        if (change := changes.get(table)) is None:
            continue
        was, now = before.things[table], after.things[table]
        lines += [f"{_NOUNS[table]} made: {_words(table, key, now[key])}" for key in change.new]
        lines += [f"{_NOUNS[table]} removed: {_words(table, key, was[key])}" for key in change.gone]
        lines += [
            f"{_NOUNS[table]} changed: {_words(table, key, now[key])}{_before(table, was[key], now[key])}"
            for key in change.changed
        ]
    return lines


def _words(table: str, key: Key, value: tuple[Any, ...]) -> str:
    if table == "allocations":
        consumer, provider, name = key
        return f"{value[0]} {name} of {provider} for {consumer}"
    if table == "inventories":
        return f"{value[0]} {key[1]} of {key[0]}"
    if table == "resource_providers":
        return f"{value[1]} ({key[0]})"
    return " of ".join(reversed(key))


def _before(table: str, was: tuple[Any, ...], now: tuple[Any, ...]) -> str:
    """What it was, where that is short."""
    if table == "allocations":
        return f" (was {was[0]})"
    names: Sequence[str] = {
        "resource_providers": ("id", "name", "generation", "parent"),
        "consumers": ("project", "user", "type", "generation"),
        "inventories": INVENTORY,
    }[table]
    return f" ({', '.join(_different(names, was, now))})"


def _different(names: Sequence[str], was: tuple[Any, ...], now: tuple[Any, ...]) -> Iterator[str]:
    for name, old, new in zip(names, was, now, strict=True):
        if old != new:
            yield f"{name} {old} -> {new}"
