"""Windows (reservations with a start), their planned allocations, and claims with an end."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_column, make_index, make_table

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    make_column("reservations", sa.Column("starts_at", sa.Double, nullable=True))
    make_column(
        "claim_expiries", sa.Column("is_final", sa.Boolean, nullable=False, server_default=sa.false())
    )
    make_table(
        "planned_allocations",
        sa.Column("consumer_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("provider_id", sa.Integer, nullable=False),
        sa.Column("resource_class_id", sa.Integer, nullable=False),
        sa.Column("used", sa.Integer, nullable=False),
        sa.ForeignKeyConstraint(
            ["consumer_id"], ["consumers.id"], name="fk_planned_allocations_consumer_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["provider_id"], ["resource_providers.id"], name="fk_planned_allocations_provider_id"
        ),
        sa.ForeignKeyConstraint(
            ["resource_class_id"], ["resource_classes.id"], name="fk_planned_allocations_resource_class_id"
        ),
        sa.PrimaryKeyConstraint(
            "consumer_id", "provider_id", "resource_class_id", name="pk_planned_allocations"
        ),
    )
    for column in ("provider_id", "resource_class_id"):
        make_index(f"ix_planned_allocations_{column}", "planned_allocations", [column])
