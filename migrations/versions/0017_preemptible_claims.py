"""Until when a preemptible claim keeps its room from later windows."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_column

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # workers of the release before write rows without this column: claims that no window preempts
    make_column("claim_expiries", sa.Column("kept_until", sa.Double, nullable=True))
