"""The table of deleted resource providers, for clients that follow changes."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_index, make_table

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    make_table(
        "deleted_providers",
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("bucket", sa.SmallInteger, nullable=False),
        sa.Column("change_seq", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("uuid", "change_seq", name="pk_deleted_providers"),
    )
    make_index("ix_deleted_providers_bucket_change_seq", "deleted_providers", ["bucket", "change_seq"])
