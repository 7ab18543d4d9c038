"""An index of windows by their start, so that a query for the next start does not read all windows."""

from placement.db.schema_scripts import make_index

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    make_index("ix_reservations_starts_at", "reservations", ["starts_at"])
