"""Makes the tables of the console: one for sessions, and one for attempts to sign in with their slots.

Tables that the revisions 0009 and 0010 of the core made are kept with their content.
"""

import sqlalchemy as sa
from alembic import op

from placement.db.schema_scripts import make_index, make_table

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SESSIONS = "console_sessions"
_ATTEMPTS = "console_attempts"


def upgrade() -> None:
    make_table(
        _SESSIONS,
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_console_sessions"),
    )
    make_index("ix_console_sessions_expires_at", _SESSIONS, ["expires_at"])
    slot = sa.Column("slot", sa.SmallInteger, nullable=True)
    if _table_columns() == {"id", "subject", "at"}:  # as 0009 of the core made it, without the slots of 0010
        op.add_column(_ATTEMPTS, slot)
    else:
        make_table(
            _ATTEMPTS,
            sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
            sa.Column("subject", sa.String(64), nullable=False),
            sa.Column("at", sa.Double, nullable=False),
            slot,
            sa.PrimaryKeyConstraint("id", name="pk_console_attempts"),
        )
    make_index("ix_console_attempts_subject", _ATTEMPTS, ["subject"])
    make_index("ix_console_attempts_at", _ATTEMPTS, ["at"])
    make_index("ix_console_attempts_subject_slot", _ATTEMPTS, ["subject", "slot"], unique=True)


def _table_columns() -> set[str]:
    present = sa.inspect(op.get_bind())
    return (
        {column["name"] for column in present.get_columns(_ATTEMPTS)}
        if present.has_table(_ATTEMPTS)
        else set()
    )
