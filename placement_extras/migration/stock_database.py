"""Reads the tables of OpenStack Placement, and yields their content as rows of our tables.

OpenStack Placement has these tables in its releases from Stein to 2026.1. Only releases from Xena on have the
table of consumer types. After an adoption, the names of these tables have a prefix, and our tables are in the
same database.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
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
    """Descriptions of OpenStack Placement's tables for SQLAlchemy. Each name of a table has the prefix."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self.metadata = sa.MetaData()
        self.providers = self._add_table(
            "resource_providers",
            ("id", "generation", "root_provider_id", "parent_provider_id"),
            uuid=sa.String,
            name=sa.String,
        )
        limits = ("total", "reserved", "min_unit", "max_unit", "step_size")
        self.inventories = self._add_table(
            "inventories",
            ("id", "resource_provider_id", "resource_class_id", *limits),
            allocation_ratio=sa.Float,
        )
        self.allocations = self._add_table(
            "allocations", ("id", "resource_provider_id", "resource_class_id", "used"), consumer_id=sa.String
        )
        self.consumers = self._add_table(
            "consumers", ("id", "project_id", "user_id", "generation", "consumer_type_id"), uuid=sa.String
        )
        self.projects = self._add_table("projects", ("id",), external_id=sa.String)
        self.users = self._add_table("users", ("id",), external_id=sa.String)
        self.types = self._add_table("consumer_types", ("id",), name=sa.String)
        self.classes = self._add_table("resource_classes", ("id",), name=sa.String)
        self.traits = self._add_table("traits", ("id",), name=sa.String)
        self.aggregates = self._add_table("placement_aggregates", ("id",), uuid=sa.String)
        self.provider_traits = self._add_table(
            "resource_provider_traits", ("resource_provider_id", "trait_id")
        )
        self.provider_aggregates = self._add_table(
            "resource_provider_aggregates", ("resource_provider_id", "aggregate_id")
        )

    def _add_table(self, table: str, integers: Sequence[str], /, **others: Any) -> sa.Table:
        """Describe a table by the names of its columns with integers, and the types of its other columns."""
        typed = {**dict.fromkeys(integers, sa.Integer), **others}
        times = {"created_at": sa.DateTime, "updated_at": sa.DateTime}
        listed = (sa.Column(column, kind) for column, kind in (typed | times).items())
        return sa.Table(self._prefix + table, self.metadata, *listed)


@dataclass(frozen=True)
class StockContent(DatabaseContent):
    """The content of a database of OpenStack Placement, read in one snapshot.

    :param tables: the descriptions of the tables that the queries read.
    :param owner: project and user for consumers without a project or user in the source.
    :param unknown_consumers: new ids, by uuid, for consumers that have allocations but no row in the source.
    :param leftovers: descriptions of rows that refer to missing rows. The queries leave out these rows.
    :param has_types: whether the schema has consumer types.
    """

    tables: StockTables
    owner: ConsumerOwnership
    unknown_consumers: dict[str, int]
    leftovers: tuple[str, ...]
    has_types: bool

    def _finish_row(self, row: dict[str, Any]) -> dict[str, Any]:
        """Convert those values of a row that SQL cannot convert."""
        for column in ("uuid", "aggregate"):
            if column in row:
                row[column] = canonical_uuid(row[column])
        if "consumer_uuid" in row:
            consumer = row.pop("consumer_uuid")
            # the outer join yields NULL if the consumer has no row
            if row["consumer_id"] is None:
                row["consumer_id"] = self.unknown_consumers[consumer]
        if "used" in row:
            row["used"] = int(row["used"])  # MySQL returns sums as decimals
        # times in the source are in UTC, and have no time zone
        if isinstance(row.get("updated_at"), datetime):
            row["updated_at"] = row["updated_at"].replace(tzinfo=UTC).timestamp()
        return row

    def rows(self, table: str) -> Iterator[dict[str, Any]]:
        """Read rows as one of our tables would have them. Consumers without a row in the source come last."""
        yield from map(self._finish_row, super().rows(table))
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
        """Count and sum the rows by title, including consumers without a row in the source."""
        found = super().row_tallies()
        listed = found[CONSUMERS]
        found[CONSUMERS] = RowTally(listed.rows + len(self.unknown_consumers), listed.total)
        return found

    def provider_links(self, column: str) -> dict[int, int | None]:
        """Return a column with ids of other providers, such as parents, by the id of the provider."""
        p = self.tables.providers.c
        # dict() would do the same, but mypy does not accept rows as pairs
        return {row_id: other for row_id, other in self.conn.execute(sa.select(p.id, p[column]))}  # noqa: C416

    def ownerless_consumers(self) -> list[str]:
        """Return uuids of consumers with allocations that refer to a missing project or user."""
        t = self.tables
        held = self.queries["consumers"].subquery()
        query = (
            sa.select(held.c.uuid)
            .join(t.consumers, t.consumers.c.id == held.c.id)
            # projects and users are joined again, because the query for consumers replaces missing ones by
            # ``owner``
            .outerjoin(t.projects, t.projects.c.id == t.consumers.c.project_id)
            .outerjoin(t.users, t.users.c.id == t.consumers.c.user_id)
            .where(sa.or_(t.projects.c.id.is_(None), t.users.c.id.is_(None)))
            .order_by(held.c.id)
        )
        return list(self.conn.execute(query).scalars())

    def provider_names(self, ids: set[int]) -> list[str]:
        """Return the name and the uuid of each provider with one of these ids, as texts for messages."""
        p = self.tables.providers
        query = sa.select(p.c.id, p.c.name, p.c.uuid).order_by(p.c.id)
        return [
            f"{name} ({uuid})" for provider_id, name, uuid in self.conn.execute(query) if provider_id in ids
        ]


def canonical_uuid(text: str) -> str:
    """Return a uuid with dashes and in lower case, as our API shows it.

    OpenStack Placement stores some uuids in the spelling of the client.

    :raises InvalidRequest: the text is not a uuid.
    """
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise InvalidRequest(f"The source database holds {text!r} where a uuid should be.") from None


@contextmanager
def open_source(url: str, owner: ConsumerOwnership, prefix: str = "") -> Iterator[StockContent]:
    """Open a database of OpenStack Placement by its SQLAlchemy URL, for reading in one snapshot.

    :param owner: project and user of consumers that have allocations, but no row in the source.
    :param prefix: prefix of the names of the tables.
    :raises InvalidRequest: the URL cannot be used, or its database is not one of OpenStack Placement.
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
        # all queries of the transaction see one snapshot, even if the old service still writes
        return sa.create_engine(parsed, isolation_level="REPEATABLE READ")
    except exc.ArgumentError as error:  # the text is no URL, or names an unknown kind of database
        raise InvalidRequest(f"The source database's URL cannot be used: {error}") from error
    except ImportError as error:
        reason = errors.missing_driver(parsed, error)
        raise InvalidRequest(f"The source database's URL cannot be used: {reason}") from error


def _sqlite_engine(url: URL) -> sa.Engine:
    # SQLite would create a missing file instead of refusing it
    if not url.database or not Path(url.database).is_file():
        raise InvalidRequest(f"There is no SQLite database {url.database}.")
    engine = sa.create_engine(url)

    @sa.event.listens_for(engine, "connect")
    def _set_read_only(connection: Any, record: object) -> None:
        # the driver must not begin transactions. The event "begin" below does this, so that all reads share
        # one snapshot.
        connection.isolation_level = None
        connection.execute("PRAGMA query_only = ON")

    @sa.event.listens_for(engine, "begin")
    def _begin_snapshot(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def read_stock(conn: sa.Connection, owner: ConsumerOwnership, prefix: str = "") -> StockContent:
    """Return the content of a database of OpenStack Placement.

    The rows are read later, by the queries of the content. All queries have to run in the current transaction
    of the connection, which must be a snapshot.

    :param prefix: prefix of the names of the tables, see :class:`StockTables`.
    :raises InvalidRequest: a table or a column of OpenStack Placement is missing.
    """
    t = StockTables(prefix)
    has_types = _check_schema(conn, t)
    # before Xena, no table contains the standard classes, and the id of a standard class is its position in
    # this list
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
    """Refuse missing tables and columns; return whether the schema has consumer types."""
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
    # oslo.db leaves updated_at NULL until the first update of a row
    return sa.func.coalesce(table.c.updated_at, table.c.created_at)


def _held_amounts(t: StockTables, class_ids: set[int]) -> sa.Select[Any]:
    """Return a query for the allocated amounts by consumer, provider and resource class."""
    a = t.allocations.c
    return (
        sa.select(
            a.consumer_id.label("consumer_uuid"),
            a.resource_provider_id.label("provider_id"),
            a.resource_class_id,
            # the source allows several rows with the same consumer, provider and class, so amounts are summed
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
        # in the source, name and generation can be NULL, which our columns do not allow
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
    # uuids of aggregates are converted to one spelling, because two spellings of an aggregate would become
    # two equal rows of our table
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
    """Return new ids, by uuid, for consumers with allocations but no row, which is data from before Rocky."""
    each = held.subquery()
    query = (
        sa.select(each.c.consumer_uuid)
        .outerjoin(t.consumers, t.consumers.c.uuid == each.c.consumer_uuid)
        .where(t.consumers.c.id.is_(None))
        .distinct()
    )
    last = conn.execute(sa.select(sa.func.max(t.consumers.c.id))).scalar() or 0
    # uuids are sorted, so that two runs with the same source choose the same ids
    found = sorted(conn.execute(query).scalars())
    return {consumer: consumer_id for consumer_id, consumer in enumerate(found, last + 1)}


def _find_leftovers(conn: sa.Connection, t: StockTables, class_ids: set[int]) -> Iterator[str]:
    """Describe rows that refer to missing rows. Clients do not see these rows, and they are not copied."""
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
            yield f"{what} number {other_id} of resource provider number {provider_id}: one is missing"
