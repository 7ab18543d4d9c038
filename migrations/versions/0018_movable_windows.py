"""A flag of windows: until its start, a window with this flag may move to an equivalent host."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_column

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # workers of the previous release write rows without this column; their windows stay on their hosts
    make_column(
        "reservations", sa.Column("is_movable", sa.Boolean, nullable=False, server_default=sa.false())
    )
