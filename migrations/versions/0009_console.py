"""Who is signed in to the console, and who tried to."""

import sqlalchemy as sa

from placement.db.revising import make_index, make_table

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    make_table(
        "console_sessions",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_console_sessions"),
    )
    make_index("ix_console_sessions_expires_at", "console_sessions", ["expires_at"])
    make_table(
        "console_attempts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("subject", sa.String(64), nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_console_attempts"),
    )
    make_index("ix_console_attempts_subject", "console_attempts", ["subject"])
    make_index("ix_console_attempts_at", "console_attempts", ["at"])
