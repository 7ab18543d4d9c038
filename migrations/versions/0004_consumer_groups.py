"""The table of the groups of consumers, for policies of claims (affinity, anti-affinity)."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_index, make_table

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    make_table(
        "consumer_groups",
        sa.Column("consumer_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(
            ["consumer_id"], ["consumers.id"], name="fk_consumer_groups_consumer_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("consumer_id", name="pk_consumer_groups"),
    )
    make_index("ix_consumer_groups_name", "consumer_groups", ["name"])
