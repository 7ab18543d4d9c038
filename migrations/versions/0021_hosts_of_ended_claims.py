"""The hosts of ended claims, for their time events."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_column

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # nullable, because workers of the previous release write no hosts
    make_column("ended_claims", sa.Column("roots", sa.Text, nullable=True))
