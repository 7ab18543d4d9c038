"""The action at the end of reservations and claims, and the cleaning time after a claim."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_column

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # defaults, because workers of the previous release write rows without these columns
    for table in ("claim_expiries", "reservations", "booked_windows"):
        make_column(table, sa.Column("on_end", sa.String(16), nullable=False, server_default="none"))
    make_column("claim_expiries", sa.Column("cleaning_time", sa.Integer, nullable=False, server_default="0"))
