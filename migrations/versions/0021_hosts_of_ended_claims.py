"""The hosts of claims that are over, for their events."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_column

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # workers of the release before write no hosts
    make_column("ended_claims", sa.Column("roots", sa.Text, nullable=True))
