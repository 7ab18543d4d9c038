"""The table of the times at which unconfirmed claims expire."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_index, make_table

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    make_table(
        "claim_expiries",
        sa.Column("consumer_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(
            ["consumer_id"], ["consumers.id"], name="fk_claim_expiries_consumer_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("consumer_id", name="pk_claim_expiries"),
    )
    make_index("ix_claim_expiries_expires_at", "claim_expiries", ["expires_at"])
