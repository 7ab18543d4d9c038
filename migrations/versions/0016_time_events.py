"""The source of time events: when the times of windows and claims were set, and the ended claims."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_column, make_index, make_table

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # defaults, because workers of the previous release write rows without these columns
    for table, name in (
        ("booked_windows", "booked_at"),
        ("booked_windows", "end_set_at"),
        ("claim_expiries", "booked_at"),
    ):
        make_column(table, sa.Column(name, sa.Double, nullable=False, server_default="0"))
    make_index("ix_booked_windows_starts_at", "booked_windows", ["starts_at"])
    # for queries of the largest margin: a query for a range of times widens the range by this margin
    make_index("ix_booked_windows_lead_time", "booked_windows", ["lead_time"])
    make_index("ix_booked_windows_cleaning_time", "booked_windows", ["cleaning_time"])
    make_index("ix_claim_expiries_cleaning_time", "claim_expiries", ["cleaning_time"])
    make_table(
        "ended_claims",
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("project_id", sa.String(255), nullable=False),
        sa.Column("consumer_type", sa.String(255), nullable=True),
        sa.Column("booked_at", sa.Double, nullable=False),
        sa.Column("ends_at", sa.Double, nullable=False),
        sa.Column("on_end", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("uuid", name="pk_ended_claims"),
    )
    make_index("ix_ended_claims_ends_at", "ended_claims", ["ends_at"])
