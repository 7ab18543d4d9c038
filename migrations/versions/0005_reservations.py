"""Reservations: consumers that hold resources until a time, for later claims of a project."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_index, make_table

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    make_table(
        "reservations",
        sa.Column(
            "consumer_id",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            autoincrement=False,
            nullable=False,
        ),
        sa.Column("claim_group", sa.String(255), nullable=True),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(
            ["consumer_id"], ["consumers.id"], name="fk_reservations_consumer_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("consumer_id", name="pk_reservations"),
    )
    make_index("ix_reservations_expires_at", "reservations", ["expires_at"])
