"""Whether a window that has not begun may move to another host that is alike."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_column

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # workers of the release before write rows without this column; their windows stay
    make_column(
        "reservations", sa.Column("is_movable", sa.Boolean, nullable=False, server_default=sa.false())
    )
