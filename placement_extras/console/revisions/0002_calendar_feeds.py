"""Makes the table of the console for secret addresses of calendars."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_index, make_table

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_FEEDS = "console_feeds"


def upgrade() -> None:
    make_table(
        _FEEDS,
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("secret_digest", sa.String(64), nullable=False),
        sa.Column("project_id", sa.String(255), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_console_feeds"),
    )
    make_index("ix_console_feeds_secret_digest", _FEEDS, ["secret_digest"], unique=True)
