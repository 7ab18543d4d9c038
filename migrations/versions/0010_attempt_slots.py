"""Attempts to sign in to the console take one of as many slots as there may be at a time."""

import sqlalchemy as sa
from alembic import op

from placement.db.revising import make_index

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_TABLE = "console_attempts"


def upgrade() -> None:
    present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns(_TABLE)}
    if "slot" not in present:  # MySQL commits each statement: an upgrade may have been interrupted here
        op.add_column(_TABLE, sa.Column("slot", sa.SmallInteger, nullable=True))
    make_index("ix_console_attempts_subject_slot", _TABLE, ["subject", "slot"], unique=True)
