"""Writing what has changed since an adoption into the tables of OpenStack Placement.

Rows that did not change stay as they are, with their ids and times. New resource providers keep the ids they
have with us; everything else is known to clients by name or uuid, and takes the id that comes next.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc

from placement.db import errors
from placement.exceptions import Conflict
from placement.maintenance.audit import find_roots
from placement.maintenance.heal import advance_sequence
from placement_extras.migration.content import BATCH, INVENTORY, Key, PortableContent, TableChange, compare
from placement_extras.migration.stock_database import StockContent, canonical

_FIRST_CUSTOM_CLASS: Final = 10_000  # below are the standard ones
Row = dict[str, Any]


def carry_back(source: StockContent, before: PortableContent, after: PortableContent) -> None:
    """Make what the source holds, which is ``before``, what is :func:`.expressible` of ours.

    :raises Conflict: its tables refuse a row.
    """
    replaced = {
        key
        for key, value in before.things["resource_providers"].items()
        if after.things["resource_providers"].get(key, value)[0] != value[0]
    }
    changes = compare(_without(before, {uuid for (uuid,) in replaced}), after)
    _StockWriter(source, before, after, changes, replaced).run()


def _without(content: PortableContent, providers: set[str]) -> PortableContent:
    """The content without resource providers that have other ids now, and what belongs to them."""
    at = {
        "resource_providers": 0,
        "inventories": 0,
        "provider_traits": 0,
        "provider_aggregates": 0,
        "allocations": 1,
    }
    kept = {
        table: {key: value for key, value in content.things[table].items() if key[place] not in providers}
        for table, place in at.items()
    }
    return replace(content, things={**content.things, **kept})


class _StockWriter:
    """The statements, in an order that foreign keys and unique names allow."""

    def __init__(
        self,
        source: StockContent,
        before: PortableContent,
        after: PortableContent,
        changes: Mapping[str, TableChange],
        replaced: set[Key],
    ) -> None:
        self._source = source
        self._conn = source.conn
        self._tables = source.tables
        self._after = after
        self._changes = changes
        self._replaced = replaced
        self._was = {uuid: value[0] for (uuid,), value in before.things["resource_providers"].items()}
        self._is = {uuid: value[0] for (uuid,), value in after.things["resource_providers"].items()}
        self._classes = {name: row_id for row_id, name in source.classes.items()}
        self._traits = {name: row_id for row_id, name in source.traits.items()}
        self._now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
        stored = self._conn.execute(sa.select(self._tables.consumers.c.uuid)).scalars()
        held = self._conn.execute(sa.select(self._tables.allocations.c.consumer_id).distinct()).scalars()
        #: how the source spells uuids of consumers that it knows
        self._spelled = {canonical(each): each for each in (*stored, *held)}

    def run(self) -> None:
        """All of it."""
        for table in self._tables.metadata.sorted_tables:
            if "id" in table.c and (self._source.has_types or table is not self._tables.types):
                advance_sequence(self._conn, table)  # a database that was converted may not have done so
        self._remove()
        self._providers()
        self._trees()
        self._names()
        self._inventories()
        self._pairs()
        self._consumers()
        self._allocations()
        self._remove_names()
        advance_sequence(self._conn, self._tables.providers)

    def _change(self, table: str) -> TableChange:
        return self._changes.get(table, TableChange((), (), ()))

    def _remove(self) -> None:
        t = self._tables
        held, offered = self._change("allocations"), self._change("inventories")
        self._delete(
            t.allocations,
            (
                {
                    "consumer_id": self._spelled.get(consumer, consumer),
                    "resource_provider_id": self._was[provider],
                    "resource_class_id": self._classes[name],
                }
                for consumer, provider, name in (*held.gone, *held.changed)
            ),
        )
        self._delete(
            t.inventories,
            (
                {"resource_provider_id": self._was[provider], "resource_class_id": self._classes[name]}
                for provider, name in offered.gone
            ),
        )
        gone = [self._was[uuid] for (uuid,) in (*self._change("resource_providers").gone, *self._replaced)]
        for table in (t.allocations, t.inventories, t.provider_traits, t.provider_aggregates):
            self._delete(table, ({"resource_provider_id": row_id} for row_id in gone))
        self._delete(
            t.provider_traits,
            (
                {"resource_provider_id": self._was[provider], "trait_id": self._traits[name]}
                for provider, name in self._change("provider_traits").gone
            ),
        )
        aggregates = self._aggregates()
        self._delete(
            t.provider_aggregates,
            (
                {"resource_provider_id": self._was[provider], "aggregate_id": row_id}
                for provider, aggregate in self._change("provider_aggregates").gone
                for row_id in aggregates[aggregate]
            ),
        )
        self._delete(
            t.consumers,
            ({"uuid": self._spelled.get(key[0], key[0])} for key in self._change("consumers").gone),
        )
        # providers refer to each other
        self._update(
            t.providers, ({"id": row_id} for row_id in gone), root_provider_id=None, parent_provider_id=None
        )
        for column in (t.providers.c.root_provider_id, t.providers.c.parent_provider_id):
            for row_id in gone:
                self._conn.execute(sa.update(t.providers).where(column == row_id).values({column: None}))
        self._delete(t.providers, ({"id": row_id} for row_id in gone))

    def _providers(self) -> None:
        table, change = self._tables.providers, self._change("resource_providers")
        values = self._after.things["resource_providers"]
        changed = [key for key in change.changed if key not in self._replaced]
        # names may have moved from one to another
        self._update(table, ({"id": values[key][0]} for key in changed), name=None)
        rows = ((key, values[key], self._time("resource_providers", key)) for key in change.new)
        self._insert(
            table,
            (
                {"id": row_id, "uuid": key[0], "name": name, "generation": generation, **self._made(time)}
                for key, (row_id, name, generation, _), time in rows
            ),
        )
        for key in changed:
            row_id, name, generation, _ = values[key]
            time = self._time("resource_providers", key)
            self._update(table, [{"id": row_id}], name=name, generation=generation, updated_at=time)

    def _trees(self) -> None:
        """Parents and roots, wherever they are not what they should be."""
        table = self._tables.providers
        parents = {
            row_id: None if parent is None else self._is[parent]
            for row_id, _, _, parent in self._after.things["resource_providers"].values()
        }
        roots = find_roots(parents).of
        stored = sa.select(table.c.id, table.c.root_provider_id, table.c.parent_provider_id)
        for row_id, root, parent in self._conn.execute(stored).all():
            wanted = (roots[row_id] or row_id, parents[row_id])
            if (root, parent) != wanted:
                self._update(
                    table, [{"id": row_id}], root_provider_id=wanted[0], parent_provider_id=wanted[1]
                )

    def _names(self) -> None:
        t = self._tables
        last = max(_FIRST_CUSTOM_CLASS - 1, *self._classes.values())
        used = {name for _, name in self._change("inventories").new}
        missing = {name for (name,) in self._change("resource_classes").new} | used - self._classes.keys()
        for row_id, name in enumerate(sorted(missing), last + 1):
            self._classes[name] = row_id
            self._insert(t.classes, [{"id": row_id, "name": name, **self._made(self._now)}])
        used = {name for _, name in self._change("provider_traits").new}
        made = {name for (name,) in self._change("traits").new}
        self._traits |= self._ids_of(t.traits, t.traits.c.name, made | used - self._traits.keys())

    def _remove_names(self) -> None:
        t = self._tables
        for table, name in ((t.classes, "resource_classes"), (t.traits, "traits")):
            self._delete(table, ({"name": key[0]} for key in self._change(name).gone))

    def _inventories(self) -> None:
        table, change = self._tables.inventories, self._change("inventories")
        values = self._after.things["inventories"]

        def units(key: Key) -> Row:
            return dict(zip(INVENTORY, values[key], strict=True))

        for key in change.changed:
            where = {"resource_provider_id": self._is[key[0]], "resource_class_id": self._classes[key[1]]}
            self._update(table, [where], **units(key), updated_at=self._time("inventories", key))
        self._insert(
            table,
            (
                {
                    "resource_provider_id": self._is[key[0]],
                    "resource_class_id": self._classes[key[1]],
                    **units(key),
                    **self._made(self._time("inventories", key)),
                }
                for key in change.new
            ),
        )

    def _pairs(self) -> None:
        t, made = self._tables, self._made(self._now)
        self._insert(
            t.provider_traits,
            (
                {"resource_provider_id": self._is[provider], "trait_id": self._traits[name], **made}
                for provider, name in self._change("provider_traits").new
            ),
        )
        new = self._change("provider_aggregates").new
        known = self._aggregates()
        missing = sorted({aggregate for _, aggregate in new} - known.keys())
        by_name = {name: min(ids) for name, ids in known.items()}
        by_name |= self._ids_of(t.aggregates, t.aggregates.c.uuid, missing)
        self._insert(
            t.provider_aggregates,
            (
                {"resource_provider_id": self._is[provider], "aggregate_id": by_name[aggregate], **made}
                for provider, aggregate in new
            ),
        )

    def _aggregates(self) -> dict[str, list[int]]:
        """The ids of each aggregate, which may be stored in several spellings."""
        column = self._tables.aggregates.c
        by_name: dict[str, list[int]] = {}
        for row_id, name in self._conn.execute(
            sa.select(column.id, column.uuid).where(column.uuid.is_not(None))
        ):
            by_name.setdefault(canonical(name), []).append(row_id)
        return by_name

    def _consumers(self) -> None:
        t, change = self._tables, self._change("consumers")
        keys = (*change.new, *change.changed)
        values = self._after.things["consumers"]
        projects = self._ids_of(t.projects, t.projects.c.external_id, {values[key][0] for key in keys})
        users = self._ids_of(t.users, t.users.c.external_id, {values[key][1] for key in keys})
        kinds = {values[key][2] for key in keys} - {None}
        types = self._ids_of(t.types, t.types.c.name, kinds) if kinds else {}
        stored = set(self._conn.execute(sa.select(t.consumers.c.uuid)).scalars())
        rows: list[Row] = []
        for key in keys:
            project, user, kind, generation = values[key]
            row = {"project_id": projects[project], "user_id": users[user], "generation": generation}
            if self._source.has_types:
                row["consumer_type_id"] = None if kind is None else types[kind]
            time = self._time("consumers", key)
            spelled = self._spelled.get(key[0], key[0])
            if spelled in stored:
                self._update(t.consumers, [{"uuid": spelled}], **row, updated_at=time)
            else:
                rows.append({"uuid": spelled, **row, **self._made(time)})
        self._insert(t.consumers, rows)

    def _allocations(self) -> None:
        change, values = self._change("allocations"), self._after.things["allocations"]
        self._insert(
            self._tables.allocations,
            (
                {
                    "consumer_id": self._spelled.get(consumer, consumer),
                    "resource_provider_id": self._is[provider],
                    "resource_class_id": self._classes[name],
                    "used": values[consumer, provider, name][0],
                    **self._made(self._time("allocations", (consumer, provider, name))),
                }
                for consumer, provider, name in (*change.new, *change.changed)
            ),
        )

    def _ids_of(self, table: sa.Table, column: sa.Column[Any], names: Iterable[str]) -> dict[str, int]:
        """The ids of names, which are made where they are not there."""
        wanted = set(names)
        query = sa.select(column, table.c.id)
        present = {name: row_id for name, row_id in self._conn.execute(query) if name in wanted}
        missing = sorted(wanted - present.keys())
        if not missing:
            return present
        self._insert(table, ({column.name: name, **self._made(self._now)} for name in missing))
        return {name: row_id for name, row_id in self._conn.execute(query) if name in wanted}

    def _time(self, table: str, key: Key) -> datetime:
        seconds = self._after.times[table].get(key)
        if seconds is None:
            return self._now
        return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None, microsecond=0)

    def _made(self, time: datetime) -> Row:
        return {"created_at": time, "updated_at": time}

    def _delete(self, table: sa.Table, rows: Iterable[Row]) -> None:
        for chosen in _batches(rows):
            statement = sa.delete(table).where(
                *(table.c[name] == sa.bindparam(f"the_{name}") for name in chosen[0])
            )
            self._conn.execute(
                statement, [{f"the_{name}": value for name, value in row.items()} for row in chosen]
            )

    def _update(self, table: sa.Table, rows: Iterable[Row], **values: Any) -> None:
        for chosen in _batches(rows):
            statement = (
                sa.update(table)
                .where(*(table.c[name] == sa.bindparam(f"the_{name}") for name in chosen[0]))
                .values(values)
            )
            with _naming(table):
                self._conn.execute(
                    statement, [{f"the_{name}": value for name, value in row.items()} for row in chosen]
                )

    def _insert(self, table: sa.Table, rows: Iterable[Row]) -> None:
        for chosen in _batches(rows):
            with _naming(table):
                self._conn.execute(sa.insert(table), chosen)


def _batches(rows: Iterable[Row]) -> Iterator[Sequence[Row]]:
    listed = list(rows)
    for start in range(0, len(listed), BATCH):
        yield listed[start : start + BATCH]


@contextmanager
def _naming(table: sa.Table) -> Iterator[None]:
    """Say which table refuses a row.

    :raises Conflict: it does.
    """
    try:
        yield
    except (exc.IntegrityError, exc.DataError) as error:
        raise Conflict(
            f"The table {table.name} does not take what is to be carried back: {errors.said(error)}."
            " Nothing is changed. Change that (a name that is there in other capitals, say) through this"
            " service, then try again; '--discard' gives up everything that was written since."
        ) from error
