"""Makes nothing: the console has the tables that this made in a branch of its own.

The number stays, as there are databases at it.
"""

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass
