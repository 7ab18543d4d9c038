"""The history of windows: the resources and the times that a project has booked."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_index, make_table

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_NAME = "booked_windows"


def upgrade() -> None:
    make_table(
        _NAME,
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("project_id", sa.String(255), nullable=False),
        sa.Column("user_id", sa.String(255), nullable=False),
        sa.Column("claim_group", sa.String(255), nullable=True),
        sa.Column("starts_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("lead_time", sa.Integer, nullable=False),
        sa.Column("cleaning_time", sa.Integer, nullable=False),
        sa.Column("resources", sa.Text, nullable=False),
        sa.Column("ended_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("uuid", name="pk_booked_windows"),
    )
    make_index("ix_booked_windows_ended_at", _NAME, ["ended_at"])
    make_index("ix_booked_windows_project_id_ended_at", _NAME, ["project_id", "ended_at"])
