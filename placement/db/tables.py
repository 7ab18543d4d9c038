"""The database schema, as SQLAlchemy Core tables.

Times are seconds since 1970 (UTC) in double precision. ``migrations/`` builds
this schema; a test compares the two.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from placement import extensions

_naming = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}
_mysql: Final[dict[str, Any]] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
}

metadata = sa.MetaData(naming_convention=_naming)

NO_ID: Final[sa.ColumnElement[int]] = sa.literal_column("-1")
"""An id that no row has. A foreign key refuses a row with this id."""

ConsumerId: Final = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""The type of consumers' ids. Each attempt to claim uses up an id, even if it fails, so 32 bits are not
enough. Integers of SQLite always have 64 bits.
"""


RESERVATION: Final = "RESERVATION"
"""The consumer type of reservations. Consumers of other types are not reservations."""
WINDOW_HOLD: Final = "WINDOW_HOLD"
"""The consumer type of holds, which keep amounts free for windows (:mod:`placement.store.holds`)."""


def define_table(name: str, *parts: sa.schema.SchemaItem, among: sa.MetaData = metadata) -> sa.Table:
    """Define a table with the options for each kind of database.

    :param among: the metadata to which the table belongs. Each extension has its own metadata.
    """
    return sa.Table(name, among, *parts, sqlite_autoincrement=True, **_mysql)


@dataclass(frozen=True, slots=True)
class ExtensionTables:
    """The tables of an extension, and the branch of Alembic migrations that creates them.

    :param revisions: the folder of the branch. The revisions in it are numbers of four digits.
    """

    name: str
    revisions: Path
    metadata: sa.MetaData

    @classmethod
    def from_branch(cls, name: str, revisions: Path) -> "ExtensionTables":
        """Return the tables of an extension: at first, only the table with the revision of the branch."""
        tables = cls(name, revisions, sa.MetaData(naming_convention=_naming))
        sa.Table(
            tables.version_table, tables.metadata, sa.Column("version_num", sa.String(32), primary_key=True)
        )
        return tables

    @property
    def version_table(self) -> str:
        """The name of Alembic's table with the revision of the branch. It contains the extension's name."""
        return f"alembic_version_{self.name}"

    def define_table(self, name: str, *parts: sa.schema.SchemaItem) -> sa.Table:
        """Define a table that belongs to the extension."""
        return define_table(name, *parts, among=self.metadata)


def is_same_text(column: sa.ColumnElement[str], text: sa.ColumnElement[str] | str) -> sa.ColumnElement[bool]:
    """Return the SQL condition that a column is exactly equal to a text or a parameter."""
    # lengths are also compared, because MariaDB ignores blanks at the end of texts in comparisons
    return (column == text) & (sa.func.length(column) == sa.func.length(text))


def extension_tables() -> list[ExtensionTables]:
    """Return the tables of all registered extensions."""
    return list(extensions.registered_objects("tables").values())


def all_metadata() -> list[sa.MetaData]:
    """Return the SQLAlchemy metadata of the core's tables, followed by the metadata of each extension."""
    return [metadata, *(each.metadata for each in extension_tables())]


resource_classes = define_table(
    "resource_classes",
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(255), nullable=False, unique=True),
    sa.Column("updated_at", sa.Double, nullable=False),
)

traits = define_table(
    "traits",
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(255), nullable=False, unique=True),
    sa.Column("updated_at", sa.Double, nullable=False),
)

resource_providers = define_table(
    "resource_providers",
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uuid", sa.String(36), nullable=False, unique=True),
    sa.Column("name", sa.String(200), nullable=False, unique=True),
    sa.Column("generation", sa.BigInteger, nullable=False),
    # for a root provider, parent_id and root_id are NULL
    sa.Column("root_id", sa.Integer, sa.ForeignKey("resource_providers.id"), nullable=True, index=True),
    sa.Column("parent_id", sa.Integer, sa.ForeignKey("resource_providers.id"), nullable=True, index=True),
    # the change bucket of the provider, and two values of the bucket's counter: at the last change of the
    # provider, and at its last change other than a change of usage
    sa.Column("bucket", sa.SmallInteger, nullable=False),
    sa.Column("change_seq", sa.BigInteger, nullable=False),
    sa.Column("described_seq", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("updated_at", sa.Double, nullable=False),
    sa.Index("ix_resource_providers_bucket_change_seq", "bucket", "change_seq"),
)

root_providers: Final = resource_providers.alias("root")
"""The root providers, in statements that also read the providers of their trees."""
TREE_ROOT: Final = sa.func.coalesce(resource_providers.c.root_id, resource_providers.c.id)
"""SQL expression for the id of the root of a provider's tree."""
IS_TREE_ROOT: Final = root_providers.c.id == TREE_ROOT
"""SQL condition: the root provider is the root of the provider's tree."""

inventories = define_table(
    "inventories",
    sa.Column("provider_id", sa.ForeignKey("resource_providers.id"), primary_key=True),
    sa.Column("resource_class_id", sa.ForeignKey("resource_classes.id"), primary_key=True, index=True),
    sa.Column("total", sa.Integer, nullable=False),
    sa.Column("reserved", sa.Integer, nullable=False),
    sa.Column("min_unit", sa.Integer, nullable=False),
    sa.Column("max_unit", sa.Integer, nullable=False),
    sa.Column("step_size", sa.Integer, nullable=False),
    sa.Column("allocation_ratio", sa.Double, nullable=False),
    sa.Column("updated_at", sa.Double, nullable=False),
)

provider_traits = define_table(
    "provider_traits",
    sa.Column("provider_id", sa.ForeignKey("resource_providers.id"), primary_key=True),
    sa.Column("trait_id", sa.ForeignKey("traits.id"), primary_key=True, index=True),
)

provider_aggregates = define_table(
    "provider_aggregates",
    sa.Column("provider_id", sa.ForeignKey("resource_providers.id"), primary_key=True),
    sa.Column("aggregate", sa.String(36), primary_key=True),
)

provider_attributes = define_table(
    "provider_attributes",
    sa.Column("provider_id", sa.ForeignKey("resource_providers.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    # one of the two columns has the value, and the other one is NULL
    sa.Column("text", sa.String(255), nullable=True),
    sa.Column("number", sa.Double, nullable=True),
)

consumers = define_table(
    "consumers",
    sa.Column("id", ConsumerId, primary_key=True),
    sa.Column("uuid", sa.String(36), nullable=False, unique=True),
    sa.Column("project_id", sa.String(255), nullable=False, index=True),
    sa.Column("user_id", sa.String(255), nullable=False),
    sa.Column("consumer_type", sa.String(255), nullable=True),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("updated_at", sa.Double, nullable=False),
)

allocations = define_table(
    "allocations",
    sa.Column("consumer_id", sa.ForeignKey("consumers.id"), primary_key=True),
    sa.Column("provider_id", sa.ForeignKey("resource_providers.id"), primary_key=True),
    sa.Column("resource_class_id", sa.ForeignKey("resource_classes.id"), primary_key=True, index=True),
    sa.Column("used", sa.Integer, nullable=False),
    sa.Column("updated_at", sa.Double, nullable=False),
    sa.Index("ix_allocations_provider_id_resource_class_id", "provider_id", "resource_class_id"),
)

consumer_groups = define_table(
    "consumer_groups",
    # the consumer is the key, because a consumer is in at most one group. The row is deleted with the
    # consumer.
    sa.Column("consumer_id", sa.ForeignKey("consumers.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("name", sa.String(255), nullable=False, index=True),
)

reservations = define_table(
    "reservations",
    # the consumer has the allocations and the project. The reservation is deleted together with the consumer.
    sa.Column("consumer_id", sa.ForeignKey("consumers.id", ondelete="CASCADE"), primary_key=True),
    # only claims for this group can use the reservation; NULL means that all claims of the project can use it
    sa.Column("claim_group", sa.String(255), nullable=True),
    # the end, by the clock of the database (see placement.db.clock)
    sa.Column("expires_at", sa.Double, nullable=False, index=True),
    # a reservation with a start is a window. NULL means that it holds its amounts from its creation on.
    sa.Column("starts_at", sa.Double, nullable=True, index=True),
    # seconds after starts_at and before expires_at in which a window holds its amounts, but no claim uses it
    sa.Column("lead_time", sa.Integer, nullable=False, server_default="0"),
    sa.Column("cleaning_time", sa.Integer, nullable=False, server_default="0"),
    # an EndAction: the action for guests at the end of their claims
    sa.Column("on_end", sa.String(16), nullable=False, server_default="none"),
    # whether the reservation holds a whole host for a maintenance
    sa.Column("is_maintenance", sa.Boolean, nullable=False, server_default=sa.false()),
    # whether the service can move the window to an equivalent host before its start
    sa.Column("is_movable", sa.Boolean, nullable=False, server_default=sa.false()),
)

planned_allocations = define_table(
    "planned_allocations",
    # the rows become allocations when the window begins. They are deleted with the consumer.
    sa.Column("consumer_id", sa.ForeignKey("consumers.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("provider_id", sa.ForeignKey("resource_providers.id"), primary_key=True, index=True),
    sa.Column("resource_class_id", sa.ForeignKey("resource_classes.id"), primary_key=True, index=True),
    sa.Column("used", sa.Integer, nullable=False),
)


def is_planned(consumer_id: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """Return the SQL condition that a consumer has planned allocations; it is a window that has not begun."""
    # this is a lookup by key. For EXISTS, MariaDB copies all planned allocations at each call. For EXISTS
    # among the columns, and for IN, PostgreSQL hashes all of them: 0.1 s with 200,000 rows.
    return (
        sa.select(planned_allocations.c.consumer_id)
        .where(planned_allocations.c.consumer_id == consumer_id)
        .correlate_except(planned_allocations)
        .limit(1)
        .scalar_subquery()
        .is_not(None)
    )


def join_amounts(amounts: sa.Table, owners: sa.FromClause = consumers) -> sa.Join:
    """Join consumers with rows of a table of amounts, and with the providers and classes of the amounts."""
    return (
        owners.join(amounts, amounts.c.consumer_id == consumers.c.id)
        .join(resource_providers, resource_providers.c.id == amounts.c.provider_id)
        .join(resource_classes, resource_classes.c.id == amounts.c.resource_class_id)
    )


window_promises = define_table(
    "window_promises",
    # the promised amounts of a window from which claims have taken amounts. They are the amounts that the
    # window still holds, plus the amounts of these claims. Until the end of the window, the window gets back
    # the amounts that the claims release. The rows are deleted with the consumer.
    sa.Column("consumer_id", sa.ForeignKey("consumers.id", ondelete="CASCADE"), primary_key=True),
    sa.Column(
        "provider_id",
        sa.ForeignKey("resource_providers.id", ondelete="CASCADE"),
        primary_key=True,
        index=True,
    ),
    sa.Column("resource_class_id", sa.ForeignKey("resource_classes.id"), primary_key=True, index=True),
    sa.Column("used", sa.Integer, nullable=False),
)

booked_windows = define_table(
    "booked_windows",
    # the history of windows. The uuid is the uuid of a reservation that perhaps no longer exists.
    sa.Column("uuid", sa.String(36), primary_key=True),
    sa.Column("project_id", sa.String(255), nullable=False),
    sa.Column("user_id", sa.String(255), nullable=False),
    sa.Column("claim_group", sa.String(255), nullable=True),
    # the next five columns have the values of the reservation
    sa.Column("on_end", sa.String(16), nullable=False, server_default="none"),
    sa.Column("starts_at", sa.Double, nullable=False, index=True),
    sa.Column("expires_at", sa.Double, nullable=False),
    sa.Column("lead_time", sa.Integer, nullable=False, index=True),
    sa.Column("cleaning_time", sa.Integer, nullable=False, index=True),
    # the promised amounts by resource class, as JSON
    sa.Column("resources", sa.Text, nullable=False),
    # the same time as expires_at, or the time of an earlier deletion
    sa.Column("ended_at", sa.Double, nullable=False, index=True),
    # the time when the window was booked, and the time when its end was last set
    sa.Column("booked_at", sa.Double, nullable=False, server_default="0"),
    sa.Column("end_set_at", sa.Double, nullable=False, server_default="0"),
    sa.Index("ix_booked_windows_project_id_ended_at", "project_id", "ended_at"),
)

deleted_providers = define_table(
    "deleted_providers",
    sa.Column("uuid", sa.String(36), primary_key=True),
    # the bucket of the provider, and the counter of this bucket at the deletion
    sa.Column("bucket", sa.SmallInteger, nullable=False),
    sa.Column("change_seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Index("ix_deleted_providers_bucket_change_seq", "bucket", "change_seq"),
)

claim_expiries = define_table(
    "claim_expiries",
    # the consumer expires at this time by the clock of the database, if it still has this generation
    sa.Column("consumer_id", sa.ForeignKey("consumers.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=False, index=True),
    # whether the claim ends at this time in any case; otherwise a client can confirm it
    sa.Column("is_final", sa.Boolean, nullable=False, server_default=sa.false()),
    # until this time, no later window shortens a preemptible claim. Windows never shorten other claims.
    sa.Column("kept_until", sa.Double, nullable=True),
    # the consumer of the window from which a claim with an end time has taken its amounts. Perhaps the window
    # no longer exists.
    sa.Column("window_id", ConsumerId, nullable=True, index=True),
    # the time when a claim with an end time was written
    sa.Column("booked_at", sa.Double, nullable=False, server_default="0"),
    # seconds from the end of the claim to expires_at
    sa.Column("cleaning_time", sa.Integer, nullable=False, server_default="0", index=True),
    # an EndAction: the action for the guest at the end
    sa.Column("on_end", sa.String(16), nullable=False, server_default="none"),
)

ended_claims = define_table(
    "ended_claims",
    # data for time events about a claim with an on_end, after its amounts are released and its consumer is
    # deleted
    sa.Column("uuid", sa.String(36), primary_key=True),
    sa.Column("project_id", sa.String(255), nullable=False),
    sa.Column("consumer_type", sa.String(255), nullable=True),
    sa.Column("booked_at", sa.Double, nullable=False),
    sa.Column("ends_at", sa.Double, nullable=False, index=True),
    sa.Column("on_end", sa.String(16), nullable=False),
    # the uuids of the roots of the providers that the claim used, as JSON
    sa.Column("roots", sa.Text, nullable=True),
)

change_buckets = define_table(
    "change_buckets",
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("counter", sa.BigInteger, nullable=False),
    sa.Column("deletions", sa.BigInteger, nullable=False),
)
