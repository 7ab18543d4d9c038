"""The amounts that windows get back from their claims, and the window of each claim."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_column, make_index, make_table

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    consumer_id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    # claims by workers of the previous release do not return their amounts to a window
    make_column("claim_expiries", sa.Column("window_id", consumer_id, nullable=True))
    make_index("ix_claim_expiries_window_id", "claim_expiries", ["window_id"])
    make_table(
        "window_promises",
        sa.Column("consumer_id", consumer_id, nullable=False),
        sa.Column("provider_id", sa.Integer, nullable=False),
        sa.Column("resource_class_id", sa.Integer, nullable=False),
        sa.Column("used", sa.Integer, nullable=False),
        sa.ForeignKeyConstraint(
            ["consumer_id"], ["consumers.id"], name="fk_window_promises_consumer_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["provider_id"],
            ["resource_providers.id"],
            name="fk_window_promises_provider_id",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["resource_class_id"], ["resource_classes.id"], name="fk_window_promises_resource_class_id"
        ),
        sa.PrimaryKeyConstraint("consumer_id", "provider_id", "resource_class_id", name="pk_window_promises"),
    )
    for column in ("provider_id", "resource_class_id"):
        make_index(f"ix_window_promises_{column}", "window_promises", [column])
