"""A flag of reservations that are maintenances: their hosts may be disabled."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_column

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # a default, because workers of the previous release write rows without this column
    column = sa.Column("is_maintenance", sa.Boolean, nullable=False, server_default=sa.false())
    make_column("reservations", column)
