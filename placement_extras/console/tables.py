"""Tables of the console. The migrations 0009 and 0010 of the service make them."""

import sqlalchemy as sa

from placement.db.tables import ConsumerId, define_table, new_metadata

metadata = new_metadata()

console_sessions = define_table(
    "console_sessions",
    # a digest of the browser's secret, with which alone the content can be read (secrets.py)
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("content", sa.Text, nullable=False),
    # by the clock of the database
    sa.Column("expires_at", sa.Double, nullable=False, index=True),
    among=metadata,
)

console_attempts = define_table(
    "console_attempts",
    # sign-ins that have not succeeded, each under the digests of whom it is counted for
    sa.Column("id", ConsumerId, primary_key=True),
    sa.Column("subject", sa.String(64), nullable=False, index=True),
    sa.Column("at", sa.Double, nullable=False, index=True),
    # of as many as may be made at a time; NULL of those that a worker of an older release made
    sa.Column("slot", sa.SmallInteger, nullable=True),
    sa.Index("ix_console_attempts_subject_slot", "subject", "slot", unique=True),
    among=metadata,
)
