"""Which reservations are maintenances, whose hosts may be disabled."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_column

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # workers of the release before write rows without it
    column = sa.Column("is_maintenance", sa.Boolean, nullable=False, server_default=sa.false())
    make_column("reservations", column)
