"""Does nothing. The console's own Alembic branch makes the tables that this migration once made.

The number stays, as there are databases at it.
"""

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass
