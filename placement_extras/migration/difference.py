"""What of the content of two databases is not the same, thing by thing, by names and uuids."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from placement_extras.migration.content import DatabaseContent

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
