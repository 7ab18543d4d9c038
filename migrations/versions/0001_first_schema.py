"""The first schema: providers, inventories, consumers, allocations, change counters."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_index, make_table

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _make_table(name: str, *elements: sa.schema.SchemaItem) -> None:
    make_table(name, *elements, sqlite_autoincrement=True)


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
    make_index("ix_consumers_project_id", "consumers", ["project_id"])
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
    make_index(
        "ix_resource_providers_bucket_change_seq",
        "resource_providers",
        ["bucket", "change_seq"],
    )
    make_index("ix_resource_providers_parent_id", "resource_providers", ["parent_id"])
    make_index("ix_resource_providers_root_id", "resource_providers", ["root_id"])
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
    make_index(
        "ix_allocations_provider_id_resource_class_id",
        "allocations",
        ["provider_id", "resource_class_id"],
    )
    make_index("ix_allocations_resource_class_id", "allocations", ["resource_class_id"])
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
    make_index("ix_inventories_resource_class_id", "inventories", ["resource_class_id"])
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
    make_index("ix_provider_traits_trait_id", "provider_traits", ["trait_id"])
