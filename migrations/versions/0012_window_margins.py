"""Lead times and cleaning times: a window also holds its amounts before its start and after its end."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_column

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("lead_time", "cleaning_time"):
        make_column("reservations", sa.Column(name, sa.Integer, nullable=False, server_default="0"))
