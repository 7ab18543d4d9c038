"""Does nothing. The console's own Alembic branch makes the tables that this revision made before.

The number stays, because databases with this revision exist.
"""

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass
