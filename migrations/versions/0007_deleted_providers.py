"""Which resource providers were deleted lately, for those who follow changes."""

import sqlalchemy as sa
from alembic import op

from placement.exceptions import Unavailable

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_COLUMNS = {"uuid", "bucket", "change_seq"}
_OPTIONS = {
    f"{kind}_{name}": value
    for kind in ("mysql", "mariadb")
    for name, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


def upgrade() -> None:
    # MySQL commits each of these statements: after an upgrade that was interrupted the table may be there.
    present = sa.inspect(op.get_bind())
    indexes = set()
    if not present.has_table("deleted_providers"):
        op.create_table(
            "deleted_providers",
            sa.Column("uuid", sa.String(36), nullable=False),
            sa.Column("bucket", sa.SmallInteger, nullable=False),
            sa.Column("change_seq", sa.BigInteger, nullable=False),
            sa.PrimaryKeyConstraint("uuid", "change_seq", name="pk_deleted_providers"),
            **_OPTIONS,
        )
    elif {column["name"] for column in present.get_columns("deleted_providers")} != _COLUMNS:
        raise Unavailable(
            "The database has a table deleted_providers of another program: "
            "give the service a database of its own in [placement_database] connection."
        )
    else:
        indexes = {index["name"] for index in present.get_indexes("deleted_providers")}
    if "ix_deleted_providers_bucket_change_seq" not in indexes:
        op.create_index(
            "ix_deleted_providers_bucket_change_seq", "deleted_providers", ["bucket", "change_seq"]
        )
