"""The database of an OpenStack Placement service: its tables, read as rows of ours.

The tables are those of the releases from Stein to 2026.1. Consumer types came with Xena and may be missing.
After an adoption the tables stand beside ours under names with a prefix.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import os_resource_classes
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import URL, make_url

from placement.db import errors
from placement.exceptions import InvalidRequest, Unavailable
from placement.store.consumers import ConsumerOwnership
from placement_extras.migration.content import CONSUMERS, DatabaseContent, RowTally


class StockTables:
    """The tables of OpenStack Placement, with a prefix before each name."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self.metadata = sa.MetaData()
        self.providers = self._add_table(
            "resource_providers",
            uuid=sa.String,
            name=sa.String,
            generation=sa.Integer,
            root_provider_id=sa.Integer,
            parent_provider_id=sa.Integer,
        )
        self.inventories = self._add_table(
            "inventories",
            resource_provider_id=sa.Integer,
            resource_class_id=sa.Integer,
            total=sa.Integer,
            reserved=sa.Integer,
            min_unit=sa.Integer,
            max_unit=sa.Integer,
            step_size=sa.Integer,
            allocation_ratio=sa.Float,
        )
        self.allocations = self._add_table(
            "allocations",
            resource_provider_id=sa.Integer,
            consumer_id=sa.String,
            resource_class_id=sa.Integer,
            used=sa.Integer,
        )
        self.consumers = self._add_table(
            "consumers",
            uuid=sa.String,
            project_id=sa.Integer,
            user_id=sa.Integer,
            generation=sa.Integer,
            consumer_type_id=sa.Integer,
        )
        self.projects = self._add_table("projects", external_id=sa.String)
        self.users = self._add_table("users", external_id=sa.String)
        self.types = self._add_table("consumer_types", name=sa.String)
        self.classes = self._add_table("resource_classes", name=sa.String)
        self.traits = self._add_table("traits", name=sa.String)
        self.aggregates = self._add_table("placement_aggregates", uuid=sa.String)
        self.provider_traits = self._add_pairs("resource_provider_traits", "trait_id")
        self.provider_aggregates = self._add_pairs("resource_provider_aggregates", "aggregate_id")

    def _add_table(self, name: str, /, **columns: Any) -> sa.Table:
        # ``name`` is positional only, as a column is called so, too
        typed = {"id": sa.Integer, **columns, "created_at": sa.DateTime, "updated_at": sa.DateTime}
        listed = (sa.Column(column, kind) for column, kind in typed.items())
        return sa.Table(self._prefix + name, self.metadata, *listed)

    def _add_pairs(self, name: str, column: str) -> sa.Table:
        """Add a table of pairs with resource providers, which has no id."""
        return sa.Table(
            self._prefix + name,
            self.metadata,
            sa.Column("resource_provider_id", sa.Integer),
            sa.Column(column, sa.Integer),
            sa.Column("created_at", sa.DateTime),
            sa.Column("updated_at", sa.DateTime),
        )


@dataclass(frozen=True)
class StockContent(DatabaseContent):
    """A whole database of OpenStack Placement, read in one snapshot.

    :param unknown_consumers: free ids by uuid, for consumers that have allocations but no row.
    :param leftovers: descriptions of rows that refer to missing rows; no query yields these rows.
    :param has_types: whether the schema has consumer types.
    """

    tables: StockTables
    owner: ConsumerOwnership
    unknown_consumers: dict[str, int]
    leftovers: tuple[str, ...]
    has_types: bool

    def _finish_row(self, row: dict[str, Any]) -> dict[str, Any]:
        for column in ("uuid", "aggregate"):
            if column in row:
                row[column] = canonical_uuid(row[column])
        if "consumer_uuid" in row:
            consumer = row.pop("consumer_uuid")
            # the outer join found no row of the consumer
            if row["consumer_id"] is None:
                row["consumer_id"] = self.unknown_consumers[consumer]
        if "used" in row:
            row["used"] = int(row["used"])  # a sum of MySQL is a decimal
        # The source has times of UTC without a zone.
        if isinstance(row.get("updated_at"), datetime):
            row["updated_at"] = row["updated_at"].replace(tzinfo=UTC).timestamp()
        return row

    def rows(self, table: str) -> Iterator[dict[str, Any]]:
        """Stream the rows of one of our tables; consumers without a row come last."""
        yield from super().rows(table)
        if table == "consumers":
            for consumer, consumer_id in self.unknown_consumers.items():
                yield {
                    "id": consumer_id,
                    "uuid": canonical_uuid(consumer),
                    "project_id": self.owner.project_id,
                    "user_id": self.owner.user_id,
                    "consumer_type": self.owner.consumer_type,
                    "generation": 0,
                    "updated_at": None,
                }

    def row_tallies(self) -> dict[str, RowTally]:
        """Count and sum rows; consumers without a row count, too."""
        found = super().row_tallies()
        listed = found[CONSUMERS]
        found[CONSUMERS] = RowTally(listed.rows + len(self.unknown_consumers), listed.total)
        return found

    def provider_parents(self) -> dict[int, int | None]:
        """Return the id of the parent by the id of the provider; None for a root."""
        p = self.tables.providers
        query = sa.select(p.c.id, p.c.parent_provider_id)
        # mypy does not take rows for the pairs that dict() needs
        return {provider_id: parent for provider_id, parent in self.conn.execute(query)}  # noqa: C416

    def stored_roots(self) -> dict[int, int | None]:
        """Return the stored id of the root by the id of the provider; None where it was never set."""
        p = self.tables.providers
        query = sa.select(p.c.id, p.c.root_provider_id)
        # mypy does not take rows for the pairs that dict() needs
        return {provider_id: root for provider_id, root in self.conn.execute(query)}  # noqa: C416

    def ownerless_consumers(self) -> list[str]:
        """Return uuids of consumers with allocations that refer to a missing project or user."""
        t = self.tables
        held = self.queries["consumers"].subquery()
        query = (
            sa.select(held.c.uuid)
            .join(t.consumers, t.consumers.c.id == held.c.id)
            # the content's query gives these consumers the incomplete owner, so it cannot tell them from
            # others
            .outerjoin(t.projects, t.projects.c.id == t.consumers.c.project_id)
            .outerjoin(t.users, t.users.c.id == t.consumers.c.user_id)
            .where(sa.or_(t.projects.c.id.is_(None), t.users.c.id.is_(None)))
            .order_by(held.c.id)
        )
        return list(self.conn.execute(query).scalars())

    def provider_names(self, ids: set[int]) -> list[str]:
        """Return names and uuids of providers, for messages."""
        p = self.tables.providers
        query = sa.select(p.c.id, p.c.name, p.c.uuid).order_by(p.c.id)
        return [
            f"{name} ({uuid})" for provider_id, name, uuid in self.conn.execute(query) if provider_id in ids
        ]


def canonical_uuid(text: str) -> str:
    """Return a uuid in the spelling of the API; the source keeps the spelling of clients for aggregates.

    :raises InvalidRequest: the text is not a uuid.
    """
    try:
        return str(uuid.UUID(text))
    except ValueError:
        # The ValueError says no more than this.
        raise InvalidRequest(f"The source database holds {text!r} where a uuid should be.") from None


@contextmanager
def open_source(url: str, owner: ConsumerOwnership, prefix: str = "") -> Iterator[StockContent]:
    """Open the database of an SQLAlchemy URL in one read-only snapshot.

    :param owner: project and user of consumers that the source has no record of.
    :param prefix: prefix of the names of the tables.
    :raises InvalidRequest: the URL cannot be used, or leads to no database of OpenStack Placement.
    :raises Unavailable: the database does not answer.
    """
    engine = _source_engine(url)
    try:
        with engine.connect() as conn, conn.begin():
            yield read_stock(conn, owner, prefix)
    except (exc.OperationalError, exc.InterfaceError, exc.ProgrammingError, exc.InternalError) as error:
        raise Unavailable(f"The source database cannot be read: {errors.explain_error(error)}") from error
    finally:
        engine.dispose()


def _source_engine(url: str) -> sa.Engine:
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite":
            return _sqlite_engine(parsed)
        # all queries see one snapshot, even if the old service still writes
        return sa.create_engine(parsed, isolation_level="REPEATABLE READ")
    except exc.ArgumentError as error:  # no URL, or an unknown dialect
        raise InvalidRequest(f"The source database's URL cannot be used: {error}") from error
    except ImportError as error:
        reason = errors.missing_driver(parsed, error)
        raise InvalidRequest(f"The source database's URL cannot be used: {reason}") from error


def _sqlite_engine(url: URL) -> sa.Engine:
    # SQLite would create a missing file
    if not url.database or not Path(url.database).is_file():
        raise InvalidRequest(f"There is no SQLite database {url.database}.")
    engine = sa.create_engine(url)

    @sa.event.listens_for(engine, "connect")
    def _set_read_only(connection: Any, record: object) -> None:
        # the driver begins no transactions by itself; the event below does, so that reads share one snapshot
        connection.isolation_level = None
        connection.execute("PRAGMA query_only = ON")

    @sa.event.listens_for(engine, "begin")
    def _begin_snapshot(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def read_stock(conn: sa.Connection, owner: ConsumerOwnership, prefix: str = "") -> StockContent:
    """Return the content behind a connection; its transaction must stay one snapshot while it is read.

    :param prefix: prefix of the names of the tables, see :class:`StockTables`.
    :raises InvalidRequest: a table or a column of OpenStack Placement is missing.
    """
    t = StockTables(prefix)
    has_types = _check_schema(conn, t)
    # before Xena standard classes were in no table: their ids are their positions in the list
    classes = dict(enumerate(os_resource_classes.STANDARDS))
    classes |= _names_by_id(conn, t.classes)
    held = _held_amounts(t, set(classes))
    return StockContent(
        conn=conn,
        tables=t,
        classes=classes,
        traits=_names_by_id(conn, t.traits),
        queries=_content_queries(t, set(classes), held, has_types, owner),
        owner=owner,
        unknown_consumers=_unknown_consumers(conn, t, held),
        leftovers=tuple(_find_leftovers(conn, t, set(classes))),
        has_types=has_types,
    )


def _check_schema(conn: sa.Connection, t: StockTables) -> bool:
    """Check tables and columns; return whether there are consumer types.

    :raises InvalidRequest: a table or a column is missing.
    """
    inspector = sa.inspect(conn)
    present = {
        name: {column["name"] for column in inspector.get_columns(name)}
        for name in inspector.get_table_names()
        if name in t.metadata.tables
    }
    has_types = t.types.name in present
    for table in t.metadata.sorted_tables:
        wanted = set(table.c.keys())
        if not has_types:
            if table is t.types:
                continue
            wanted.discard("consumer_type_id")
        missing = sorted(wanted - present.get(table.name, set()))
        if missing:
            raise InvalidRequest(
                "This is not a database of OpenStack Placement (Stein or newer): "
                f"table {table.name} lacks {', '.join(missing)}."
            )
    return has_types


def _names_by_id(conn: sa.Connection, table: sa.Table) -> dict[int, str]:
    rows = conn.execute(sa.select(table.c.id, table.c.name).order_by(table.c.id))
    return {row.id: row.name for row in rows}


def _changed_at(table: sa.Table) -> sa.ColumnElement[Any]:
    # oslo.db's updated_at is NULL until the first update of a row
    return sa.func.coalesce(table.c.updated_at, table.c.created_at)


def _held_amounts(t: StockTables, class_ids: set[int]) -> sa.Select[Any]:
    """Select amounts by consumer, provider and class."""
    a = t.allocations.c
    return (
        sa.select(
            a.consumer_id.label("consumer_uuid"),
            a.resource_provider_id.label("provider_id"),
            a.resource_class_id,
            # no key of the source forbids two rows of one combination, so they are summed
            sa.func.sum(a.used).label("used"),
            sa.func.max(_changed_at(t.allocations)).label("updated_at"),
        )
        .join(t.providers, t.providers.c.id == a.resource_provider_id)
        .where(a.resource_class_id.in_(sorted(class_ids)))
        .group_by(a.consumer_id, a.resource_provider_id, a.resource_class_id)
    )


def _content_queries(
    t: StockTables, class_ids: set[int], held: sa.Select[Any], has_types: bool, owner: ConsumerOwnership
) -> dict[str, sa.Select[Any]]:
    p, i, c = t.providers.c, t.inventories.c, t.consumers.c
    providers = sa.select(
        p.id,
        p.uuid,
        # Both columns allow NULL in the source.
        sa.func.coalesce(p.name, p.uuid).label("name"),
        sa.func.coalesce(p.generation, 0).label("generation"),
        p.parent_provider_id.label("parent_id"),
        _changed_at(t.providers).label("updated_at"),
    ).order_by(p.id)
    inventories = (
        sa.select(
            i.resource_provider_id.label("provider_id"),
            i.resource_class_id,
            i.total,
            i.reserved,
            i.min_unit,
            i.max_unit,
            i.step_size,
            i.allocation_ratio,
            _changed_at(t.inventories).label("updated_at"),
        )
        .join(t.providers, p.id == i.resource_provider_id)
        .where(i.resource_class_id.in_(sorted(class_ids)))
    )
    provider_traits = (
        sa.select(t.provider_traits.c.resource_provider_id.label("provider_id"), t.provider_traits.c.trait_id)
        .join(t.providers, p.id == t.provider_traits.c.resource_provider_id)
        .join(t.traits, t.traits.c.id == t.provider_traits.c.trait_id)
    )
    # one aggregate in two spellings would be two rows of ours with the same key
    spelled_alike = sa.func.lower(sa.func.replace(t.aggregates.c.uuid, "-", ""))
    aggregates = (
        sa.select(
            t.provider_aggregates.c.resource_provider_id.label("provider_id"),
            spelled_alike.label("aggregate"),
        )
        .join(t.providers, p.id == t.provider_aggregates.c.resource_provider_id)
        .join(t.aggregates, t.aggregates.c.id == t.provider_aggregates.c.aggregate_id)
        .where(t.aggregates.c.uuid.is_not(None))
        .distinct()
    )
    names = {"resource_classes": t.classes, "traits": t.traits}
    any_held = held.subquery()
    consumers = (
        sa.select(
            c.id,
            c.uuid,
            sa.func.coalesce(t.projects.c.external_id, owner.project_id).label("project_id"),
            sa.func.coalesce(t.users.c.external_id, owner.user_id).label("user_id"),
            (t.types.c.name if has_types else sa.null()).label("consumer_type"),
            c.generation,
            _changed_at(t.consumers).label("updated_at"),
        )
        .outerjoin(t.projects, t.projects.c.id == c.project_id)
        .outerjoin(t.users, t.users.c.id == c.user_id)
        .where(c.uuid.in_(sa.select(any_held.c.consumer_uuid)))
    )
    if has_types:
        consumers = consumers.outerjoin(t.types, t.types.c.id == c.consumer_type_id)
    each = held.subquery()
    allocations = sa.select(c.id.label("consumer_id"), *each.c).outerjoin(
        t.consumers, c.uuid == each.c.consumer_uuid
    )
    return {
        **{
            name: sa.select(table.c.id, table.c.name, _changed_at(table).label("updated_at")).order_by(
                table.c.id
            )
            for name, table in names.items()
        },
        "resource_providers": providers,
        "inventories": inventories,
        "provider_traits": provider_traits,
        "provider_aggregates": aggregates,
        "consumers": consumers,
        "allocations": allocations,
    }


def _unknown_consumers(conn: sa.Connection, t: StockTables, held: sa.Select[Any]) -> dict[str, int]:
    """Return free ids for consumers without a row, which date from before Rocky."""
    each = held.subquery()
    query = (
        sa.select(each.c.consumer_uuid)
        .outerjoin(t.consumers, t.consumers.c.uuid == each.c.consumer_uuid)
        .where(t.consumers.c.id.is_(None))
        .distinct()
    )
    last = conn.execute(sa.select(sa.func.max(t.consumers.c.id))).scalar() or 0
    # sorted: two runs over the same source give the same ids
    found = sorted(conn.execute(query).scalars())
    return {consumer: consumer_id for consumer_id, consumer in enumerate(found, last + 1)}


def _find_leftovers(conn: sa.Connection, t: StockTables, class_ids: set[int]) -> Iterator[str]:
    """Describe rows that refer to missing rows. No client can see them."""
    p, known = t.providers.c, sorted(class_ids)
    for table, what in ((t.inventories, "inventory"), (t.allocations, "allocation")):
        amount = table.c.total if table is t.inventories else table.c.used
        query = (
            sa.select(table.c.id, amount, table.c.resource_class_id, table.c.resource_provider_id, p.uuid)
            .outerjoin(t.providers, p.id == table.c.resource_provider_id)
            .where(sa.or_(p.id.is_(None), table.c.resource_class_id.not_in(known)))
        )
        for row_id, value, class_id, provider_id, provider in conn.execute(query):
            absent = (
                f"resource class number {class_id}" if provider else f"resource provider number {provider_id}"
            )
            yield f"{what} number {row_id} of {value}: there is no {absent}"
    for table, other, column in (
        (t.provider_traits, t.traits, "trait_id"),
        (t.provider_aggregates, t.aggregates, "aggregate_id"),
    ):
        name = other.c.uuid if other is t.aggregates else other.c.name
        joined = table.outerjoin(t.providers, p.id == table.c.resource_provider_id).outerjoin(
            other, other.c.id == table.c[column]
        )
        pairs = (
            sa.select(table.c.resource_provider_id, table.c[column])
            .select_from(joined)
            .where(sa.or_(p.id.is_(None), name.is_(None)))
        )
        for provider_id, other_id in conn.execute(pairs):
            what = column.removesuffix("_id")
            yield f"{what} number {other_id} of resource provider number {provider_id}: there is no such pair"
