"""Writes the changes since an adoption into the tables of OpenStack Placement.

Unchanged rows keep their ids and times. New resource providers get the ids that they have in our tables,
because the comparison of contents includes these ids. Each other new row gets the next free id of its table.

Only :mod:`placement_extras.migration.abandonment` uses this module. The module is separate, because the other
one only decides about tables, and this one about rows.
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
from placement_extras.migration.content import (
    BATCH_ROWS,
    INVENTORY_COLUMNS,
    ContentKey,
    PortableContent,
    TableChange,
    compare_content,
)
from placement_extras.migration.stock_database import StockContent, canonical_uuid

# OpenStack Placement gives custom resource classes ids from this number on
_FIRST_CUSTOM_CLASS: Final = 10_000
RowValues = dict[str, Any]
"""The values of a row, or the values by which rows are selected, by the name of the column."""


def carry_back(source: StockContent, before: PortableContent, after: PortableContent) -> None:
    """Change the tables of OpenStack Placement from the content ``before`` to the content ``after``.

    :param after: the result of :func:`.expressible_content`.
    :raises Conflict: a table refuses a row.
    """
    # the uuids of these providers have other ids than before: each provider was removed, and created again
    # with the same uuid
    replaced = {
        key
        for key, value in before.by_table["resource_providers"].items()
        if after.by_table["resource_providers"].get(key, value)[0] != value[0]
    }
    changes = compare_content(_without_providers(before, {uuid for (uuid,) in replaced}), after)
    _StockWriter(source, before, after, changes, replaced).run()


def _without_providers(content: PortableContent, providers: set[str]) -> PortableContent:
    """Return the content without these resource providers and without the items that refer to them."""
    # by table, the position of the provider's uuid in the key of an item
    at = {
        "resource_providers": 0,
        "inventories": 0,
        "provider_traits": 0,
        "provider_aggregates": 0,
        "allocations": 1,
    }
    kept = {
        table: {key: value for key, value in content.by_table[table].items() if key[place] not in providers}
        for table, place in at.items()
    }
    return replace(content, by_table={**content.by_table, **kept})


class _StockWriter:
    """Writes the changes, in an order that violates neither foreign keys nor unique names."""

    def __init__(
        self,
        source: StockContent,
        before: PortableContent,
        after: PortableContent,
        changes: Mapping[str, TableChange],
        replaced: set[ContentKey],
    ) -> None:
        self._source = source
        self._conn = source.conn
        self._tables = source.tables
        self._after = after
        self._changes = changes
        self._replaced = replaced
        # the ids of providers by uuid, before the changes (_was) and after them (_is)
        self._was = {uuid: value[0] for (uuid,), value in before.by_table["resource_providers"].items()}
        self._is = {uuid: value[0] for (uuid,), value in after.by_table["resource_providers"].items()}
        self._classes = {name: row_id for row_id, name in source.classes.items()}
        self._traits = {name: row_id for row_id, name in source.traits.items()}
        # OpenStack Placement stores times in UTC, without a time zone and without fractions of a second
        self._now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
        stored = self._conn.execute(sa.select(self._tables.consumers.c.uuid)).scalars()
        held = self._conn.execute(sa.select(self._tables.allocations.c.consumer_id).distinct()).scalars()
        # the spelling of each consumer's uuid in the old tables, which can have capitals or no dashes
        self._spelled = {canonical_uuid(each): each for each in (*stored, *held)}

    def run(self) -> None:
        """Remove, change and add rows; add a row before, and remove it after, the rows that refer to it."""
        for table in self._tables.metadata.sorted_tables:
            if "id" in table.c and (self._source.has_types or table is not self._tables.types):
                # if the database was converted from another kind, the sequence can be below the highest id
                advance_sequence(self._conn, table)
        self._remove_rows()
        self._write_providers()
        self._write_parents()
        self._write_names()
        self._write_inventories()
        self._write_pairs()
        self._write_consumers()
        self._write_allocations()
        # removed names are deleted last, because inventories and traits of providers refer to them until here
        self._remove_names()
        # providers are inserted with explicit ids, and the sequence does not advance for such ids
        advance_sequence(self._conn, self._tables.providers)

    def _table_change(self, table: str) -> TableChange:
        return self._changes.get(table, TableChange((), (), ()))

    def _remove_rows(self) -> None:
        t = self._tables
        held, offered = self._table_change("allocations"), self._table_change("inventories")
        self._delete(
            t.allocations,
            (
                {
                    "consumer_id": self._spelled.get(consumer, consumer),
                    **self._slot_columns(self._was, provider, name),
                }
                for consumer, provider, name in (*held.gone, *held.changed)
            ),
        )
        self._delete(t.inventories, (self._slot_columns(self._was, *key) for key in offered.gone))
        gone = [
            self._was[uuid] for (uuid,) in (*self._table_change("resource_providers").gone, *self._replaced)
        ]
        for table in (t.allocations, t.inventories, t.provider_traits, t.provider_aggregates):
            self._delete(table, ({"resource_provider_id": row_id} for row_id in gone))
        self._delete(
            t.provider_traits,
            (
                {"resource_provider_id": self._was[provider], "trait_id": self._traits[name]}
                for provider, name in self._table_change("provider_traits").gone
            ),
        )
        aggregates = self._aggregate_ids()
        self._delete(
            t.provider_aggregates,
            (
                {"resource_provider_id": self._was[provider], "aggregate_id": row_id}
                for provider, aggregate in self._table_change("provider_aggregates").gone
                for row_id in aggregates[aggregate]
            ),
        )
        self._delete(
            t.consumers,
            ({"uuid": self._spelled.get(key[0], key[0])} for key in self._table_change("consumers").gone),
        )
        # removed providers refer to each other, so these references are cleared before the rows are deleted
        self._update(
            t.providers, ({"id": row_id} for row_id in gone), root_provider_id=None, parent_provider_id=None
        )
        # remaining providers can also refer to a removed one; _write_parents() sets their new references
        # later
        for column in (t.providers.c.root_provider_id, t.providers.c.parent_provider_id):
            for row_id in gone:
                self._conn.execute(sa.update(t.providers).where(column == row_id).values({column: None}))
        self._delete(t.providers, ({"id": row_id} for row_id in gone))

    def _write_providers(self) -> None:
        table, change = self._tables.providers, self._table_change("resource_providers")
        values = self._after.by_table["resource_providers"]
        changed = [key for key in change.changed if key not in self._replaced]
        # names are unique, and two providers can have exchanged their names, so all names are cleared before
        # the first new name is written
        self._update(table, ({"id": values[key][0]} for key in changed), name=None)
        rows = ((key, values[key], self._change_time("resource_providers", key)) for key in change.new)
        self._insert(
            table,
            (
                {
                    "id": row_id,
                    "uuid": key[0],
                    "name": name,
                    "generation": generation,
                    **self._creation_times(time),
                }
                for key, (row_id, name, generation, _), time in rows
            ),
        )
        for key in changed:
            row_id, name, generation, _ = values[key]
            time = self._change_time("resource_providers", key)
            self._update(table, [{"id": row_id}], name=name, generation=generation, updated_at=time)

    def _write_parents(self) -> None:
        """Write parents and roots that have changed. A new parent can change the roots of all descendants."""
        table = self._tables.providers
        parents = {
            row_id: None if parent is None else self._is[parent]
            for row_id, _, _, parent in self._after.by_table["resource_providers"].values()
        }
        roots = find_roots(parents).of
        stored = sa.select(table.c.id, table.c.root_provider_id, table.c.parent_provider_id)
        for row_id, root, parent in self._conn.execute(stored).all():
            wanted = (roots[row_id] or row_id, parents[row_id])
            if (root, parent) != wanted:
                self._update(
                    table, [{"id": row_id}], root_provider_id=wanted[0], parent_provider_id=wanted[1]
                )

    def _write_names(self) -> None:
        t = self._tables
        # the old schema does not generate the ids of resource classes, so the next ids are chosen here
        last = max(_FIRST_CUSTOM_CLASS - 1, *self._classes.values())
        used = {name for _, name in self._table_change("inventories").new}
        missing = {
            name for (name,) in self._table_change("resource_classes").new
        } | used - self._classes.keys()
        for row_id, name in enumerate(sorted(missing), last + 1):
            self._classes[name] = row_id
            self._insert(t.classes, [{"id": row_id, "name": name, **self._creation_times(self._now)}])
        used = {name for _, name in self._table_change("provider_traits").new}
        made = {name for (name,) in self._table_change("traits").new}
        self._traits |= self._ids_of(t.traits, t.traits.c.name, made | used - self._traits.keys())

    def _remove_names(self) -> None:
        t = self._tables
        for table, name in ((t.classes, "resource_classes"), (t.traits, "traits")):
            self._delete(table, ({"name": key[0]} for key in self._table_change(name).gone))

    def _write_inventories(self) -> None:
        table, change = self._tables.inventories, self._table_change("inventories")
        values = self._after.by_table["inventories"]

        def inventory_units(key: ContentKey) -> RowValues:
            return dict(zip(INVENTORY_COLUMNS, values[key], strict=True))

        for key in change.changed:
            where, time = self._slot_columns(self._is, *key), self._change_time("inventories", key)
            self._update(table, [where], **inventory_units(key), updated_at=time)
        self._insert(
            table,
            (
                {
                    **self._slot_columns(self._is, *key),
                    **inventory_units(key),
                    **self._creation_times(self._change_time("inventories", key)),
                }
                for key in change.new
            ),
        )

    def _write_pairs(self) -> None:
        t, made = self._tables, self._creation_times(self._now)
        self._insert(
            t.provider_traits,
            (
                {"resource_provider_id": self._is[provider], "trait_id": self._traits[name], **made}
                for provider, name in self._table_change("provider_traits").new
            ),
        )
        new = self._table_change("provider_aggregates").new
        known = self._aggregate_ids()
        missing = sorted({aggregate for _, aggregate in new} - known.keys())
        # if several rows have the same uuid in different spellings, the oldest row is used
        by_name = {name: min(ids) for name, ids in known.items()}
        by_name |= self._ids_of(t.aggregates, t.aggregates.c.uuid, missing)
        self._insert(
            t.provider_aggregates,
            (
                {"resource_provider_id": self._is[provider], "aggregate_id": by_name[aggregate], **made}
                for provider, aggregate in new
            ),
        )

    def _aggregate_ids(self) -> dict[str, list[int]]:
        """Return ids of aggregates by uuid. Several rows can have the same uuid in different spellings."""
        column = self._tables.aggregates.c
        by_name: dict[str, list[int]] = {}
        for row_id, name in self._conn.execute(
            sa.select(column.id, column.uuid).where(column.uuid.is_not(None))
        ):
            by_name.setdefault(canonical_uuid(name), []).append(row_id)
        return by_name

    def _write_consumers(self) -> None:
        t, change = self._tables, self._table_change("consumers")
        keys = (*change.new, *change.changed)
        values = self._after.by_table["consumers"]
        projects = self._ids_of(t.projects, t.projects.c.external_id, {values[key][0] for key in keys})
        users = self._ids_of(t.users, t.users.c.external_id, {values[key][1] for key in keys})
        kinds = {values[key][2] for key in keys} - {None}
        types = self._ids_of(t.types, t.types.c.name, kinds) if kinds else {}
        # the content has no consumers without allocations, but such a consumer can still have a row
        stored = set(self._conn.execute(sa.select(t.consumers.c.uuid)).scalars())
        rows: list[RowValues] = []
        for key in keys:
            project, user, kind, generation = values[key]
            row = {"project_id": projects[project], "user_id": users[user], "generation": generation}
            if self._source.has_types:
                row["consumer_type_id"] = None if kind is None else types[kind]
            time = self._change_time("consumers", key)
            spelled = self._spelled.get(key[0], key[0])
            if spelled in stored:
                self._update(t.consumers, [{"uuid": spelled}], **row, updated_at=time)
            else:
                rows.append({"uuid": spelled, **row, **self._creation_times(time)})
        self._insert(t.consumers, rows)

    def _write_allocations(self) -> None:
        change, values = self._table_change("allocations"), self._after.by_table["allocations"]
        self._insert(
            self._tables.allocations,
            (
                {
                    "consumer_id": self._spelled.get(consumer, consumer),
                    **self._slot_columns(self._is, provider, name),
                    "used": values[consumer, provider, name][0],
                    **self._creation_times(self._change_time("allocations", (consumer, provider, name))),
                }
                for consumer, provider, name in (*change.new, *change.changed)
            ),
        )

    def _slot_columns(self, ids: Mapping[str, int], provider: str, name: str) -> RowValues:
        """Return the columns by which a row refers to a provider, with one of these ids, and to a class."""
        return {"resource_provider_id": ids[provider], "resource_class_id": self._classes[name]}

    def _ids_of(self, table: sa.Table, column: sa.Column[Any], names: Iterable[str]) -> dict[str, int]:
        """Return the ids of these names in a table of names; insert missing names."""
        wanted = set(names)
        query = sa.select(column, table.c.id)
        # names are compared in Python, because the usual collations of MySQL treat names in other capitals as
        # equal
        present = {name: row_id for name, row_id in self._conn.execute(query) if name in wanted}
        missing = sorted(wanted - present.keys())
        if not missing:
            return present
        self._insert(table, ({column.name: name, **self._creation_times(self._now)} for name in missing))
        # the ids are read again, because the database has chosen them
        return {name: row_id for name, row_id in self._conn.execute(query) if name in wanted}

    def _change_time(self, table: str, key: ContentKey) -> datetime:
        seconds = self._after.times[table].get(key)
        if seconds is None:
            return self._now
        return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None, microsecond=0)

    def _creation_times(self, time: datetime) -> RowValues:
        return {"created_at": time, "updated_at": time}

    def _delete(self, table: sa.Table, rows: Iterable[RowValues]) -> None:
        for chosen in _row_batches(rows):
            self._conn.execute(
                sa.delete(table).where(*_key_conditions(table, chosen[0])), _bound_keys(chosen)
            )

    def _update(self, table: sa.Table, rows: Iterable[RowValues], **values: Any) -> None:
        for chosen in _row_batches(rows):
            statement = sa.update(table).where(*_key_conditions(table, chosen[0])).values(values)
            with _refusal_named(table):
                self._conn.execute(statement, _bound_keys(chosen))

    def _insert(self, table: sa.Table, rows: Iterable[RowValues]) -> None:
        for chosen in _row_batches(rows):
            with _refusal_named(table):
                self._conn.execute(sa.insert(table), chosen)


def _key_conditions(table: sa.Table, row: RowValues) -> Iterator[sa.ColumnElement[bool]]:
    # SQLAlchemy uses the names of columns as parameters for the values of SET, so other names are needed here
    return (table.c[name] == sa.bindparam(f"the_{name}") for name in row)


def _bound_keys(rows: Sequence[RowValues]) -> list[RowValues]:
    """Return the parameters of :func:`_key_conditions` for each row."""
    return [{f"the_{name}": value for name, value in row.items()} for row in rows]


def _row_batches(rows: Iterable[RowValues]) -> Iterator[Sequence[RowValues]]:
    listed = list(rows)
    for start in range(0, len(listed), BATCH_ROWS):
        yield listed[start : start + BATCH_ROWS]


@contextmanager
def _refusal_named(table: sa.Table) -> Iterator[None]:
    """Convert an error of the database within this context to a Conflict that has the name of the table."""
    try:
        yield
    except (exc.IntegrityError, exc.DataError) as error:
        raise Conflict(
            f"The table {table.name} does not take a row that is to be carried back:"
            f" {errors.database_words(error)}."
            " Nothing is changed. Change that row through this service (it may repeat a name in other"
            " capitals), then try again; '--discard' drops all changes since the adoption."
        ) from error
