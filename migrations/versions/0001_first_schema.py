"""The first schema: providers, inventories, consumers, allocations, change counters.

MySQL commits each statement that makes a table: after a migration that was interrupted some are there.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from placement.exceptions import Unavailable

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_OPTIONS = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
    "sqlite_autoincrement": True,
}


def _make_table(name: str, *elements: sa.schema.SchemaItem) -> None:
    present = sa.inspect(op.get_bind())
    if not present.has_table(name):
        op.create_table(name, *elements, **_OPTIONS)
        return
    columns = {element.name for element in elements if isinstance(element, sa.Column)}
    if {column["name"] for column in present.get_columns(name)} != columns:
        raise Unavailable(
            f"The database has a table {name} of another program: "
            "give the service a database of its own in [placement_database] connection."
        )


def _make_index(name: str, table: str, columns: Sequence[str]) -> None:
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, columns, unique=False)


def upgrade() -> None:
    _make_table(
        "change_buckets",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("counter", sa.BigInteger(), nullable=False),
        sa.Column("deletions", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_change_buckets"),
    )
    _make_table(
        "consumers",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("project_id", sa.String(length=255), nullable=False),
        sa.Column("user_id", sa.String(length=255), nullable=False),
        sa.Column("consumer_type", sa.String(length=255), nullable=True),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_consumers"),
        sa.UniqueConstraint("uuid", name="uq_consumers_uuid"),
    )
    _make_index("ix_consumers_project_id", "consumers", ["project_id"])
    _make_table(
        "resource_classes",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_resource_classes"),
        sa.UniqueConstraint("name", name="uq_resource_classes_name"),
    )
    _make_table(
        "resource_providers",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("root_id", sa.Integer(), nullable=True),
        sa.Column("parent_id", sa.Integer(), nullable=True),
        sa.Column("bucket", sa.SmallInteger(), nullable=False),
        sa.Column("change_seq", sa.BigInteger(), nullable=False),
        sa.Column("described_seq", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["parent_id"], ["resource_providers.id"], name="fk_resource_providers_parent_id"
        ),
        sa.ForeignKeyConstraint(["root_id"], ["resource_providers.id"], name="fk_resource_providers_root_id"),
        sa.PrimaryKeyConstraint("id", name="pk_resource_providers"),
        sa.UniqueConstraint("name", name="uq_resource_providers_name"),
        sa.UniqueConstraint("uuid", name="uq_resource_providers_uuid"),
    )
    _make_index(
        "ix_resource_providers_bucket_change_seq",
        "resource_providers",
        ["bucket", "change_seq"],
    )
    _make_index("ix_resource_providers_parent_id", "resource_providers", ["parent_id"])
    _make_index("ix_resource_providers_root_id", "resource_providers", ["root_id"])
    _make_table(
        "traits",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_traits"),
        sa.UniqueConstraint("name", name="uq_traits_name"),
    )
    _make_table(
        "allocations",
        sa.Column("consumer_id", sa.Integer(), nullable=False),
        sa.Column("provider_id", sa.Integer(), nullable=False),
        sa.Column("resource_class_id", sa.Integer(), nullable=False),
        sa.Column("used", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["consumer_id"], ["consumers.id"], name="fk_allocations_consumer_id"),
        sa.ForeignKeyConstraint(
            ["provider_id"], ["resource_providers.id"], name="fk_allocations_provider_id"
        ),
        sa.ForeignKeyConstraint(
            ["resource_class_id"], ["resource_classes.id"], name="fk_allocations_resource_class_id"
        ),
        sa.PrimaryKeyConstraint("consumer_id", "provider_id", "resource_class_id", name="pk_allocations"),
    )
    _make_index(
        "ix_allocations_provider_id_resource_class_id",
        "allocations",
        ["provider_id", "resource_class_id"],
    )
    _make_index("ix_allocations_resource_class_id", "allocations", ["resource_class_id"])
    _make_table(
        "inventories",
        sa.Column("provider_id", sa.Integer(), nullable=False),
        sa.Column("resource_class_id", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("reserved", sa.Integer(), nullable=False),
        sa.Column("min_unit", sa.Integer(), nullable=False),
        sa.Column("max_unit", sa.Integer(), nullable=False),
        sa.Column("step_size", sa.Integer(), nullable=False),
        sa.Column("allocation_ratio", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["provider_id"], ["resource_providers.id"], name="fk_inventories_provider_id"
        ),
        sa.ForeignKeyConstraint(
            ["resource_class_id"], ["resource_classes.id"], name="fk_inventories_resource_class_id"
        ),
        sa.PrimaryKeyConstraint("provider_id", "resource_class_id", name="pk_inventories"),
    )
    _make_index("ix_inventories_resource_class_id", "inventories", ["resource_class_id"])
    _make_table(
        "provider_aggregates",
        sa.Column("provider_id", sa.Integer(), nullable=False),
        sa.Column("aggregate", sa.String(length=36), nullable=False),
        sa.ForeignKeyConstraint(
            ["provider_id"], ["resource_providers.id"], name="fk_provider_aggregates_provider_id"
        ),
        sa.PrimaryKeyConstraint("provider_id", "aggregate", name="pk_provider_aggregates"),
    )
    _make_table(
        "provider_traits",
        sa.Column("provider_id", sa.Integer(), nullable=False),
        sa.Column("trait_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["provider_id"], ["resource_providers.id"], name="fk_provider_traits_provider_id"
        ),
        sa.ForeignKeyConstraint(["trait_id"], ["traits.id"], name="fk_provider_traits_trait_id"),
        sa.PrimaryKeyConstraint("provider_id", "trait_id", name="pk_provider_traits"),
    )
    _make_index("ix_provider_traits_trait_id", "provider_traits", ["trait_id"])
