"""The time until which later windows cannot preempt a preemptible claim."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_column

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # workers of the previous release write rows without this column; no window preempts these claims
    make_column("claim_expiries", sa.Column("kept_until", sa.Double, nullable=True))
