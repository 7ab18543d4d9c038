"""A change counter for the epoch. After a change of the epoch, all workers read the whole database again."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_BUCKETS = sa.table("change_buckets", sa.column("id"), sa.column("counter"), sa.column("deletions"))
_EPOCH = 258


def upgrade() -> None:
    bind = op.get_bind()
    # the row exists already if this version was migrated to an older revision before
    if bind.execute(sa.select(_BUCKETS.c.id).where(_BUCKETS.c.id == _EPOCH)).first() is None:
        bind.execute(sa.insert(_BUCKETS).values(id=_EPOCH, counter=0, deletions=0))
